"""`koordebpf trace`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordebpf.cli.echo import echo, echo_json
from koordebpf.cli.inputs import names_of, names_options

if TYPE_CHECKING:
    from koordebpf.collect.node_watch import NodeWatch
    from koordebpf.kernel.backends.select import WantedBackend
    from koordebpf.report.record_line import TraceFilter
    from koordebpf.tools.trace.follow import TraceOptions
    from koordebpf.tools.trace.output import TraceOutput

# As koordebpf.report.record_line.KINDS has them, which `--help` must not import.
_KINDS = (
    "reclaim",
    "oom_kill",
    "cgroup_mkdir",
    "cgroup_rmdir",
    "cgroup_rename",
    "kswapd",
    "compaction",
    "throttled",
    "memstall",
    "populated",
    "migration",
    "memcg_event",
)


_UID = re.compile(
    r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}", re.ASCII
)  # the second: a static pod

_HELP = """Print memory pressure events as the kernel reports them.

Each line is one thing that has ended, with the pod that it happened to:

\b
reclaim        a task had to free memory itself: how long, how much
compaction     a task had to move pages for a block of a higher order
throttled      a sleep inside reclaim, and what for
memstall       everything that the kernel itself counts as memory pressure,
               refaults and swap-ins included. One that only holds what
               other lines tell is left out, unless asked for by name
oom_kill       the OOM killer's victim, and what it held
memcg_event    lines of memory.events that grew; looked at each second
kswapd         background reclaim of one NUMA node went to sleep again
cgroup_mkdir   a cgroup was born; cgroup_rmdir: died; cgroup_rename
populated      a cgroup got its first task, or lost its last
migration      a task came into a cgroup

`node` is the node's own shortage, which its LS pods suffer too; `limit` a limit below the node.

What is not asked for does not leave the kernel: kinds, cgroups, pods and short stalls are filtered there. All is
counted nevertheless, so that --summary needs no events at all. What was lost is said on standard error at the end.

\b
Cost: 1 to 2 µs per reclaim episode in the kernel (bpf/README.md), printed
  or not; 20 to 35 µs of CPU for each line that is printed. --summary sends
  none, and measures the node four times a second.

\b
Provoke it, as root, on cgroup v2 (v1: C=/sys/fs/cgroup/memory/lab, and
memory.limit_in_bytes for memory.max):
  C=/sys/fs/cgroup/lab; mkdir $C; echo 64M > $C/memory.max
  sh -c 'echo $$ >'$C'/cgroup.procs; dd if=/dev/zero of=/var/tmp/x bs=1M \\
    count=500; rm /var/tmp/x'                          reclaim
  sh -c 'echo $$ >'$C'/cgroup.procs; tail /dev/zero'     OOM kill
  mkdir $C/x; rmdir $C/x $C                            mkdir and rmdir

\b
Examples:
  koordebpf trace --min-ms 10                     who stalls for long
  koordebpf trace --kind oom_kill --json          for machines
  koordebpf trace --pods pods.yaml --pod default/web-1
  koordebpf trace --summary --every 10            histograms by pod
  koordebpf trace --since-boot --seconds 0        counters alone
  koordebpf trace --count 23 --kind reclaim       exactly 23 of them
"""


@click.command(help=_HELP)
@click.option(
    "--pods",
    "files",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Pods as YAML or JSON, for their names, in place of the agent's; without any a pod shows as its uid.",
)
@names_options
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="Only this cgroup and what lies below it.")
@click.option("--cgroup-root", metavar="PATH", help="The kubelet's own --cgroup-root; default: learned from --pods.")
@click.option("--pod", "pod", multiple=True, help="Only this pod: name, namespace/name or uid.")
@click.option(
    "--cgroup",
    "cgroup",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Only this cgroup: its directory.",
)
@click.option(
    "--kind",
    multiple=True,
    type=click.Choice([*_KINDS, "all"]),
    metavar="KIND",
    help="Only this kind of event, or all. Default: all but populated, migration and memcg_event.",
)
@click.option(
    "--min-ms",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Only stalls from this duration on; shorter ones do not leave the kernel.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many events.")
@click.option("--seconds", type=click.FloatRange(min=0), help="End after so long.")
@click.option("--summary", is_flag=True, help="No events; at the end who stalled how long, as histograms.")
@click.option("--every", type=click.FloatRange(min=0.1), help="With --summary: one each so many seconds too.")
@click.option("--since-boot", is_flag=True, help="At the end the kernel's and the programs' own counters.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "co-re", "bcc", "files"]),
    help="How the kernel is listened to; default: the best that works here.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of those lines, and end.")
def trace(
    files: tuple[Path, ...],
    source: str | None,
    run_dir: Path,
    node_name: str | None,
    kubeconfig: Path | None,
    node_cgroup: Path | None,
    cgroup_root: str | None,
    pod: tuple[str, ...],
    cgroup: tuple[Path, ...],
    kind: tuple[str, ...],
    min_ms: float,
    count: int | None,
    seconds: float | None,
    summary: bool,
    every: float | None,
    since_boot: bool,
    backend: WantedBackend | None,
    as_json: bool,
    schema: bool,
) -> None:
    """Check how the options go together, then print events."""
    if schema:
        _print_schema()
        return
    if summary and (count or kind or min_ms):
        raise click.UsageError("--summary counts every stall: it excludes --count, --kind and --min-ms")
    if every and not summary:
        raise click.UsageError("--every needs --summary")

    from koordebpf.collect.scope import open_scope
    from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
    from koordebpf.tools.trace.follow import TraceOptions, open_watch

    wanted = _filter(pod, cgroup, kind, min_ms)
    names = names_of(files, source, run_dir, node_name, kubeconfig)
    if names is None and (unknown := next((each for each in pod if not _UID.fullmatch(each)), None)):
        raise click.UsageError(f"--pod {unknown}: a name needs an agent that runs here, --pods or --source; a uid none")
    asked = TraceOptions(wanted, not summary, summary, every, since_boot, count, seconds)
    scope = open_scope(find_memory_hierarchy(), node_cgroup, cgroup_root)
    with open_watch(scope, names, asked, backend) as watch:
        if watch.quality.stalls != "timed":
            echo(f"no stall is timed here; {watch.quality.short}; koordebpf doctor --fix says why", err=True)
        _follow(watch, asked, as_json)


def _print_schema() -> None:
    from koordebpf.tools.trace.output import trace_schema

    echo_json(trace_schema(), indent=2)


def _filter(pods: tuple[str, ...], cgroups: tuple[Path, ...], kinds: tuple[str, ...], min_ms: float) -> TraceFilter:
    from koordebpf.kernel.cgroup.hierarchy import cgroup_id
    from koordebpf.report.record_line import DEFAULT_KINDS, KINDS, TraceFilter

    return TraceFilter(
        pods,
        tuple(cgroup_id(path) for path in cgroups),
        KINDS if "all" in kinds else kinds or DEFAULT_KINDS,
        int(min_ms * 1_000_000),
        once="memstall" not in kinds,
    )


def _follow(watch: NodeWatch, asked: TraceOptions, as_json: bool) -> None:
    from koordebpf.tools.trace.follow import follow

    _print(follow(watch, asked), as_json, has_records=asked.records)
    _print_losses(watch)


def _print(items: Iterable[TraceOutput], as_json: bool, *, has_records: bool) -> None:
    from koordebpf.report.record_line import HEADER
    from koordebpf.tools.trace.output import render_json, render_text

    if has_records and not as_json:
        echo(HEADER)
    for item in items:
        if as_json:
            echo_json(render_json(item))
        else:
            echo(render_text(item))


def _print_losses(watch: NodeWatch) -> None:
    from koordebpf.report.record_line import losses

    for sentence in losses(watch.totals(), watch.undecodable):
        echo(sentence, err=True)
