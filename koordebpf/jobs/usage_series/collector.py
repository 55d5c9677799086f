"""Measures usage once a second and appends it to the node's series, under koordlet's kinds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone, KernelFileError, KernelProblem, SupportError
from koordebpf.jobs.usage_series.cpu import CpuCounters, cpu_mounts, open_cpu
from koordebpf.jobs.usage_series.groups import GroupKeys, InTurn, Samples, UsageGroup, UsageGroups, system_samples
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, CgroupMemoryStat, ControllerMount, find_controllers
from koordebpf.kernel.cgroup.tables import numa_held
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.cpu_topology import SYSFS, CpuTopologyFiles
from koordebpf.kernel.proc.cpu_usage import NodeCpuTime
from koordebpf.kernel.proc.meminfo import Meminfo, NumaMeminfo
from koordebpf.runner.context import NodeContext
from koordebpf.state.series.kinds import (
    BE_CPU,
    NODE_CPU,
    NODE_MEMORY,
    NODE_MEMORY_WITH_PAGE_CACHE,
    NODE_NUMA_CPU,
    NODE_NUMA_MEMORY,
)
from koordebpf.state.series.store import EVERY_NS, NodeSeries
from koordebpf.state.stalls.sums import ScanSums, cgroup_used_bytes
from koordebpf.units import NS_PER_S

# Why 20 s: koordlet forgets a counter that was not read for twenty of its intervals.
LONGEST_NS = 20 * NS_PER_S
OUTDATED_NS = 10 * NS_PER_S  # koordlet's collect-sys-metric-outdated-interval
# Why 32: 330 containers are read within eleven seconds, at 15 µs each.
_FILES_A_PASS = 32
log = logging.getLogger(__name__)
# Why 16: 110 pods are read within seven seconds, at 20 µs each.
_PODS_A_PASS = 16
_WHOLE = -1  # key of all CPUs together; a CPU's is its number
_CPU, _MEMORY, _CACHED, _THROTTLED = range(4)  # of GroupKeys


class CounterRates:
    """Rates of counters that only grow. The first value of a key has none.

    A counter that went back gets no sample. Once it may be the kernel's: what a CPU counted is added up while it is
    read. The next rate is then from the value before. Twice in a row it was started again, and so is its rate.

    Attributes:
        went_back: how often a counter went back.
        too_old: how often the value before was more than `LONGEST_NS` old, as after a suspend.
    """

    def __init__(self) -> None:
        self.went_back = 0
        self.too_old = 0
        self._last: dict[int, tuple[int, int]] = {}  # time and value
        self._fell: set[int] = set()

    def push(self, t_ns: int, values: Mapping[int, int]) -> dict[int, float]:
        """Take values that were all read at `t_ns`; return the growth a nanosecond of those that have one."""
        rates: dict[int, float] = {}
        last = self._last
        for key, value in values.items():
            before = last.get(key)
            if before is None:
                last[key] = (t_ns, value)
                continue
            since_ns, since = t_ns - before[0], value - before[1]
            if since < 0:
                self._back(key, t_ns, value)
            elif since_ns > LONGEST_NS:
                self.too_old += 1
                last[key] = (t_ns, value)
            elif since_ns > 0:
                last[key] = (t_ns, value)
                rates[key] = since / since_ns
        if self._fell:
            self._fell -= rates.keys()
        return rates

    def _back(self, key: int, t_ns: int, value: int) -> None:
        self.went_back += 1
        if key in self._fell:
            self._fell.discard(key)
            self._last[key] = (t_ns, value)
        else:
            self._fell.add(key)

    def keep_only(self, keys: Collection[int]) -> None:
        """Forget every key that is not among these."""
        for key in self._last.keys() - set(keys):
            del self._last[key]
            self._fell.discard(key)


class ThrottledRatios:
    """Periods in which a cgroup was throttled, per period, since it was read last: 0 while there is no new period.

    A cgroup without a quota has no periods, and no ratio either.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}  # periods, and those of them in which it was throttled

    def push(self, counts: Mapping[int, tuple[int, int]]) -> dict[int, float]:
        """Take periods and throttled periods since the cgroup was made; return the ratios of those that have one."""
        ratios: dict[int, float] = {}
        last = self._last
        for key, now in counts.items():
            before = last.get(key)
            if before == now:
                if now[0]:
                    ratios[key] = 0.0
                continue
            last[key] = now
            if before is not None:
                periods, throttled = now[0] - before[0], now[1] - before[1]
                if periods > 0 and throttled >= 0:
                    ratios[key] = throttled / periods
        return ratios

    def keep_only(self, keys: Collection[int]) -> None:
        """Forget every key that is not among these."""
        for key in self._last.keys() - set(keys):
            del self._last[key]


def open_job(node: NodeContext) -> UsageCollector:
    """Return the collector. Reports and predictions are worked out of what it appends."""
    measuring = node.measuring
    scope = measuring.watch.scope
    memory = ControllerMount(scope.hierarchy.version, scope.hierarchy.mount_point)
    collector = UsageCollector(
        scope,
        measuring.watch.index,
        measuring.collector,
        cpu_mounts(find_controllers(), memory),
        lambda: measuring.known.host_applications,
        with_page_cache=node.config.usage.page_cache,
    )
    log.info("usage of pods and containers is measured by %s", collector.counters.how)
    return collector


class GroupMemory:
    """`held`: anonymous and unevictable memory by cgroup id; `cached`: that with page cache, where it is asked for.

    Of an application the latter is all that is charged to it, as in koordlet.

    Attributes:
        with_page_cache: whether it is asked for.
    """

    def __init__(self, scope: NodeScope, collector: MemoryCollector, *, with_page_cache: bool) -> None:
        self.held: dict[int, int] = {}
        self.cached: dict[int, int] = {}
        self._collector = collector
        self.with_page_cache = with_page_cache
        self._groups: Mapping[int, UsageGroup] = {}
        self._files = None if collector.can_scan else _ContainerFiles(scope)
        self._rows: list[tuple[int, range]] = []
        self._seen: tuple[int, int] = (-1, 0)  # the measurement that was taken over, and when
        self._sums: ScanSums | None = None
        self._layout: object = None

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Look for these, by cgroup id, and no others."""
        self._groups = groups
        self._layout = None
        if self._files is not None:
            self._files.watch(groups)

    def refresh(self, now_ns: int) -> bool:
        """Take over the last full measurement; return whether it is not older than `OUTDATED_NS`."""
        taken, sums = self._collector.sums
        if sums is None:
            return False
        if taken != self._seen[0]:
            self._seen = taken, now_ns
        if sums is not self._sums or sums.layout is not self._layout:
            self._copy(sums)
        if self._files is not None:
            self._read_containers(self._files)
        return now_ns - self._seen[1] <= OUTDATED_NS

    def _copy(self, sums: ScanSums) -> None:
        if sums.layout is not self._layout:
            self._rows = [(group, rows) for group in self._groups if (rows := sums.rows_of(group)) is not None]
        self._sums, self._layout = sums, sums.layout
        self.held = self._summed(sums.held_bytes())
        if self.with_page_cache:
            self.cached = self._summed(sums.held_bytes(page_cache=True))
            for group, its in self._groups.items():
                if its.kind == "host_application" and (usage := sums.usage_bytes(group)) is not None:
                    self.cached[group] = usage

    def _summed(self, column: list[int]) -> dict[int, int]:
        return {
            group: column[rows.start] if rows.stop - rows.start == 1 else sum(column[rows.start : rows.stop])
            for group, rows in self._rows
        }

    def _read_containers(self, files: _ContainerFiles) -> None:
        for group, stat in files.read():
            held = stat.inactive_anon_bytes + stat.active_anon_bytes + stat.unevictable_bytes
            self.held[group] = held
            if self.with_page_cache:
                is_whole = self._groups[group].kind == "host_application"
                file = stat.inactive_file_bytes + stat.active_file_bytes
                self.cached[group] = stat.usage_bytes if is_whole else held + file

    def close(self) -> None:
        """Close every fd."""
        if self._files is not None:
            self._files.close()


class _ContainerFiles:
    """memory.stat of containers and applications, some in turn. What was read stays until its next turn."""

    def __init__(self, scope: NodeScope) -> None:
        self._hierarchy = scope.hierarchy
        self._files: dict[int, CgroupMemory] = {}
        self._turn = InTurn(_FILES_A_PASS)
        self._last: dict[int, CgroupMemoryStat] = {}

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        wanted = {group for group, its in groups.items() if its.kind in ("container", "host_application")}
        for group in self._files.keys() - wanted:
            self._files.pop(group).close()
            self._last.pop(group, None)
        for group in wanted - self._files.keys():
            path = self._hierarchy.mount_point / groups[group].path
            self._files[group] = CgroupMemory(path, self._hierarchy.version)

    def read(self) -> Iterator[tuple[int, CgroupMemoryStat]]:
        for group in self._turn.next(self._files):
            files = self._files[group]
            try:
                self._last[group] = files.read()
            except KernelProblem:
                files.close()
                self._last.pop(group, None)
        return iter(self._last.items())

    def close(self) -> None:
        for each in self._files.values():
            each.close()
        self._files.clear()


class NodeUse(msgspec.Struct, frozen=True):
    """CPU in cores, memory in bytes; None: not known, as a rate at first. NUMA nodes by number."""

    cpu: float | None = None
    held_bytes: int | None = None
    cached_bytes: int | None = None
    numa_cpu: Mapping[int, float] = {}
    numa_held_bytes: Mapping[int, int] = {}
    numa_rest_bytes: Mapping[int, float] = {}  # less what pods hold there; none: not known


class MachineUse(Closing):
    """Reads /proc/stat, /proc/meminfo and meminfo of the NUMA nodes, whose errors leave out only what they are of.

    Where there is one NUMA node its CPU time is the machine's, and CPUs are not read one by one.
    """

    def __init__(self, proc: Path = Path("/proc"), sysfs: Path = SYSFS) -> None:
        """Open the files.

        Raises:  SupportError: no procfs.
        """
        self.problem = ""  # of the NUMA nodes; "": none
        self._stat = NodeCpuTime(proc / "stat")
        self._meminfo = Meminfo(proc / "meminfo")
        self._numa = NumaMeminfo(sysfs)
        self._topology = CpuTopologyFiles(sysfs) if len(self.numa_nodes) > 1 else None
        self._rates = CounterRates()

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """Their numbers."""
        return self._numa.nodes

    def read(self, t_ns: int) -> NodeUse:
        """Return what is used now; CPU since the call before.

        Raises:  KernelFileError: /proc/stat or /proc/meminfo is garbage.
        """
        memory = self._meminfo.read()
        if self._topology is None:
            rates = self._rates.push(t_ns, {_WHOLE: self._stat.used_ns()})
        else:
            whole, each = self._stat.used_ns_by_cpu()
            self._rates.keep_only([_WHOLE, *each])  # a CPU that was offline begins again
            rates = self._rates.push(t_ns, {_WHOLE: whole, **each})
        cpu = rates.pop(_WHOLE, None)
        numa_cpu, numa_held = self._numa_nodes(cpu, rates)
        return NodeUse(cpu, memory.used_bytes, memory.mem_total_bytes - memory.mem_free_bytes, numa_cpu, numa_held)

    def _numa_nodes(self, cpu: float | None, rates: Mapping[int, float]) -> tuple[dict[int, float], dict[int, int]]:
        try:
            held = self._numa.used_bytes()
            if self._topology is None:
                return ({} if cpu is None else dict.fromkeys(self._numa.nodes, cpu)), held
            by_node: dict[int, float] = {}
            for each in self._topology.read().online:
                if (rate := rates.get(each.cpu)) is not None:
                    by_node[each.numa_node] = by_node.get(each.numa_node, 0.0) + rate
        except (KernelFileError, SupportError, OSError) as error:
            if self.problem != str(error):
                self.problem = str(error)
                log.warning("NUMA nodes are not measured: %s", error)
            return {}, {}
        self.problem = ""
        return by_node, held

    def close(self) -> None:
        """Close every fd."""
        for each in (self._stat, self._meminfo, self._numa, self._topology):
            if each is not None:
                each.close()


class PodsByNuma:
    """What pods hold of each NUMA node's memory, without page cache. Of several nodes, pods are read in turn.

    Args:
        scope: the node.
        nodes: their numbers.
    """

    def __init__(self, scope: NodeScope, nodes: tuple[int, ...]) -> None:
        self._hierarchy = scope.hierarchy
        self._nodes = nodes
        self._paths: dict[int, str] = {}
        self._turn = InTurn(_PODS_A_PASS)
        self._held: dict[int, dict[int, int]] = {}

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Watch the pods among these, and no others."""
        self._paths = {group: its.path for group, its in groups.items() if its.kind == "pod"}
        for group in self._held.keys() - self._paths.keys():
            del self._held[group]

    def read(self, held: Mapping[int, int]) -> dict[int, int] | None:
        """Return it by node; None: not known yet.

        Args:
            held: by cgroup id, which is all that is needed where there is one node.
        """
        if len(self._nodes) == 1:
            return {self._nodes[0]: sum(held.get(group, 0) for group in self._paths)}
        for group in self._turn.next(self._paths):
            self._read(group)
        if self._held.keys() != self._paths.keys():
            return None
        return {node: sum(each.get(node, 0) for each in self._held.values()) for node in self._nodes}

    def _read(self, group: int) -> None:
        hierarchy = self._hierarchy
        try:
            self._held[group] = numa_held(hierarchy.mount_point / self._paths[group], hierarchy.version)
        except (CgroupGone, OSError):
            self._held[group] = {}


class WholeNode(Closing):
    """The machine, or the cgroup that is the node: its CPU is one of the pass's, its memory in the last scan.

    Args:
        scope: the node.
        memory: has the last scan.
    """

    def __init__(self, scope: NodeScope, memory: MemoryCollector) -> None:
        self._root_id = scope.root_id
        self._memory = memory
        self._machine = MachineUse() if scope.kind == "machine" else None
        self._pods = PodsByNuma(scope, self._machine.numa_nodes) if self._machine is not None else None

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Watch the pods among these."""
        if self._pods is not None:
            self._pods.watch(groups)

    def read(self, t_ns: int, cpu: Mapping[int, float], held: Mapping[int, int]) -> NodeUse:
        """Return what is used now.

        Args:
            t_ns: CLOCK_MONOTONIC.
            cpu: by cgroup id, in cores.
            held: by cgroup id, memory without page cache.
        Raises:  KernelFileError: /proc/stat or /proc/meminfo is garbage.
        """
        if self._machine is None or self._pods is None:
            return self._cgroup(cpu.get(self._root_id))
        use, pods = self._machine.read(t_ns), self._pods.read(held)
        if pods is None:
            return use
        rest = {node: whole - pods.get(node, 0) for node, whole in use.numa_held_bytes.items()}
        return replace(use, numa_rest_bytes=rest)

    def _cgroup(self, cpu: float | None) -> NodeUse:
        _, sums = self._memory.sums
        memory = None if sums is None else sums.all(self._root_id)
        if memory is None:
            return NodeUse(cpu)
        return NodeUse(cpu, cgroup_used_bytes(memory), memory.usage_bytes)

    def close(self) -> None:
        """Close every fd."""
        if self._machine is not None:
            self._machine.close()


class UsageCollector:
    """Node, pods, containers, host applications, best-effort directory and the rest, the system.

    Nothing is recorded of a cgroup before its CPU time was read twice, as in koordlet.

    Source:  koordinator pkg/koordlet/metricsadvisor/collectors: noderesource, beresource, podresource, podthrottled,
             sysresource, pagecache, hostapplication.
    Cost:    docs/colocation/usage.md.
    """

    name = "usage of pods and containers"
    # Why not 1 s: a collector is asked up to a tenth early, and the store drops what comes 50 ms early.
    period_ns = EVERY_NS * 106 // 100
    # For so many times as long as a pass took there is no other. Why 100: who makes ten thousand cgroups in a container
    # of its own takes one percent of a core by that, not three.
    rests = 100

    def __init__(
        self,
        scope: NodeScope,
        index: CgroupIndex,
        memory: MemoryCollector,
        mounts: Sequence[ControllerMount],
        host_applications: Callable[[], Mapping[str, str]],
        *,
        with_page_cache: bool = False,
    ) -> None:
        """Open the pass, or files in its place.

        Args:
            scope: the node.
            index: its cgroups.
            memory: whose last measurement has the memory of all of them.
            mounts: as `cpu_mounts`.
            host_applications: gives directory below the node's root → name.
            with_page_cache: whether memory with page cache is recorded too.
        Raises:  SupportError: no procfs.
        """
        self._host_applications = host_applications
        self._node = WholeNode(scope, memory)
        self.groups = UsageGroups(scope, index)
        self.counters: CpuCounters = open_cpu(mounts, scope.node_path)
        self._memory = GroupMemory(scope, memory, with_page_cache=with_page_cache)
        self._rates = CounterRates()
        self._ratios = ThrottledRatios()
        self._keys = GroupKeys({})
        self._latest: dict[int, tuple[int, float]] = {}  # when, and cores
        self._dropped = 0
        self._rests_until_ns = 0

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Measure now, and append a sample to each series."""
        if now_ns < self._rests_until_ns:
            return
        if self.groups.refresh(self._host_applications()):
            self._watch()
        reading = self.counters.read()
        t_ns = reading.t_ns
        self._rests_until_ns = t_ns + self.rests * reading.took_ns
        rates = self._rates.push(t_ns, reading.usage_ns)
        self._report_dropped()
        has_memory = self._memory.refresh(t_ns)
        current = self._current(t_ns, rates)
        samples: Samples = {}
        self._keys.fill(samples, _CPU, rates)
        self._keys.fill(samples, _THROTTLED, self._ratios.push(reading.throttling))
        if has_memory:
            held, cached = self._memory.held, self._memory.cached
            self._keys.fill(samples, _MEMORY, held, current)
            if cached:
                self._keys.fill(samples, _CACHED, cached, current)
        node = self._node.read(t_ns, current, self._memory.held)
        samples |= _node_samples(node, with_page_cache=self._memory.with_page_cache)
        samples |= self._system(node, current, has_memory=has_memory)
        samples |= self._best_effort(current)
        into.append_round(t_ns, samples)

    def _watch(self) -> None:
        groups = self.groups.by_id
        self.counters.watch(groups)
        self._memory.watch(groups)
        self._node.watch(groups)
        self._rates.keep_only(groups)
        self._ratios.keep_only(groups)
        for group in self._latest.keys() - groups.keys():
            del self._latest[group]
        self._keys = GroupKeys({group: (its.kind, its.name) for group, its in groups.items()})

    # Where they are read in turn, the last rate of each stands for now.
    def _current(self, t_ns: int, rates: Mapping[int, float]) -> Mapping[int, float]:
        if self.counters.is_whole:
            return rates
        self._latest.update({group: (t_ns, rate) for group, rate in rates.items()})
        return {group: rate for group, (at_ns, rate) in self._latest.items() if t_ns - at_ns <= OUTDATED_NS}

    def _system(self, node: NodeUse, current: Mapping[int, float], *, has_memory: bool) -> Samples:
        cpu = held = 0.0
        for group in self.groups.parts:
            cpu += current.get(group, 0.0)
            held += self._memory.held.get(group, 0)
        held_bytes, numa_rest = (node.held_bytes, node.numa_rest_bytes) if has_memory else (None, {})
        return system_samples(node.cpu, held_bytes, (cpu, held), node.numa_cpu, numa_rest)

    # Its real limit and its request are measured with suppression, which writes them, and its usage too.
    def _best_effort(self, current: Mapping[int, float]) -> Samples:
        used = None if self.groups.best_effort is None else current.get(self.groups.best_effort)
        return {} if used is None else {BE_CPU: used}

    def _report_dropped(self) -> None:
        dropped = self._rates.went_back + self._rates.too_old
        if dropped != self._dropped:
            log.info(
                "%d CPU counters went back or were not read for long, %d since the start: no sample of them",
                dropped - self._dropped,
                dropped,
            )
            self._dropped = dropped

    def close(self) -> None:
        """Close everything."""
        self.counters.close()
        self._memory.close()
        self._node.close()


def _node_samples(node: NodeUse, *, with_page_cache: bool) -> Samples:
    samples: Samples = {}
    cached = node.cached_bytes if with_page_cache else None
    for kind, value in ((NODE_CPU, node.cpu), (NODE_MEMORY, node.held_bytes), (NODE_MEMORY_WITH_PAGE_CACHE, cached)):
        if value is not None:
            samples[kind,] = value
    samples |= {(NODE_NUMA_CPU, str(number)): cpu for number, cpu in node.numa_cpu.items()}
    samples |= {(NODE_NUMA_MEMORY, str(number)): held for number, held in node.numa_held_bytes.items()}
    return samples
