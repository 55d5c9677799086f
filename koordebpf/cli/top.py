"""`koordebpf top`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--pods",
    "files",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Pods as YAML or JSON, for their names, QoS and the threshold.",
)
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="The node is this cgroup.")
@click.option("--sort", type=click.Choice(["used", "growth", "stall"]), default="used", show_default=True)
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds.")
@click.option("--rows", type=click.IntRange(min=1), default=20, show_default=True, help="Pods shown.")
@click.option("--once", is_flag=True, help="Print one page and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a page; with --once, one.")
@click.option("--frame", "as_frame", is_flag=True, help="Print this moment as a frame for `koordebpf plan`, and end.")
def top(
    files: tuple[Path, ...],
    node_cgroup: Path | None,
    sort: str,
    interval: float,
    rows: int,
    once: bool,
    as_json: bool,
    as_frame: bool,
) -> None:
    """Show pods by memory, growth and stall.

    USED is anon and unevictable memory, what an eviction gives back; CACHE the page cache, what the kernel gives back
    by itself. STALL is the time tasks of the pod waited for reclaim in the last 10 s because the node was short, LIMIT
    because their own limit was. A name that begins with ? is a pod cgroup that no source knows a pod for.

    \b
    Examples:
      koordebpf top --pods pods.yaml --sort growth
      koordebpf top --once --json
      koordebpf top --pods pods.yaml --frame | koordebpf plan -
    """
    import msgspec
    from rich.console import Console
    from rich.live import Live

    from koordebpf.agent.config import FEATURE_GATES
    from koordebpf.agent.frames import frame_of
    from koordebpf.agent.scope import open_scope
    from koordebpf.agent.top import looks
    from koordebpf.agent.watch import NodeWatch
    from koordebpf.kernel.cgroupfs import find_memory_hierarchy
    from koordebpf.kube.file import FileSource
    from koordebpf.report.top import top_page, top_rows
    from koordebpf.state.frame import encode_frame

    scope = open_scope(find_memory_hierarchy(), node_cgroup)
    console = Console(highlight=False)
    with NodeWatch(scope, FileSource(files) if files else None, 1 << 62) as watch:
        live = (
            None
            if once or as_json or as_frame
            else Live(console=console, auto_refresh=False, screen=console.is_terminal)
        )
        try:
            for look in looks(watch, interval, once=once or as_frame):
                if as_frame:
                    frame = frame_of(look.cluster, look.measured, feature_gates=FEATURE_GATES, executor="cgroup")
                    click.echo(encode_frame(frame))
                    continue
                found = top_rows(look.view.pods, look.measured, sort)[:rows]
                if as_json:
                    click.echo(msgspec.json.encode({"node": look.measured.node, "pods": found}))
                    continue
                page = top_page(look.measured.node, look.view.capacity_bytes, look.threshold_bytes, found)
                if live is None:
                    console.print(page)
                else:
                    live.start()
                    live.update(page, refresh=True)
        finally:
            if live is not None:
                live.stop()
