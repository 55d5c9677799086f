"""Measures one node again and again for a person to look at. Decides and acts on nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import msgspec

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.collect.cluster_view import ClusterView, frame_of, in_force
from koordebpf.collect.cpu.collector import CpuCollector
from koordebpf.collect.history import NodeHistory
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.memory.files import memcg_samples
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import KernelProblem
from koordebpf.events.layout import decode_stall
from koordebpf.events.records import CgroupStall, MemcgSample
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import PressureFile, PressureLine
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.report.record_line import owner_text
from koordebpf.report.top import Level, TopPage, TopRow, pod_rows, short_qos, sorted_rows, stalls_of, top_cpu
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.balance import memory_parts
from koordebpf.state.build import view_of_frame
from koordebpf.state.cpu.measured import CpuMeasured
from koordebpf.state.forecast import GrowthHistory, time_to
from koordebpf.state.measured import LedgerView, Measured, PsiLine, StallShares
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.series.growth import GrowthTable
from koordebpf.state.series.store import NodeSeries, node_series
from koordebpf.state.stalls.shares import ShareTable
from koordebpf.state.stalls.windows import StallWindow
from koordebpf.tools.top.choice import Choice, pressed
from koordebpf.tools.top.page import Around, Trails, shown_rows
from koordebpf.tools.top.screen import Keyboard
from koordebpf.tools.trace.follow import wall_clock_offset_ns, wall_time
from koordebpf.units import NS_PER_MS, NS_PER_S

_GROWTH_NS = 2 * NS_PER_S  # looked back: a person reads once a second


class CgroupTable:
    """Memory, growth and stall of every cgroup below the node, one `sample` after the other.

    Cost:    a scan, and on cgroup v2 one file a row that is shown.
    """

    def __init__(self, watch: NodeWatch, collector: MemoryCollector) -> None:
        self._watch = watch
        self._collector = collector
        self._is_v2 = watch.scope.hierarchy.version == 2
        scope = watch.scope
        self._node_path = scope.path.relative_to(scope.hierarchy.mount_point).as_posix()
        self._samples: dict[int, MemcgSample] = {}
        self._growth: GrowthTable[int] = GrowthTable(window_ns=_GROWTH_NS)
        self._history: GrowthHistory[int] = GrowthHistory(shortest_ns=250 * NS_PER_MS)
        self._grows: dict[int, float | None] = {}
        self._stalls = StallWindow()
        self._shares = ShareTable()
        self._now_ns = 0

    def sample(self, now_ns: int, stalls: Sequence[CgroupStall]) -> None:
        """Measure everything; `stalls` are the backend's sums as they are now."""
        self._now_ns = now_ns
        self._samples = {each.cgroup_id: each for each in memcg_samples(self._watch)}
        self._grows = {
            each.cgroup_id: self._growth.push(each.cgroup_id, now_ns, _kept_bytes(each))
            for each in self._samples.values()
        }
        self._growth.keep_only(self._samples)
        self._history.push(now_ns, {each.cgroup_id: _kept_bytes(each) for each in self._samples.values()})
        self._stalls.push(now_ns, stalls, str)
        self._shares.push(now_ns, stalls, self._collector.task_counts(self._shares.stalled_since(stalls)))

    def rows(self, level: Level, pods: Sequence[PodFacts]) -> list[TopRow]:
        """Return a row for each cgroup of that level as they were sampled last; `pods` tell what QoS theirs have."""
        stalls = self._stalls.rows()
        koord_qos = {each.uid: each.koord_qos for each in pods}
        found = []
        for cgroup_id, sample in self._samples.items():
            owner = self._watch.index.owner(cgroup_id)
            if level == "container" and (owner is None or owner.kind not in (OwnerKind.CONTAINER, OwnerKind.SANDBOX)):
                continue
            limit = sample.max_bytes
            room = None if limit is None else limit - _kept_bytes(sample)
            found.append(
                TopRow(
                    self._name(owner, cgroup_id),
                    short_qos(koord_qos.get(owner.pod_uid or "", ""), owner.kube_qos) if owner else "",
                    None,
                    cgroup_id,
                    _process_bytes(sample) + _kernel_bytes(sample),
                    sample.usage_bytes,
                    sample.inactive_file_bytes + sample.active_file_bytes,
                    limit,
                    self._grows.get(cgroup_id),
                    *stalls_of(stalls.get(str(cgroup_id))),
                    self._shares_of(cgroup_id, owner),
                    None if room is None else time_to(room, self._history.growths(cgroup_id)),
                    _kernel_bytes(sample),
                )
            )
        return found

    def _name(self, owner: Owner | None, cgroup_id: int) -> str:
        if cgroup_id == self._watch.scope.root_id:
            return "the node"
        if owner is None or owner.pod_uid or owner.host_application:
            name = owner_text(owner, cgroup_id)
            if owner is not None and owner.kind in (OwnerKind.CONTAINER, OwnerKind.NESTED) and not owner.container_name:
                return f"{name}[{owner.path.rpartition('/')[2][:12]}]"  # else all of a pod would be called the same
            return name
        return owner.path.removeprefix(f"{self._node_path}/") or "/"

    def _shares_of(self, cgroup_id: int, owner: Owner | None) -> StallShares | None:
        if self._is_v2 and owner is not None:
            try:
                with PressureFile(self._watch.scope.hierarchy.mount_point / owner.path / "memory.pressure") as file:
                    read = file.read()
                return StallShares(_line(read.some), _line(read.full) if read.full else None, derived=False)
            except KernelProblem:
                pass  # psi=0: as on cgroup v1
        return self._shares.shares(cgroup_id, self._now_ns)


def _kernel_bytes(each: MemcgSample) -> int:
    # What is charged and on no list, reclaimable slab included.
    return max(each.usage_bytes - each.inactive_file_bytes - each.active_file_bytes - _process_bytes(each), 0)


def _process_bytes(each: MemcgSample) -> int:
    return each.inactive_anon_bytes + each.active_anon_bytes + each.unevictable_bytes


def _kept_bytes(each: MemcgSample) -> int:
    # What a limit cannot take back from it: usage without the page cache.
    return max(each.usage_bytes - each.inactive_file_bytes - each.active_file_bytes, 0)


def _line(line: PressureLine) -> PsiLine:
    return PsiLine(line.avg10, line.avg60, line.avg300, line.total_us)


class Look(msgspec.Struct, frozen=True):
    """One measurement of the node, and the page that was asked for, with what is shown around it."""

    cluster: ClusterState | None
    measured: Measured
    page: TopPage
    choice: Choice
    around: Around = Around()


def looks(
    watch: NodeWatch,
    interval_s: float,
    choice: Choice,
    keyboard: Keyboard | None = None,
    *,
    once: bool = False,
    hint: str = "",
) -> Iterator[Look]:
    """Yield the node as it is, each `interval_s`, until SIGTERM, SIGINT or q; with `once`, after one interval.

    The first look is not shown: growth and stalls need two. A key is answered at once, out of the same measurement.
    `hint` is what to do where no pod has a name.
    """
    node = _Node(watch, hint)
    keys: list[str] = []
    with Loop() as loop:
        loop.stop_on_signals()
        if watch.source:
            watch.source.start(loop.wake)
        if keyboard and (fd := keyboard.fileno()) is not None:
            loop.watch(fd, lambda: keys.extend(keyboard.read()))
        try:
            node.measure()
            due_ns = time.monotonic_ns()
            while True:
                due_ns = max(due_ns + int(interval_s * NS_PER_S), time.monotonic_ns())
                while not loop.stopping and not keys and time.monotonic_ns() < due_ns:
                    loop.wait(due_ns)
                if loop.stopping:
                    return
                while keys:
                    choice = pressed(choice, keys.pop(0), node.names(choice))
                    if choice.stop:
                        return
                if time.monotonic_ns() >= due_ns or once:
                    node.measure()
                else:
                    due_ns -= int(interval_s * NS_PER_S)
                yield node.sample(choice)
                if once:
                    return
        finally:
            node.close()


class _Shown:
    # What was shown last, and what came before it.
    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._trails = Trails()
        self._now_ns = 0  # of the measurement that is in the trails
        self.look: Look | None = None

    def names(self, choice: Choice) -> list[str]:
        if self.look is None or self.look.choice.level != choice.level:
            return []
        return [placed.row.name for placed in shown_rows(self.look.page, choice, self.look.around)]

    def around(self, rows: Sequence[TopRow], inner: Sequence[TopRow], now_ns: int) -> Around:
        if now_ns != self._now_ns:
            self._now_ns = now_ns
            self._trails.push([*rows, *inner])
        return Around(tuple(inner), self._trails.by_name, hint=self._hint)


class _Node:
    # What one measurement leaves for the next.
    def __init__(self, watch: NodeWatch, hint: str) -> None:
        self._watch = watch
        self._shown = _Shown("" if watch.source else hint)
        self._begin_ns = time.monotonic_ns()
        self._known = ClusterView()
        self._collector = MemoryCollector(watch.scope, watch.signals, watch.index)
        self._history = NodeHistory(watch, self._collector)
        self._table = CgroupTable(watch, self._collector)
        self._cpu: CpuCollector | None = None
        with contextlib.suppress(KernelProblem):
            self._cpu = open_cpu(watch)
        self._series = node_series()
        self._cluster: ClusterState | None = None
        self._measured: Measured | None = None

    def measure(self) -> None:
        watch, now_ns = self._watch, time.monotonic_ns()
        watch.drain()
        self._cluster, is_news = watch.cluster()
        if is_news and self._cluster:
            self._known.learn(self._cluster)
            watch.know_host_applications(self._known.host_applications)
        self._measured = self._history.measure(now_ns, self._known)
        if self._cpu:
            with contextlib.suppress(KernelProblem):
                cpu = sample_cpu(self._cpu, now_ns, watch, self._series)
                self._measured = msgspec.structs.replace(self._measured, cpu=cpu)
        self._table.sample(now_ns, [decode_stall(key, value) for key, value in watch.signals.stalls()])

    def names(self, choice: Choice) -> list[str]:
        return self._shown.names(choice)

    def sample(self, choice: Choice) -> Look:
        assert self._measured is not None  # `measure` came before
        known, measured = self._known, self._measured
        frame = frame_of(self._cluster, measured, feature_gates={}, executor="api")
        view = view_of_frame(in_force(frame, known), facts=known.facts)
        rows = pod_rows(view.pods, measured) if choice.level == "pod" else self._table.rows(choice.level, known.facts)
        page = TopPage(
            schema="koordebpf.top/v1",
            time=wall_time(measured.now_ns, wall_clock_offset_ns()).isoformat(),
            level=choice.level,
            sort=choice.sort,
            capacity_bytes=view.capacity_bytes,
            threshold_bytes=threshold_bytes(known.strategy, view.capacity_bytes),
            node=measured.node,
            forecast=view.forecast,
            quality=self._watch.quality,
            rows=tuple(sorted_rows(rows, choice.sort)),
            ledger=self._ledger(measured.ledger, measured.now_ns),
            cpu=top_cpu(measured.cpu),
            memory=memory_parts(measured, view.used_bytes),
        )
        wants_inner = choice.level == "pod" and (choice.tree or choice.detail is not None)
        inner = sorted_rows(self._table.rows("container", known.facts), choice.sort) if wants_inner else []
        around = self._shown.around(rows, inner, measured.now_ns)
        self._shown.look = Look(self._cluster, measured, page, choice, around)
        return self._shown.look

    # What is shown a second is over the time that was looked at, which at first is shorter than the ledger's window.
    def _ledger(self, ledger: LedgerView | None, now_ns: int) -> LedgerView | None:
        if ledger is None:
            return None
        return msgspec.structs.replace(ledger, window_ns=min(ledger.window_ns, max(now_ns - self._begin_ns, 1)))

    def close(self) -> None:
        self._collector.close()
        if self._cpu:
            self._cpu.close()


def open_cpu(watch: NodeWatch) -> CpuCollector:
    """Return what measures the CPUs of a node.

    Raises:  SupportError: no sysfs or procfs.
    """
    return CpuCollector(find_controllers(), node_path=watch.scope.node_path)


def sample_cpu(cpu: CpuCollector, now_ns: int, watch: NodeWatch, series: NodeSeries) -> CpuMeasured:
    """Return what is known of the CPUs now.

    Raises:  KernelProblem: nothing is, as of a node that is a cgroup of memory alone.
    """
    index = watch.index
    cpu.watch(owner for each in index if (owner := index.owner(each)) is not None)
    return cpu.collect(now_ns, series)
