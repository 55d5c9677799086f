"""`koordebpf plugin`: this node's detectors for a Katalyst agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from koordebpf.cli.inputs import FilePath, read_config_file
from koordebpf.errors import SupportError

_FILE = FilePath()


@click.group()
def plugin() -> None:
    """Offer this node's detectors to a Katalyst agent, as an eviction plugin.

    The other way round, `koordebpf run --feature-gates KatalystEviction=true` calls plugins itself.

    \b
    Examples:
      koordebpf plugin serve
    """


@plugin.command()
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default="/var/lib/katalyst/plugin-socks",
    show_default=True,
    help="Where the agent looks for plugins: its plugin-registration-dir.",
)
@click.option(
    "--name",
    default="koordebpf-memory-pressure-plugin",
    show_default=True,
    help="Of the plugin; its socket is NAME.sock in the directory.",
)
@click.option(
    "--token-file", type=_FILE, help="What GetToken answers, for agents that authenticate plugins: Basic and base64."
)
@click.option(
    "--config",
    "config_file",
    type=_FILE,
    help="An agent's configuration file, for eviction.katalyst.inner.systemMemory, eviction.katalyst.qos and"
    " eviction.stall.",
)
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="The node is this cgroup with a memory limit.")
@click.option("--cgroup-root", metavar="PATH", help="The kubelet's own --cgroup-root. Default: learned.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "co-re", "bcc", "files"]),
    envvar="KOORDEBPF_BACKEND",
    help="Where signals come from; default: the best that works here.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Default: text.")
def serve(directory: Path, name: str, token_file: Path | None, config_file: Path | None, **given: Any) -> None:
    """Serve the plugin until SIGTERM or SIGINT.

    It answers two questions: whether the node's memory is short, and which of the agent's pods to evict for it. It
    evicts nothing and writes nothing but its socket; the agent decides. The pods, with their QoS levels, are those
    that the agent asks about, so that it needs no API server. It needs root, and the extra `cri` (h2).

    \b
    Scopes of its threshold, which is hard, with the condition MemoryPressure:
      SystemMemory  free memory is below the watermark, page cache that can be
                    reclaimed counted as free; on cgroup v2 also pressure of
                    pods that lasts
      MemoryStall   a pod that is not reclaimed stalls for the node's memory,
                    by BPF, though enough counts as free: reclaimed pods leave

    Pods leave in this order: reclaimed_cores, then by priority, then whose eviction frees the most memory.

    A socket that a dead server left is replaced; where a live one listens, this ends with an error. One that is removed
    meanwhile comes back within 5 s.

    \b
    Examples:
      koordebpf plugin serve
      koordebpf plugin serve --name rack-memory --token-file /etc/koordebpf/token
      koordebpf plugin serve --config config.yaml --log-format json
    """
    from koordebpf.configuration.checked import agent_config
    from koordebpf.report.log_formats import set_up_logging
    from koordebpf.slo.convert import laid_over

    in_file = read_config_file(config_file)
    typed = {option: value for option, value in given.items() if value is not None}
    config = agent_config(laid_over(in_file, typed))
    set_up_logging(json=config.log_format == "json")
    try:
        from koordebpf.strategies.katalyst.serve import ServeOptions, serve_plugin
    except ImportError as error:
        raise SupportError("plugin serve", str(error), "Install koordebpf with its extra: koordebpf[cri].") from error

    serve_plugin(config, ServeOptions(name, directory, token_file))
