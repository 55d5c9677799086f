"""`kubectl koordebpf record`."""

from __future__ import annotations

from pathlib import Path

import click

from koordebpf.cli.echo import echo
from koordebpf.cli.kubectl.options import Reached, cluster_options


@click.command()
@click.argument("node", metavar="NODE")
@click.argument("folder", required=False, metavar="[FOLDER]", type=click.Path(path_type=Path))
@cluster_options(300.0)
def record(node: str, folder: Path | None, reached: Reached) -> None:
    """Fetch what a node's agent recorded into FOLDER, by default NODE.recording: a day, 64 MiB at most.

    koordebpf replay, plan, explain and recording show read it on this machine. It has the names of all pods of the
    node: koordebpf recording redact takes them out. Needs the role koordebpf-operator.

    \b
    Examples:
      kubectl koordebpf record worker-1
      koordebpf replay worker-1.recording --set memoryEvictThresholdPercent=85
    """
    from koordebpf.tools.cluster.recordings import fetch_recording
    from koordebpf.units import format_bytes

    place = folder or Path(f"{node}.recording")
    with reached.agents() as agents:
        size = fetch_recording(agents, node, place)
    echo(f"{format_bytes(size)} in {place}; koordebpf recording show {place} says what it holds", err=True)
