"""Files and agents a person names on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from koordebpf.errors import ConfigError, unreadable

if TYPE_CHECKING:
    from koordebpf.kube.config_map import ConfigMapName
    from koordebpf.kube.sources.base import Source

F = TypeVar("F", bound=Callable[..., Any])

_TIMEOUT_S = 5
_MOST_BYTES = 1 << 30


class FilePath(click.Path):
    """The path of a file or folder that is there; where one may not look, the message says so."""

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        try:
            Path(value).stat()
        except PermissionError as error:
            self.fail(f"{value}: {error.strerror}", param, ctx)
        except OSError:  # which click words
            pass
        return super().convert(value, param, ctx)


class OutputPath(click.Path):
    """The path of a file that is written, - for standard output: `store.output_file` has the rules.

    It is not looked at here: on a hung disk that does not return.
    """

    def __init__(self) -> None:
        super().__init__(allow_dash=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; ./- is a file of that name."""
        path = Path(value)
        return path.absolute() if path == Path("-") and value != "-" else path


def kubeconfig_options(command: F) -> F:
    """Add --kubeconfig and --context, which mean what they mean to kubectl."""
    command = click.option(
        "--context", "kube_context", metavar="NAME", help="Context of the kubeconfig. Default: its current-context."
    )(command)
    return click.option(
        "--kubeconfig",
        type=FilePath(),
        help="Credentials for the API server. Default: as kubectl, $KUBECONFIG, then ~/.kube/config, then the pod's"
        " ServiceAccount.",
    )(command)


def config_map_option(command: F) -> F:
    """Add --config-map, the ConfigMap with Koordinator's settings."""
    return click.option(
        "--config-map",
        callback=_config_map,
        metavar="[NAMESPACE/]NAME",
        help="The ConfigMap with Koordinator's settings. Default: koordinator-system/slo-controller-config.",
    )(command)


def _config_map(ctx: click.Context, param: click.Parameter, value: str | None) -> ConfigMapName:
    del ctx, param
    from koordebpf.kube.config_map import CONFIG_MAP, parse_config_map

    return CONFIG_MAP if value is None else parse_config_map(value, "--config-map")


def run_dir_option(text: str = "The folder that the agent was given.") -> Callable[[F], F]:
    """Return the option --run-dir of what asks an agent, or reads what agents left."""
    return click.option(
        "--run-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default="/run/koordebpf",
        show_default=True,
        help=text,
    )


def names_options(command: F) -> F:
    """Add the options that say where names of pods come from, as `source`, `run_dir`, `node_name`, `kubeconfig`."""
    for option in (
        click.option(
            "--source",
            type=click.Choice(["agent", "file", "api"]),
            help="Where pods' names come from; default: --pods, else the agent on this node.",
        ),
        run_dir_option("Below it agents have their sockets."),
        click.option("--node-name", envvar=["KOORDEBPF_NODE_NAME", "NODE_NAME"], help="Source api: this node."),
        click.option(
            "--kubeconfig",
            type=click.Path(exists=True, path_type=Path),
            help="Source api: credentials; default: the pod's ServiceAccount.",
        ),
    ):
        command = option(command)
    return command


def names_of(
    files: tuple[Path, ...], source: str | None, run_dir: Path, node_name: str | None, kubeconfig: Path | None
) -> Source | None:
    """Return where names come from, as these options say; None: neither a file nor an agent has them.

    Raises:  ConfigError: what is asked for lacks something.
    """
    # What asks an agent takes 20 ms to import.
    if not files and source is None and not has_socket(run_dir):
        return None
    from koordebpf.tools.names import named_source

    return named_source(files, source, run_dir, {"node_name": node_name, "kubeconfig": kubeconfig})


def has_socket(run_dir: Path) -> bool:
    """Tell whether there may be an agent that this user may ask."""
    try:
        return any(run_dir.glob("*/*.sock"))
    except OSError:
        return False


def read_config_file(path: Path | None) -> dict[str, Any]:
    """Return what a configuration file sets; nothing where none is given.

    Raises:  ConfigError: it cannot be read, or is none.
    """
    from koordebpf.configuration.file import read_config

    return read_config(str(path), read_input(str(path))) if path else {}


def read_input(path: str) -> bytes:
    """Return what the file holds; - is standard input.

    Raises: ConfigError: it cannot be read.
    """
    from koordebpf.kernel.io.regular_file import read_given_file

    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return read_given_file(Path(path), _MOST_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error


def ask_agent(url: str | None, run_dir: Path, what: str, *, or_else: str) -> tuple[bytes, str]:
    """Return what a running agent answers, and where: at a socket's path or a URL, None: of the one on this node.

    Raises:  ConfigError: no agent answers there; `or_else` is what there is to do then.
    """
    import http.client
    import urllib.error
    import urllib.request

    from koordebpf.report.http.local_socket import agent_socket, asked

    place = str(agent_socket(run_dir, or_else)) if url is None else url
    if "://" in place and not place.startswith(("http://", "https://")):
        raise ConfigError("--url", place, "must be a socket's path, or begin with http:// or https://")
    try:
        if "://" not in place:
            return asked(Path(place), what), place
        with urllib.request.urlopen(f"{place.rstrip('/')}/{what}", timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read()), place
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise ConfigError("--url", place, f"must be a running agent: {reason}; or {or_else}") from error
