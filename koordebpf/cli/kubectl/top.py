"""`kubectl koordebpf top`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from koordebpf.cli.kubectl.options import Reached, cluster_options, end, output_option, say_missing, show

if TYPE_CHECKING:
    from koordebpf.report.top import Sort


@click.group()
def top() -> None:
    """Show nodes, or pods of all nodes, by memory, growth and stall.

    \b
    Examples:
      kubectl koordebpf top nodes
      kubectl koordebpf top pods -A -l koordinator.sh/qosClass=BE
    """


@top.command()
@click.argument("wanted", nargs=-1, metavar="[NODE]...")
@output_option()
@cluster_options(10.0)
def nodes(wanted: tuple[str, ...], output: str | None, reached: Reached) -> None:
    """Show each node's memory in use, its threshold, pressure, and when it is forecast to reach it.

    Who is nearest to its threshold stands first. Needs the role koordebpf-reader.

    \b
    Examples:
      kubectl koordebpf top nodes -o wide
    """
    from koordebpf.tools.cluster.status import cluster_status, top_nodes_page

    with reached.agents() as agents:
        found = cluster_status(agents, wanted)
    show(found, output, lambda: top_nodes_page(found, is_wide=output == "wide"))
    missing = tuple(f"{each.node}: {each.missing}" for each in found.nodes if each.missing)
    say_missing(missing)
    end(1 if missing else 0)


@top.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces.")
@click.option("-l", "--selector", default="", help="Labels, as kubectl's: koordinator.sh/qosClass=BE.")
@click.option(
    "--sort", type=click.Choice(["stall", "usage", "growth", "ttt", "name"]), default="usage", show_default=True
)
@output_option()
@cluster_options(10.0)
def pods(all_namespaces: bool, selector: str, sort: Sort, output: str | None, reached: Reached) -> None:
    """Show pods as their nodes' agents measured them last: USED is what an eviction frees.

    Growth is over the last seconds, SOME% the share of the last 10 s in which a task of it waited for memory, FULL IN
    the time until its own limit kills. Needs the role koordebpf-operator, since agents say this to root alone. What
    a node does not answer is said on standard error, and the exit code is 1 then.

    \b
    Examples:
      kubectl koordebpf top pods -n spark --sort growth
      kubectl koordebpf top pods -A -o wide
    """
    from koordebpf.tools.cluster.pods import top_pods, top_pods_page

    with reached.agents() as agents:
        namespace = "" if all_namespaces else reached.namespace or agents.cluster.namespace
        found = top_pods(agents, namespace, selector, sort)
    show(found, output, lambda: top_pods_page(found, with_namespace=all_namespaces, is_wide=output == "wide"))
    say_missing(found.missing)
    end(1 if found.missing else 0)
