"""`kubectl koordebpf why`."""

from __future__ import annotations

import click

from koordebpf.cli.kubectl.options import Reached, cluster_options, end, output_option, say_missing, show


@click.command()
@click.argument("pod", metavar="POD")
@click.option("--last", default=3, show_default=True, type=click.IntRange(min=1), help="So many decisions, the newest.")
@click.option("--recorded", is_flag=True, help="Look into recordings too: up to a minute of a CPU of the node.")
@output_option(wide=False)
@cluster_options(60.0)
def why(pod: str, last: int, recorded: bool, output: str | None, reached: Reached) -> None:
    """Say why a pod was evicted, or was not: its Events, and each decision of an agent that speaks of it.

    POD is NAME or NAMESPACE/NAME, also of a pod that is gone. Its node is known from the pod or from Events; where it
    is not, all agents are asked. What an agent remembers needs the role koordebpf-operator; koordebpf-reader reads its
    log in place of that. The exit code is 1 where no decision speaks of it.

    \b
    Examples:
      kubectl koordebpf why spark/be-7
      kubectl koordebpf why be-7 -n spark --recorded --last 10
      kubectl koordebpf why spark/be-7 -o json | jq '.decisions[-1]'
    """
    from koordebpf.tools.cluster.why import pod_of, why_page, why_pod

    with reached.agents() as agents:
        namespace, name = pod_of(pod, reached.namespace or agents.cluster.namespace)
        found = why_pod(agents, namespace, name, last, recorded=recorded)
    show(found, output, lambda: why_page(found))
    say_missing(found.problems)
    end(0 if found.decisions else 1)
