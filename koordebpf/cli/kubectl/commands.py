"""The commands of `kubectl koordebpf`."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordebpf.cli.echo import echo
from koordebpf.cli.kubectl.options import Reached, cluster_options, end, output_option, print_missing, show
from koordebpf.errors import SupportError

if TYPE_CHECKING:
    from koordebpf.report.top import Sort


def _pass_on(reached: Reached, node: str, command: tuple[str, ...]) -> None:
    """Run a command of koordebpf in a node's agent; print its output and end with its exit code.

    Raises:  ConfigError: the node has no agent. KubeError: it does not run.
    """
    from koordebpf.kube.remote.exec import text_of
    from koordebpf.kube.remote.pods import CONTAINER
    from koordebpf.tools.cluster.asking import agent_on

    with reached.agents() as agents:
        pod = agent_on(agents, node)
        said, ended = text_of(agents.cluster, pod.place, CONTAINER, ("koordebpf", *command), agents.within_s)
    echo(said.decode(errors="replace"), nl=False)
    echo(ended.stderr, err=True, nl=False)
    end(ended.exit_code)


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
    print_missing(missing)
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
    print_missing(found.missing)
    end(1 if found.missing else 0)


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
    print_missing(found.problems)
    end(0 if found.decisions else 1)


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
    _pass_on(reached, node, ("explain", *arguments))


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
        _pass_on(reached, node, ("doctor", *(("--json",) if output == "json" else ()), *arguments))
        return
    from koordebpf.tools.cluster.doctors import diagnoses, doctors_page

    with reached.agents() as agents:
        found = diagnoses(agents, reached.timeout_s)
    show(found, output, lambda: doctors_page(found))
    if output is not None:
        print_missing(found.problems)
    end(found.exit_code)


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
    from koordebpf.tools.cluster.asking import fetch_recording
    from koordebpf.units import format_bytes

    place = folder or Path(f"{node}.recording")
    with reached.agents() as agents:
        size = fetch_recording(agents, node, place)
    echo(f"{format_bytes(size)} in {place}; koordebpf recording show {place} says what it holds", err=True)


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
    from koordebpf.tools.cluster.asking import fetch_recording

    with tempfile.TemporaryDirectory(prefix="koordebpf-") as folder:
        place = Path(folder) / f"{Path(node).name}.recording"
        with reached.agents() as agents:
            fetch_recording(agents, node, place)
        command: click.Command = importlib.import_module("koordebpf.cli.report").report
        command.main([str(place), *arguments], prog_name="koordebpf report", standalone_mode=False)
