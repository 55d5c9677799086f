"""The page of `koordebpf top` as one value, and its lines for people. 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.printable import printable
from koordebpf.report.pages.ledger import ledger_lines
from koordebpf.report.trace.record_line import WIDTH, shortened
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
    is_mostly_kernel,
)
from koordebpf.state.view import PodView
from koordebpf.units import NS_PER_S, format_bytes, format_ns

Level = Literal["pod", "container", "cgroup"]
Sort = Literal["stall", "usage", "growth", "ttt", "name"]
LEVELS: tuple[Level, ...] = ("pod", "container", "cgroup")
Style = Literal["", "bold", "red", "dim"]

KEYS: Mapping[str, Sort] = {"s": "stall", "u": "usage", "g": "growth", "t": "ttt", "n": "name"}
KEY_LINE = "sort: (s)tall (u)sage (g)rowth (t)ime left (n)ame   le(v)el   (l)edger   (q)uit"

_NAME = 24
_SLOW_PERCENT = 1.0  # a hundredth of the time: 10 ms of each second
_SHORT_QOS = {"BestEffort": "be", "Burstable": "burst", "Guaranteed": "guar"}


class Choice(msgspec.Struct, frozen=True):
    """What a reader wants to see."""

    sort: Sort = "usage"
    level: Level = "pod"
    ledger: bool = False
    stop: bool = False


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
    quality: SignalQuality
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


def pressed(choice: Choice, key: str) -> Choice:
    """Return what is to be seen after a key; one that means nothing changes nothing."""
    match key:
        case "q" | "\x03" | "\x04":
            return msgspec.structs.replace(choice, stop=True)
        case "l":
            return msgspec.structs.replace(choice, ledger=not choice.ledger)
        case "v":
            level = LEVELS[(LEVELS.index(choice.level) + 1) % len(LEVELS)]
            return msgspec.structs.replace(choice, level=level, ledger=False)
    return msgspec.structs.replace(choice, sort=KEYS[key], ledger=False) if key in KEYS else choice


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


def page_lines(page: TopPage, choice: Choice, height: int | None = None) -> list[tuple[str, Style]]:
    """Return the page as lines of at most 80 columns with their style; `height`: no more lines than that."""
    lines: list[tuple[str, Style]] = [(line, "") for line in _head(page)]
    if choice.ledger:
        body: list[tuple[str, Style]] = [
            (line, "" if at else "bold")
            for at, line in enumerate(ledger_lines(page.ledger) if page.ledger else ["no ledger is kept here"])
        ]
        lines += body
    else:
        lines.append((_columns(page.level), "bold"))
        lines += [(_row(row), _style(row)) for row in page.rows]
        if not page.rows:
            lines.append((f"no {page.level} is known", "dim"))
    return [(printable(line)[:WIDTH], style) for line, style in lines[:height]]


def time_text(left: TimeTo | None) -> str:
    """Return the point and the interval in 11 columns: `48s 40s–60s`; ∞: it may never be."""
    if left is None:
        return "-"
    if left.point_ns <= 0:
        return "now"
    high = "∞" if left.high_ns is None else _span(left.high_ns)
    return f"{_span(left.point_ns)} {_span(left.low_ns)}–{high}"


def _head(page: TopPage) -> list[str]:
    node, forecast = page.node, page.forecast
    percent = node.known_used_bytes * 100 // page.capacity_bytes if page.capacity_bytes else 0
    first = f"node {format_bytes(node.known_used_bytes)} of {format_bytes(page.capacity_bytes)} ({percent} %)"
    if node.growth_bytes_per_s is not None:
        growth = round(node.growth_bytes_per_s)
        first += f", {'grows' if growth >= 0 else 'shrinks'} {_bytes(abs(growth))}/s"
    if page.threshold_bytes is not None:
        first += f", evicts above {format_bytes(page.threshold_bytes)}"
    times = []
    if forecast and forecast.threshold:
        times.append(f"evicts {_in(forecast.threshold)}")
    if forecast and forecast.oom:
        times.append(f"full {_in(forecast.oom)}")
    stalls = []
    if node.stall:
        stalls.append(f"stalled {format_ns(node.stall.global_ns)} in {format_ns(node.stall.window_ns)}")
    if node.psi_some:
        full = f" full {node.psi_full.avg10:.1f}" if node.psi_full else ""
        stalls.append(f"PSI some {node.psi_some.avg10:.1f}{full} %")
    elif node.shares:
        stalls.append(f"PSI some ~{node.shares.some.avg10:.1f} %")
    footer = page.quality.short + (", ~ worked out from them" if any(_is_derived(row) for row in page.rows) else "")
    footer += (
        ", K: mostly kernel memory"
        if any(is_mostly_kernel(row.kernel_bytes, row.used_bytes) for row in page.rows)
        else ""
    )
    lines = [first, " · ".join(times) or "does not fill up", " · ".join(stalls) or "no stall"]
    if cpu := page.cpu:
        be, limit, used = (
            f"{each / 1000:.2f}" for each in (cpu.be_used_millicpu, cpu.be_limit_millicpu, cpu.used_millicpu)
        )
        lines.append(f"CPUs: best-effort {be} of at most {limit}, node {used} of {cpu.online}")
    return [*lines, footer]


def _in(left: TimeTo) -> str:
    return f"in {time_text(left)}" if left.point_ns > 0 else "now"


def _columns(level: Level) -> str:
    return (
        f"{level.upper():<{_NAME}} {'QOS':<5} {'USED':>8} {'GROWTH/s':>8} {'SOME%':>6} {'FULL%':>6} {'BY':<5} "
        f"{'OOM IN':>11}"
    )


def _row(row: TopRow) -> str:
    shares = row.shares
    mark = "~" if shares and shares.derived else ""
    at_least = "≥" if shares and shares.some_at_most else mark
    some = f"{at_least}{shares.some.avg10:.1f}" if shares and shares.some.avg10 >= 0.05 else "·"
    full = "-" if shares and shares.full is None else "·"
    if shares and shares.full and shares.full.avg10 >= 0.05:
        full = f"{mark}{shares.full.avg10:.1f}"
    return (
        f"{shortened(row.name, _NAME):<{_NAME}} {row.qos:<5} {used_text(row):>8} {growth_text(row):>8} "
        f"{some:>6} {full:>6} {blamed(row):<5} {time_text(row.full_in):>11}"
    )


def used_text(row: TopRow) -> str:
    """Return what a row uses, in 8 columns; with K most of it is the kernel's."""
    return ("K" if is_mostly_kernel(row.kernel_bytes, row.used_bytes) else "") + _bytes(row.used_bytes)


def growth_text(row: TopRow) -> str:
    """Return what it grows by in a second, in 8 columns."""
    return _bytes(None if row.growth_bytes_per_s is None else round(row.growth_bytes_per_s))


def blamed(row: TopRow) -> str:
    """Return whose shortage made most of it wait: `node`, `limit`, or nothing where it did not wait."""
    if not row.global_stall_ns and not row.limit_stall_ns:
        return ""
    return "node" if row.global_stall_ns >= row.limit_stall_ns else "limit"


def _style(row: TopRow) -> Style:
    return "red" if row.shares and row.shares.some.avg10 >= _SLOW_PERCENT else ""


def _is_derived(row: TopRow) -> bool:
    return row.shares is not None and row.shares.derived


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


def _bytes(n: int | None) -> str:
    return "-" if n is None else f"{'-' * (n < 0)}{format_bytes(abs(n))}".replace(" ", "")


def _span(ns: int) -> str:
    # Two digits and a unit: an estimate has no more.
    for unit, unit_ns in (("s", NS_PER_S), ("m", 60 * NS_PER_S), ("h", 3600 * NS_PER_S)):
        if round(ns / unit_ns) < 100:
            return f"{round(ns / unit_ns)}{unit}"
    return f"{round(ns / (86_400 * NS_PER_S))}d"


def cut(page: TopPage, most_rows: int | None) -> TopPage:
    """Return the page with its first rows alone; None: all."""
    return page if most_rows is None else msgspec.structs.replace(page, rows=page.rows[:most_rows])


def top_schema() -> dict[str, Any]:
    """Return the JSON Schema of a page of `top --json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(TopPage)}
