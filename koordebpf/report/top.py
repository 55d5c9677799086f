"""The page of `koordebpf top` as one value: rows of pods, containers or cgroups, and the node above them.

It is made of a round, an agent's last one or a recorded one, or by the command from its own measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from koordebpf.kernel.signals import SignalQuality
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.balance import memory_parts
from koordebpf.state.cpu.measured import CpuMeasured
from koordebpf.state.cpu.view import be_limit_millicpu
from koordebpf.state.measured import (
    LedgerView,
    Measured,
    MemoryParts,
    NodeForecast,
    NodeMeasure,
    StallParts,
    StallShares,
    StrayMeasure,
    TimeTo,
    is_mostly_kernel,
)
from koordebpf.state.view import Frame, NodeView, PodView
from koordebpf.units import NS_PER_S, format_bytes

if TYPE_CHECKING:
    from koordebpf.store.sink import RoundEnded

Level = Literal["pod", "container", "cgroup"]
Sort = Literal["stall", "usage", "growth", "ttt", "name"]
_SHORT_QOS = {"BestEffort": "be", "Burstable": "burst", "Guaranteed": "guar"}


class TopRow(msgspec.Struct, frozen=True):
    """One pod, container or cgroup. None: not measured, or there is none.

    `used_bytes` is what an eviction releases: anon and unevictable memory, and `kernel_bytes`, what the kernel holds
    for it; `usage_bytes` all that is charged, page cache included; `global_stall_ns` and `limit_stall_ns` are of the
    last 10 s, all tasks added up; `shares` as memory.pressure shows them; `full_in` until it is killed for its own
    limit.
    """

    name: str
    qos: str
    priority: int | None
    cgroup_id: int | None
    used_bytes: int | None
    usage_bytes: int | None
    file_bytes: int | None
    limit_bytes: int | None
    growth_bytes_per_s: float | None
    global_stall_ns: int
    limit_stall_ns: int
    shares: StallShares | None
    full_in: TimeTo | None
    kernel_bytes: int | None = None


class TopCpu(msgspec.Struct, frozen=True):
    """Who uses the node's CPUs. `be_limit_millicpu`: the CPUs or the quota that best-effort pods have at most."""

    online: int
    used_millicpu: int
    be_used_millicpu: int
    be_limit_millicpu: int


class TopPage(msgspec.Struct, frozen=True):
    """A page, and a line of `top --json`."""

    schema: Literal["koordebpf.top/v1"]
    time: str  # of the measurement
    level: Level
    sort: Sort
    capacity_bytes: int
    threshold_bytes: int | None  # above it BE pods are evicted; None: no source tells
    node: NodeMeasure
    forecast: NodeForecast | None
    quality: SignalQuality | None  # None: a recording does not say
    rows: tuple[TopRow, ...]
    ledger: LedgerView | None
    cpu: TopCpu | None = None  # None: the node has no CPU cgroup, or no best-effort directory
    memory: Mapping[str, int] | None = None  # in use, by what holds it; None: not known of cgroups outside pods


SORTS: Mapping[Sort, Callable[[TopRow], float]] = {
    "stall": lambda row: row.shares.some.avg10 if row.shares else (row.global_stall_ns + row.limit_stall_ns) / NS_PER_S,
    "usage": lambda row: row.used_bytes or 0,
    "growth": lambda row: row.growth_bytes_per_s or 0,
    "ttt": lambda row: -row.full_in.point_ns if row.full_in else -float("inf"),
    "name": lambda row: 0,
}


def sorted_rows(rows: Sequence[TopRow], sort: Sort) -> list[TopRow]:
    """Return the rows, the largest first, or the soonest; equal ones by name."""
    return sorted(rows, key=lambda row: (-SORTS[sort](row), row.name))


def pod_rows(pods: Sequence[PodView], measured: Measured) -> list[TopRow]:
    """Return a row for each pod, and for each pod cgroup that no source knows a pod for."""
    return [_pod_row(pod) for pod in pods] + [_stray_row(stray) for stray in measured.strays]


def top_cpu(measured: CpuMeasured | None) -> TopCpu | None:
    """Return who uses the CPUs, None where best-effort pods have none of their own to be held to."""
    usage = measured.usage if measured else None
    if measured is None or usage is None or usage.be_used_millicpu is None:
        return None
    limit = be_limit_millicpu(measured)
    if limit is None:
        return None
    return TopCpu(len(measured.topology.online), usage.node_used_millicpu, usage.be_used_millicpu, limit)


def short_qos(koord_qos: str, kube_qos: str | None) -> str:
    """Return Koordinator's class, else Kubernetes' in small letters, in five columns."""
    return koord_qos or _SHORT_QOS.get(kube_qos or "", "")


def _pod_row(pod: PodView) -> TopRow:
    memory = pod.memory
    return TopRow(
        pod.key,
        short_qos(pod.koord_qos, pod.kube_qos),
        pod.priority,
        pod.cgroup_id,
        memory.held_bytes if memory else None,
        memory.usage_bytes if memory else None,
        _file_bytes(memory),
        None,
        pod.growth_bytes_per_s,
        *stalls_of(pod.stall),
        pod.shares,
        pod.forecast,
        memory.kernel_bytes if memory else None,
    )


def _stray_row(stray: StrayMeasure) -> TopRow:
    memory = stray.memory
    return TopRow(
        f"? {stray.path.rpartition('/')[2]}",
        "",
        None,
        stray.cgroup_id,
        memory.held_bytes if memory else None,
        memory.usage_bytes if memory else None,
        _file_bytes(memory),
        None,
        None,
        0,
        0,
        None,
        None,
        memory.kernel_bytes if memory else None,
    )


def stalls_of(stall: StallParts | None) -> tuple[int, int]:
    """Return what was stalled for the node's shortage, and at limits below it. Nanoseconds."""
    if stall is None:
        return 0, 0
    return stall.global_ns + stall.other_global_ns + stall.compaction_ns, stall.limit_ns + stall.other_limit_ns


def _file_bytes(memory: MemoryParts | None) -> int | None:
    return memory.inactive_file_bytes + memory.active_file_bytes if memory else None


def cut(page: TopPage, most_rows: int | None) -> TopPage:
    """Return the page with its first rows alone; None: all."""
    return page if most_rows is None else msgspec.structs.replace(page, rows=page.rows[:most_rows])


def top_schema() -> dict[str, Any]:
    """Return the JSON Schema of a page of `top --json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(TopPage)}


# The page of a round.


def top_of_round(ended: RoundEnded | None) -> TopPage | None:
    """Return the page of an agent's round: pods by usage; None: there was none yet."""
    if ended is None:
        return None
    return top_of_frame(ended.tick.frame, ended.view, ended.signals.quality, "usage")


def top_of_frame(frame: Frame, view: NodeView, quality: SignalQuality | None, sort: Sort) -> TopPage:
    """Return the page of a frame and the view that was made of it. `quality` None: it is not known."""
    strategy = frame.strategyInForce
    return TopPage(
        schema="koordebpf.top/v1",
        time=frame.time or "",
        level="pod",
        sort=sort,
        capacity_bytes=view.capacity_bytes,
        threshold_bytes=threshold_bytes(None if strategy is msgspec.UNSET else strategy, view.capacity_bytes),
        node=frame.measured.node,
        forecast=view.forecast,
        quality=quality,
        rows=tuple(sorted_rows(pod_rows(view.pods, frame.measured), sort)),
        ledger=view.measured.ledger,
        cpu=top_cpu(frame.measured.cpu),
        memory=memory_parts(frame.measured, view.used_bytes),
    )


# Cells of its table as text.


def time_text(left: TimeTo | None) -> str:
    """Return the point and the interval in 11 columns: `48s 40s–60s`; ∞: it may never be."""
    if left is None:
        return "-"
    if left.point_ns <= 0:
        return "now"
    high = "∞" if left.high_ns is None else _span(left.high_ns)
    return f"{_span(left.point_ns)} {_span(left.low_ns)}–{high}"


def used_text(row: TopRow) -> str:
    """Return what a row uses, in 8 columns; with K most of it is the kernel's."""
    return ("K" if is_mostly_kernel(row.kernel_bytes, row.used_bytes) else "") + bytes_text(row.used_bytes)


def growth_text(row: TopRow) -> str:
    """Return what it grows by in a second, in 8 columns."""
    return bytes_text(None if row.growth_bytes_per_s is None else round(row.growth_bytes_per_s))


def blamed(row: TopRow) -> str:
    """Return whose shortage made most of it wait: `node`, `limit`, or nothing where it did not wait."""
    if not row.global_stall_ns and not row.limit_stall_ns:
        return ""
    return "node" if row.global_stall_ns >= row.limit_stall_ns else "limit"


def some_text(row: TopRow) -> str:
    """Return its SOME% in 6 columns: ~ worked out, ≥ a lower bound, · next to nothing."""
    shares = row.shares
    mark = "~" if shares and shares.derived else ""
    at_least = "≥" if shares and shares.some_at_most else mark
    return f"{at_least}{shares.some.avg10:.1f}" if shares and shares.some.avg10 >= 0.05 else "·"


def full_text(row: TopRow) -> str:
    """Return its FULL%, as `some_text`; - is not to be known."""
    shares = row.shares
    mark = "~" if shares and shares.derived else ""
    if shares and shares.full and shares.full.avg10 >= 0.05:
        return f"{mark}{shares.full.avg10:.1f}"
    return "-" if shares and shares.full is None else "·"


def bytes_text(n: int | None) -> str:
    """Return an amount in 8 columns, - for one that is not known."""
    return "-" if n is None else f"{'-' * (n < 0)}{format_bytes(abs(n))}".replace(" ", "")


def _span(ns: int) -> str:
    # Two digits and a unit: an estimate has no more.
    for unit, unit_ns in (("s", NS_PER_S), ("m", 60 * NS_PER_S), ("h", 3600 * NS_PER_S)):
        if round(ns / unit_ns) < 100:
            return f"{round(ns / unit_ns)}{unit}"
    return f"{round(ns / (86_400 * NS_PER_S))}d"
