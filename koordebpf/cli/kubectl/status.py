"""`kubectl koordebpf status`."""

from __future__ import annotations

import click

from koordebpf.cli.kubectl.options import Reached, cluster_options, end, output_option, show


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@output_option()
@cluster_options(10.0)
def status(nodes: tuple[str, ...], output: str | None, reached: Reached) -> None:
    """Show every node's agent: whether it acts, its node's memory, what it evicted, and what is wrong.

    Needs the role koordebpf-reader (deploy/components/readers). The exit code is 1 where a node has a problem.

    \b
    Examples:
      kubectl koordebpf status
      kubectl koordebpf status worker-1 -o wide
      kubectl koordebpf status -o json | jq '.nodes[] | select(.missing)'
    """
    from koordebpf.tools.cluster.status import cluster_status, status_page

    with reached.agents() as agents:
        found = cluster_status(agents, nodes)
    show(found, output, lambda: status_page(found, is_wide=output == "wide"))
    end(0 if found.is_sound else 1)
