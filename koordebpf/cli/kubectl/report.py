"""`kubectl koordebpf report`."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from pathlib import Path

import click

from koordebpf.cli.kubectl.options import Reached, cluster_options
from koordebpf.errors import SupportError


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("node", metavar="NODE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS OF koordebpf report]...")
@cluster_options(300.0)
def report(node: str, arguments: tuple[str, ...], reached: Reached) -> None:
    """Fetch what a node's agent recorded, and make a page of it: koordebpf report here, with its arguments.

    What was fetched is removed afterwards; kubectl koordebpf record keeps it. Needs the role koordebpf-operator.

    \b
    Examples:
      kubectl koordebpf report worker-1 -o incident.html
    """
    if importlib.util.find_spec("koordebpf.cli.report") is None:
        raise SupportError("report", "this version of koordebpf has no such command", "Use record, then replay.")
    from koordebpf.tools.cluster.recordings import fetch_recording

    with tempfile.TemporaryDirectory(prefix="koordebpf-") as folder:
        place = Path(folder) / f"{Path(node).name}.recording"
        with reached.agents() as agents:
            fetch_recording(agents, node, place)
        command: click.Command = importlib.import_module("koordebpf.cli.report").report
        command.main([str(place), *arguments], prog_name="koordebpf report", standalone_mode=False)
