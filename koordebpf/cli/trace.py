"""`koordebpf trace`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--pods",
    "files",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Pods as YAML or JSON, for their names; without it a pod shows as its uid.",
)
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="Only this cgroup and what lies below it.")
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
    type=click.Choice(["reclaim", "oom_kill", "cgroup_mkdir", "cgroup_rmdir", "cgroup_rename", "kswapd"]),
    help="Only this kind of event.",
)
@click.option(
    "--min-ms",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Only stalls from this duration on; shorter ones do not leave the kernel.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many events.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def trace(
    files: tuple[Path, ...],
    node_cgroup: Path | None,
    pod: tuple[str, ...],
    cgroup: tuple[Path, ...],
    kind: tuple[str, ...],
    min_ms: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Print reclaim stalls, OOM kills and cgroup births as the kernel tells of them.

    A stall of `node` is the node's own shortage (its LS pods suffer it too); one of `limit` is a limit below the node.
    Lost records are said on standard error at the end. Cost: about 1 µs per reclaim episode in the kernel.

    \b
    Examples:
      koordebpf trace --min-ms 10                     who stalls for long
      koordebpf trace --kind oom_kill --json          for machines
      koordebpf trace --pods pods.yaml --pod default/web-1
    """
    from koordebpf.agent.scope import open_scope
    from koordebpf.agent.trace import follow
    from koordebpf.agent.watch import NodeWatch
    from koordebpf.kernel.cgroupfs import cgroup_id, find_memory_hierarchy
    from koordebpf.kernel.signals import LISTENING
    from koordebpf.kube.file import FileSource
    from koordebpf.report.trace import HEADER, TraceFilter, trace_json, trace_line

    wanted = TraceFilter(pod, tuple(cgroup_id(path) for path in cgroup), kind, int(min_ms * 1_000_000))
    scope = open_scope(find_memory_hierarchy(), node_cgroup)
    with NodeWatch(scope, FileSource(files) if files else None, wanted.min_ns, LISTENING) as watch:
        watch.signals.trace_kswapd(on=not kind or "kswapd" in kind)
        if not as_json:
            click.echo(HEADER)
        for record, owner, wall in follow(watch, wanted, count):
            click.echo(trace_json(record, owner, wall) if as_json else trace_line(record, owner, wall))
        totals = watch.totals()
        if totals and totals.ring_lost:
            click.echo(f"{totals.ring_lost} records were lost: the ring was full", err=True)
