"""The rows of `koordebpf top`, and the page they are drawn as. 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from koordebpf.state.view import Measured, MemoryParts, NodeMeasure, PodView, StallParts, StrayMeasure
from koordebpf.units import NS_PER_MS, format_bytes, format_ns

_POD_COLUMNS = 28
_SLOW_NS = 100 * NS_PER_MS  # stalled in the window: a tenth of a second is what a person notices


class TopRow(msgspec.Struct, frozen=True):
    """One pod, or a pod's cgroup that no source knows a pod for. None: not measured."""

    pod: str
    qos: str
    priority: int | None
    used_bytes: int | None
    file_bytes: int | None
    growth_bytes_per_s: float | None
    global_stall_ns: int
    limit_stall_ns: int


SORTS: Mapping[str, Callable[[TopRow], float]] = {
    "used": lambda row: row.used_bytes or 0,
    "growth": lambda row: row.growth_bytes_per_s or 0,
    "stall": lambda row: row.global_stall_ns + row.limit_stall_ns,
}


def top_rows(pods: Sequence[PodView], measured: Measured, sort: str) -> list[TopRow]:
    """Return a row for each pod and each stray pod cgroup, the largest first; equal ones by name."""
    rows = [_pod_row(pod) for pod in pods] + [_stray_row(stray) for stray in measured.strays]
    return sorted(rows, key=lambda row: (-SORTS[sort](row), row.pod))


def top_page(node: NodeMeasure, capacity_bytes: int, threshold_bytes: int | None, rows: Sequence[TopRow]) -> Table:
    """Return the page: the node's line as the title, then the rows."""
    table = Table(
        title=_node_line(node, capacity_bytes, threshold_bytes),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("POD", width=_POD_COLUMNS, no_wrap=True)
    table.add_column("QOS", width=5)
    for name, width in (("USED", 9), ("CACHE", 9), ("GROWTH/s", 9), ("STALL", 7), ("LIMIT", 7)):
        table.add_column(name, width=width, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.pod if len(row.pod) <= _POD_COLUMNS else _cut(row.pod),
            row.qos,
            _bytes(row.used_bytes),
            _bytes(row.file_bytes),
            _bytes(None if row.growth_bytes_per_s is None else round(row.growth_bytes_per_s)),
            _stall(row.global_stall_ns),
            _stall(row.limit_stall_ns),
        )
    return table


def _pod_row(pod: PodView) -> TopRow:
    memory, stall = pod.memory, pod.stall
    return TopRow(
        pod.key,
        pod.koord_qos or {"BestEffort": "be", "Burstable": "burst", "Guaranteed": "guar"}.get(pod.kube_qos, ""),
        pod.priority,
        memory.koordinator_used_bytes if memory else None,
        _file_bytes(memory),
        pod.growth_bytes_per_s,
        *_stalls(stall),
    )


def _stray_row(stray: StrayMeasure) -> TopRow:
    memory = stray.memory
    name = stray.path.rpartition("/")[2]
    return TopRow(
        f"? {name}", "", None, memory.koordinator_used_bytes if memory else None, _file_bytes(memory), None, 0, 0
    )


def _file_bytes(memory: MemoryParts | None) -> int | None:
    return memory.inactive_file_bytes + memory.active_file_bytes if memory else None


def _stalls(stall: StallParts | None) -> tuple[int, int]:
    return (stall.global_ns, stall.limit_ns) if stall else (0, 0)


def _node_line(node: NodeMeasure, capacity_bytes: int, threshold_bytes: int | None) -> str:
    percent = node.used_bytes * 100 // capacity_bytes if capacity_bytes else 0
    parts = [f"node {format_bytes(node.used_bytes)} of {format_bytes(capacity_bytes)} ({percent} %)"]
    if threshold_bytes is not None:
        parts.append(f"threshold {format_bytes(threshold_bytes)}")
    if node.stall:
        window = format_ns(node.stall.window_ns)
        parts.append(f"stalled {format_ns(node.stall.global_ns)} in {window}")
    if node.psi_some:
        parts.append(f"psi some {node.psi_some.avg10:.1f} %")
    return " · ".join(parts)


def _bytes(n: int | None) -> str:
    return "-" if n is None else format_bytes(n) if n >= 0 else f"-{format_bytes(-n)}"


def _stall(ns: int) -> Text:
    if not ns:
        return Text("·", style="dim")
    return Text(format_ns(ns).replace(" ", ""), style="bold red" if ns >= _SLOW_NS else "")


def _cut(name: str) -> str:
    # A pod's end tells it apart from its siblings; a stray's beginning says that it is one.
    return name[: _POD_COLUMNS - 1] + "…" if name.startswith("?") else "…" + name[-(_POD_COLUMNS - 1) :]
