"""`koordebpf explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koordebpf.cli.echo import echo, echo_json, echo_object
from koordebpf.cli.inputs import ask_agent, config_map_option, kubeconfig_options, read_input, run_dir_option
from koordebpf.cli.schemas import schema_option
from koordebpf.errors import ConfigError

if TYPE_CHECKING:
    from koordebpf.kube.config_map import ConfigMapName

_RESOURCES = ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")
_SHOWN = 3  # of the lines that could not be read


@click.command()
@click.argument("node_name", metavar="NODE")
@click.argument("resource", required=False, metavar="[RESOURCE]", type=click.Choice(_RESOURCES))
@kubeconfig_options
@config_map_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, amounts in millicpu and bytes.")
@schema_option("node-resources")
def node(
    node_name: str,
    resource: str | None,
    kubeconfig: Path | None,
    kube_context: str | None,
    config_map: ConfigMapName,
    as_json: bool,
) -> None:
    """Say how a Node's batch and mid resources come to be: the sum with every term, and where each is from.

    RESOURCE is batch-cpu, batch-memory, mid-cpu or mid-memory; default: all four.

    It reads the Node, its pods, its NodeMetric, its NodeResourceTopology and slo-controller-config, and computes what
    koordebpf controller --batch-resources does. It writes nothing, and needs no controller that runs: where a
    Koordinator manager computes, it shows what that comes to by the same formulas.

    \b
    Examples:
      koordebpf explain node worker-1 batch-memory
      koordebpf explain node worker-1 --json | jq .calculations
    """
    from koordebpf.controller.batch.written import explain
    from koordebpf.kube.http.transport import open_cluster
    from koordebpf.report.pages.batch import explained_node

    transport = open_cluster(kubeconfig, kube_context)
    try:
        named = f"kubernetes.io/{resource}" if resource else None
        explained = explain(transport, node_name, named, config_map)
    finally:
        transport.close()
    if as_json:
        echo_object("node-resources", explained)
    else:
        echo(explained_node(explained))


# `explain node` is a command of its own; a file of that name is ./node.
class _OrNode(click.Command):
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["node"]:
            return node.make_context(f"{info_name} node", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command(cls=_OrNode)
@click.argument("audit", required=False, metavar="[AUDIT.jsonl]")
@click.option(
    "--url",
    metavar="PATH|URL",
    help="A running agent's socket, asked where no file is given, or an address that leads to it. Default: that of the"
    " agent on this node, below --run-dir.",
)
@run_dir_option()
@click.option("--last", default=5, show_default=True, type=click.IntRange(min=1), help="So many decisions, the newest.")
@click.option("--pod", help="Only decisions that speak of this pod: name, namespace/name or uid.")
@click.option("--writes", "of_writes", is_flag=True, help="Tell of changes of cgroup files in place of evictions.")
@click.option("--requests", "of_requests", is_flag=True, help="What Katalyst's eviction plugins asked for in vain.")
@click.option("--json", "as_json", is_flag=True, help="The records themselves, one JSON object per line.")
@schema_option("audit", "write", "request")
def explain(
    audit: str | None,
    url: str | None,
    run_dir: Path,
    last: int,
    pod: str | None,
    of_writes: bool,
    of_requests: bool,
    as_json: bool,
) -> None:
    """Say why the last decisions to evict were what they were, and what became of them.

    From an audit file (`koordebpf run --audit FILE`; - is standard input), from a recording (`koordebpf record`, or the
    folder of an agent's recorder), whose rounds are decided again, or from a running agent, which remembers its
    last 50 decisions, 2000 writes and 500 requests, and tells them to root on the socket RUN_DIR/NODE/acting.sock. A
    line that is cut short is reported on standard error and left out.

    With --writes it says which files were changed for what reason: what best-effort pods were left of the CPUs, what
    QoS strategies and runtime hooks wrote, and what the milder rungs of the ladder did. `koordebpf pod explain POD`
    says what one pod has now, and who set it.

    With --requests it says which pods an eviction plugin asked for and did not get, and those of its dry run, each once
    for as long as the plugin asks for it.

    koordebpf explain node NODE [RESOURCE] says how many batch or mid resources a Node has, with every term of the sum.

    \b
    Examples:
      koordebpf explain                              the agent on this node
      koordebpf explain --pod spark/be-7 audit.jsonl
      koordebpf explain --writes --last 1
      koordebpf explain --requests --pod spark/be-7
      koordebpf explain --url /run/koordebpf/machine/acting.sock
      koordebpf explain --json --last 1 | jq .features[0].verdict
    """
    if of_writes and pod:
        raise click.UsageError("--writes knows files and no pods: it does not go with --pod")
    if of_writes and of_requests:
        raise click.UsageError("--writes and --requests exclude each other")
    what = "writes" if of_writes else "requests" if of_requests else "decisions"
    from koordebpf.store.recorder.magic import is_recording_path

    if audit and not of_requests and is_recording_path(audit):
        from koordebpf.tools.recorder.pages import explained_lines

        raw, path = explained_lines(audit, writes=of_writes), audit
    else:
        raw, path = (read_input(audit), audit) if audit else ask_agent(url, run_dir, what, or_else="name an audit file")
    if of_writes:
        _print_writes(raw, path, last, of_agent=not audit, as_json=as_json)
    elif of_requests:
        _print_requests(raw, path, last, pod, as_json=as_json)
    else:
        _print_decisions(raw, path, last, pod, as_json=as_json)


def _print_decisions(raw: bytes, path: str, last: int, pod: str | None, *, as_json: bool) -> None:
    from koordebpf.report.pages.explain import concerns, decode_audit, explained

    records, problems = decode_audit(raw, path)
    _report_left_out(problems)
    if pod:
        records = tuple(record for record in records if concerns(record, pod))
    for record in records[-last:]:
        if as_json:
            echo_json(record)
        else:
            echo(f"{explained(record)}\n")
    if not records and not as_json:
        of = f" that speaks of {pod}" if pod else ""
        echo(f"no decision to evict a pod{of} in {path}; with --writes it shows writes of files")
    if problems and not records:
        sys.exit(ConfigError.exit_code)


def _print_writes(raw: bytes, path: str, last: int, *, of_agent: bool, as_json: bool) -> None:
    from koordebpf.report.pages.explain import decode_writes, explained_writes, rounds_of

    writes, problems = decode_writes(raw, path)
    _report_left_out(problems)
    for made in rounds_of(writes)[-last:]:
        for write in made if as_json else ():
            echo_json(write)
        if not as_json:
            echo(f"{explained_writes(made)}\n")
    if not writes and not as_json:
        echo("the agent has changed no file" if of_agent else f"no write in {path}")
    if problems and not writes:
        sys.exit(ConfigError.exit_code)


def _print_requests(raw: bytes, path: str, last: int, pod: str | None, *, as_json: bool) -> None:
    from koordebpf.report.pages.explain import decode_requests, explained_request

    requests, problems = decode_requests(raw, path)
    _report_left_out(problems)
    if pod:
        named = [(each, each.request) for each in requests]
        requests = tuple(each for each, of in named if pod in (of.uid, of.name, f"{of.namespace}/{of.name}"))
    for each in requests[-last:]:
        if as_json:
            echo_json(each)
        else:
            echo(f"{explained_request(each)}\n")
    if not requests and not as_json:
        echo(f"no request of an eviction plugin that was not carried out in {path}")
    if problems and not requests:
        sys.exit(ConfigError.exit_code)


def _report_left_out(problems: Sequence[ConfigError]) -> None:
    for problem in problems[:_SHOWN]:
        echo(f"left out: {problem}", err=True)
    if len(problems) > _SHOWN:
        echo(f"left out: {len(problems) - _SHOWN} more lines", err=True)
