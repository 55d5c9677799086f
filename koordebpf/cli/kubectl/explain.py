"""`kubectl koordebpf explain`."""

from __future__ import annotations

import click

from koordebpf.cli.kubectl.options import Reached, cluster_options
from koordebpf.cli.kubectl.passing import pass_on


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("node", metavar="NODE")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS OF koordebpf explain]...")
@cluster_options(60.0)
def explain(node: str, arguments: tuple[str, ...], reached: Reached) -> None:
    """Say why a node's agent decided what it did: koordebpf explain in its pod, with its arguments.

    Needs the role koordebpf-operator.

    \b
    Examples:
      kubectl koordebpf explain worker-1
      kubectl koordebpf explain worker-1 --writes --last 1
      kubectl koordebpf explain worker-1 --pod spark/be-7 --json
    """
    pass_on(reached, node, ("explain", *arguments))
