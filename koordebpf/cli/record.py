"""`koordebpf record`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from koordebpf.cli.echo import echo
from koordebpf.cli.inputs import FilePath, OutputPath, kubeconfig_options, read_config_file

_FILE = FilePath()


@click.command()
@click.argument("output", metavar="FILE", type=OutputPath())
@click.option("--seconds", type=click.FloatRange(min=0.1), help="End after so long. Default: at SIGINT or SIGTERM.")
@click.option("--config", "config_file", type=_FILE, help="The agent's configuration file, for its settings.")
@click.option("--source", type=click.Choice(["file", "kubelet", "api"]), help="Where pods, Node and NodeSLO come from.")
@click.option("--pods", "files", type=_FILE, multiple=True, help="Source file: YAML or JSON, or a directory.")
@click.option("--node-name", envvar=["KOORDEBPF_NODE_NAME", "NODE_NAME"], help="Sources api and kubelet.")
@kubeconfig_options
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="The node is this cgroup, not the machine.")
@click.option("--feature-gates", multiple=True, metavar="NAME=BOOL", help="Koordinator's gates, as MemoryEvict=true.")
@click.option("--redact", is_flag=True, help="Hash the names of pods, namespaces, labels and paths.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def record(
    output: Path,
    seconds: float | None,
    config_file: Path | None,
    redact: bool,
    log_format: str,
    **options: Any,
) -> None:
    """Record what an agent would decide on this node, each round with all it is decided from.

    It needs no agent, and one that runs here is not disturbed: nothing is evicted, written to a cgroup or served. FILE
    is replaced, - is standard output; koordebpf replay, plan and explain read it, here and on other machines.

    \b
    Examples:
      koordebpf record node.rounds --seconds 60 --pods pods.yaml
      koordebpf record node.rounds --source api --node-name worker-1 --redact
      koordebpf replay node.rounds
    """
    from koordebpf.report.log_formats import set_up_logging
    from koordebpf.tools.recorder.record import record_rounds

    set_up_logging(json=log_format == "json")
    in_file = read_config_file(config_file)
    given = {name: value for name, value in options.items() if value not in (None, ())}
    echo(record_rounds(output, in_file, given, seconds, redact=redact), err=True)
