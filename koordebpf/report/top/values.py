"""The page of `koordebpf top` as one value: rows of pods, containers or cgroups, and the node above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.report.top.choice import Level, Sort
from koordebpf.state.cpu.best_effort import be_limit_millicpu
from koordebpf.state.cpu.measured import CpuMeasured
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
)
from koordebpf.state.view import PodView
from koordebpf.units import NS_PER_S

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
