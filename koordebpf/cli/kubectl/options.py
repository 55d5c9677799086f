"""Options that all commands share, spelt as kubectl's, and what they lead to."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from koordebpf.cli.echo import echo, echo_json
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.tools.cluster.asking import Agents

_NO_LIMIT_S = 20 * 86_400.0  # Why: a socket's timeout is at most 2^31 ms, 24.8 days
F = TypeVar("F", bound=Callable[..., Any])


# A duration as kubectl has it: Go's text, or a number of seconds; 0 is no limit.
def _seconds(_context: click.Context, _option: click.Parameter, written: str) -> float:
    from koordebpf.errors import ConfigError
    from koordebpf.slo.go_duration import duration_ns

    text = f"{written}s" if written.replace(".", "", 1).isdecimal() else written
    try:
        seconds = duration_ns(text, "--request-timeout") / NS_PER_S
    except ConfigError:
        raise click.BadParameter(f"{written!r} is no duration: as 30s, 1m or 1h30m; 0 is no limit") from None
    return min(seconds, _NO_LIMIT_S) if seconds else _NO_LIMIT_S


class Reached(msgspec.Struct, frozen=True):
    """Which cluster, as whom, and how long to wait. `namespace` None: the context's own."""

    kubeconfig: str | None
    context: str | None
    namespace: str | None
    agents_namespace: str
    timeout_s: float

    @contextlib.contextmanager
    def agents(self) -> Iterator[Agents]:
        """Open the cluster and look for its agents.

        Raises:  ConfigError: no cluster is found. KubeError: it cannot be asked.
        """
        from koordebpf.kube.remote.cluster import open_kubeconfig
        from koordebpf.tools.cluster.asking import Agents

        cluster = open_kubeconfig(self.kubeconfig, self.context)
        try:
            yield Agents(cluster, self.agents_namespace, self.timeout_s)
        finally:
            cluster.close()


def cluster_options(timeout_s: float = 30.0) -> Callable[[F], F]:
    """Return what adds these options, as the argument `reached`; `timeout_s`: the default for one node."""

    def add(command: F) -> F:
        def called(
            kubeconfig: str | None,
            context: str | None,
            namespace: str | None,
            agents_namespace: str,
            request_timeout: float,
            **given: Any,
        ) -> Any:
            reached = Reached(kubeconfig, context, namespace, agents_namespace, request_timeout)
            return command(reached=reached, **given)

        called.__name__, called.__doc__ = command.__name__, command.__doc__
        called.__click_params__ = list(getattr(command, "__click_params__", ()))  # type: ignore[attr-defined]
        for option in (
            click.option(
                "--request-timeout",
                callback=_seconds,
                metavar="DURATION",
                default=f"{timeout_s:g}s",
                show_default=True,
                help="For one node, as 30s or 1m; 0: as long as it takes.",
            ),
            click.option(
                "--agents-namespace",
                default="koordebpf-system",
                show_default=True,
                help="Of the agents themselves.",
            ),
            click.option("-n", "--namespace", help="Of the pods that are asked about; default: the context's."),
            click.option("--context", help="Of the kubeconfig; default: its current one."),
            click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, else ~/.kube/config."),
        ):
            called = option(called)
        return called  # type: ignore[return-value]

    return add


def output_option(*, wide: bool = True) -> Callable[[F], F]:
    """Return the option -o."""
    formats = ["wide", "json", "yaml"] if wide else ["json", "yaml"]
    return click.option("-o", "--output", type=click.Choice(formats), help="Default: text.")


def show(value: Any, output: str | None, page: Callable[[], str]) -> None:
    """Print a value as JSON or YAML, else its page."""
    if output == "json":
        echo_json(value, indent=2)
    elif output == "yaml":
        import yaml

        echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True), nl=False)
    else:
        echo(page())


def print_missing(problems: tuple[str, ...]) -> None:
    """Say on standard error what could not be read."""
    for each in problems:
        echo(f"kubectl koordebpf: {each}", err=True)


def end(code: int) -> None:
    """End with an exit code other than 0."""
    if code:
        sys.exit(code)
