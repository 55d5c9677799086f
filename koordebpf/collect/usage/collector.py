"""Measures usage once a second and appends it to the node's series, under koordlet's kinds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.scope import NodeScope
from koordebpf.collect.usage.cpu import CpuCounters, open_cpu
from koordebpf.collect.usage.groups import UsageGroups
from koordebpf.collect.usage.memory import OUTDATED_NS, GroupMemory
from koordebpf.collect.usage.node import NodeUse, WholeNode
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.state.series.kinds import (
    BE_CPU,
    NODE_CPU,
    NODE_MEMORY,
    NODE_MEMORY_WITH_PAGE_CACHE,
    NODE_NUMA_CPU,
    NODE_NUMA_MEMORY,
)
from koordebpf.state.series.node import EVERY_NS, NodeSeries
from koordebpf.state.usage.counters import CounterRates, ThrottledRatios
from koordebpf.state.usage.samples import GroupKeys, Samples, system_samples

log = logging.getLogger(__name__)

_CPU, _MEMORY, _CACHED, _THROTTLED = range(4)  # of GroupKeys


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
        if self.groups.look(self._host_applications()):
            self._watch()
        reading = self.counters.read()
        t_ns = reading.t_ns
        self._rests_until_ns = t_ns + self.rests * reading.took_ns
        rates = self._rates.push(t_ns, reading.usage_ns)
        self._report_dropped()
        has_memory = self._memory.look(t_ns)
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
