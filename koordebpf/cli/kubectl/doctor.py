"""`kubectl koordebpf doctor`."""

from __future__ import annotations

import click

from koordebpf.cli.kubectl.options import Reached, cluster_options, end, output_option, say_missing, show
from koordebpf.cli.kubectl.passing import pass_on


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("node", required=False, metavar="[NODE]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS OF koordebpf doctor]...")
@click.option("--all", "of_all", is_flag=True, help="All nodes: what is missing where.")
@output_option(wide=False)
@cluster_options(60.0)
def doctor(node: str | None, arguments: tuple[str, ...], of_all: bool, output: str | None, reached: Reached) -> None:
    """Show which signals work on a node: koordebpf doctor in its agent's pod, with its arguments.

    With --all every node is asked, and those with the same findings stand together. Needs the role koordebpf-operator.

    \b
    Exit code:
      0  every signal is available by its best method, on every node
      1  an agent runs with losses, or a node does not answer
      2  an agent cannot run

    \b
    Examples:
      kubectl koordebpf doctor --all
      kubectl koordebpf doctor worker-1 --fix
    """
    if of_all == (node is not None):
        raise click.UsageError("name a NODE, or say --all")
    if node is not None:
        pass_on(reached, node, ("doctor", *(("--json",) if output == "json" else ()), *arguments))
        return
    from koordebpf.tools.cluster.doctors import diagnoses, doctors_page

    with reached.agents() as agents:
        found = diagnoses(agents, reached.timeout_s)
    show(found, output, lambda: doctors_page(found))
    if output is not None:
        say_missing(found.problems)
    end(found.exit_code)
