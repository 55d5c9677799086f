"""Reads the node's CPUs: which there are, who used how much, and what the best-effort directories may use.

A cgroup that is gone in the middle of it is left out, here and nowhere else. Files are kept open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.attribution.owner import Owner
from koordebpf.collect.cpu.owners import CpuOwners, cpu_owners
from koordebpf.errors import CgroupGone, ConfigError, KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.cpu_topology import SYSFS, CpuTopologyFiles
from koordebpf.kernel.proc.cpu_usage import STAT, CgroupCpu, NodeCpuTime
from koordebpf.kube.sources.cpu_manager import STATE as CPU_MANAGER_STATE
from koordebpf.kube.sources.cpu_manager import CpuManagerFile, CpuManagerState
from koordebpf.slo.pods.cpu_placement import set_apart
from koordebpf.state.cpu.measured import (
    BeCgroup,
    BeQuota,
    CpuManager,
    CpuMeasured,
    CpuUsage,
    HostApplicationCpu,
    MissingDirectory,
    OtherPodsCpu,
    PodCpu,
)
from koordebpf.state.cpu.rates import CpuRates, append_cpu, cpu_window
from koordebpf.state.cpu.view import be_limit_millicpu, be_sets
from koordebpf.state.series.store import NodeSeries
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)
T = TypeVar("T")
_CONTAINER_DEPTH = 2  # below the best-effort directory, as with kubelet
# What another process writes into a single set shows within so many rounds; the writer corrects it. Why 30: koordlet
# writes again after 60 s (resource-force-update-seconds); the sets of 221 directories take 1 ms, so many 0.04 ms.
_ROUNDS = 30
_HIERARCHIES = ("memory", "cpu", "cpuset")  # where pods are found, and where suppression writes
# Their keys among the rates; no cgroup below the node has them.
_NODE, _ISOLATED = "", "/"


class CgroupCpuFiles:
    """Opens the files of a cgroup when they are first read. `path in files`: they are open."""

    def __init__(self, mounts: Mapping[str, ControllerMount]) -> None:
        self.mounts = dict(mounts)  # by controller
        self._files: dict[str, CgroupCpu] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def read(self, path: str, what: Callable[[CgroupCpu], T]) -> T | None:
        """Return what a cgroup's files say; None: it is gone, has no such file, or one of another form."""
        files = self._files.get(path)
        if files is None:
            files = self._files[path] = CgroupCpu(self.mounts, path)
        try:
            return what(files)
        except (SupportError, KernelFileError):
            return None
        except CgroupGone:
            self._files.pop(path).close()
            return None

    def keep_only(self, known: Collection[str]) -> None:
        """Close the files of all other cgroups."""
        for path in self._files.keys() - set(known):
            self._files.pop(path).close()

    def close(self) -> None:
        """Close every fd."""
        for files in self._files.values():
            files.close()
        self._files.clear()


class CpuManagerReader:
    """Reads which CPUs kubelet has pinned: from its file, or from kubelet itself where that cannot be reached."""

    def __init__(self, file: Path, kubelet: Callable[[], CpuManagerState | None] | None) -> None:
        self._file = CpuManagerFile(file)
        self._kubelet = kubelet
        self._problem: str | None = None

    def read(self) -> CpuManager | None:
        """Return its state; None: there is none, or it is malformed, which is logged once."""
        try:
            state = self._file.read()
        except ConfigError as error:
            if str(error) != self._problem:
                log.warning("%s", error)
                self._problem = str(error)
            return None
        self._problem = None
        if state is None and self._kubelet is not None:
            state = self._kubelet()
        return None if state is None else CpuManager(state.policy, state.pinned, state.shared)


class OnlineCpus(Closing):
    """Reads which CPUs are online, and which of them are in no pool, as of `slo.pods.cpu_placement.set_apart`.

    Raises:  SupportError: no sysfs.
    """

    def __init__(self, sysfs: Path = SYSFS, manager: Path = CPU_MANAGER_STATE) -> None:
        self._topology = CpuTopologyFiles(sysfs)
        self._manager = CpuManagerReader(manager, None)

    def read(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return both, ascending.

        Raises:  KernelFileError: garbage.
        Cost:    3 µs where nothing changed, 6 with isolated CPUs.
        """
        topology = self._topology.read()
        state = self._manager.read() if topology.isolated else None
        return topology.cpus, set_apart(topology.isolated, state.shared if state is not None else ())

    def close(self) -> None:
        """Close the list of CPUs."""
        self._topology.close()


class BestEffortSets:
    """Remembers each directory's CPUs. `sets` are those of the last reading, each once."""

    def __init__(self, files: CgroupCpuFiles) -> None:
        self._files = files
        self._tree: tuple[BeCgroup, ...] = ()  # without CPUs
        self._paths: list[str] = []
        self._cgroups: tuple[BeCgroup, ...] = ()  # with those of the last reading
        self.sets: frozenset[tuple[int, ...]] = frozenset()  # of `_cgroups`
        self._cpus: dict[str, tuple[int, ...] | None] = {}
        self._turn = 0

    def watch(self, owners: CpuOwners) -> tuple[str, ...]:
        """Take the directories as they are now; return their paths, the best-effort directory first."""
        self._tree = () if owners.root is None else tuple(self._below(owners.root, owners))
        self._paths = [each.path for each in self._tree]
        self._cgroups = ()
        self._cpus = {path: self._cpus[path] for path in self._paths if path in self._cpus}
        return tuple(self._paths)

    # On v1 a set may hold only what each set below it leaves, so that everything below has to follow. On v2 what lies
    # below a container is the container's own affair.
    def _below(self, root: str, owners: CpuOwners) -> Iterable[BeCgroup]:
        mount = self._files.mounts.get("cpuset")
        deepest = _CONTAINER_DEPTH if mount is None or mount.version == 2 else None
        yield BeCgroup(root, "root")
        for path in sorted(path for path in owners.owned if path.startswith(f"{root}/")):
            depth = path.count("/") - root.count("/")
            if deepest is None or depth <= deepest:
                yield BeCgroup(path, "pod" if depth < _CONTAINER_DEPTH else "container", owners.owned[path].pod_uid)

    def read(self) -> tuple[BeCgroup, ...]:
        """Return the directories with their CPUs: a part of the sets is read in turn, all where one has changed."""
        paths = self._paths
        new = [path for path in paths if path not in self._cpus or path not in self._files]
        share = -(-len(paths) // _ROUNDS)
        due = {*paths[:1], *paths[self._turn : self._turn + share], *new}
        self._turn = self._turn + share if self._turn + share < len(paths) else 0
        is_other = self._read_sets(due)
        if is_other:
            self._read_sets(path for path in paths if path not in due)
        if is_other or new or not self._cgroups:
            self._cgroups = tuple(
                BeCgroup(each.path, each.level, each.uid, self._cpus[each.path])
                for each in self._tree
                if each.path in self._files  # else it is gone
            )
            self.sets = be_sets(self._cgroups)
        return self._cgroups

    # Returns whether one is another than when it was last read.
    def _read_sets(self, paths: Iterable[str]) -> bool:
        is_other = False
        for path in paths:
            cpus = self._files.read(path, CgroupCpu.cpus)
            is_other |= self._cpus.get(path, cpus) != cpus
            self._cpus[path] = cpus
        return is_other


class BurstLook(msgspec.Struct, frozen=True, gc=False):
    """What pods and host applications used in the last moments, those in the best-effort directory and all others."""

    others_millicpu: int
    best_effort_millicpu: int


class CpuPaths(msgspec.Struct, frozen=True):
    """Of files of the machine: /sys/devices/system, /proc/stat and kubelet's cpu_manager_state."""

    sysfs: Path = SYSFS
    stat: Path = STAT
    manager: Path = CPU_MANAGER_STATE


class CpuCollector(Closing):
    """Measures the node's CPUs through kept fds.

    Cost:    9 µs for each pod where `each_pod`; 4 µs for each set of CPUs that is read: a part in turn, all
             where one has changed.
    """

    name = "cpu"
    period_ns = NS_PER_S

    def __init__(
        self,
        mounts: Mapping[str, ControllerMount],
        *,
        node_path: str = "",
        window_ns: int = NS_PER_S,
        burst_window_ns: int | None = None,
        paths: CpuPaths = CpuPaths(),  # noqa: B008 - frozen
        kubelet: Callable[[], CpuManagerState | None] | None = None,
    ) -> None:
        """Open what does not change.

        Args:
            mounts: by controller.
            node_path: of the cgroup that is the node, relative to the mounts; "": the machine.
            window_ns: over which rates are taken. Of the machine, ticks of 10 ms show in one far below a second.
            burst_window_ns: over which bursts of those that are not best-effort are measured; None: they are not.
            paths: of files of the machine.
            kubelet: says what its cpu_manager_state does where that file cannot be reached.
        Raises:  SupportError: no sysfs or procfs.
        """
        self._window_ns = window_ns
        self._topology = CpuTopologyFiles(paths.sysfs)
        self._files = CgroupCpuFiles(mounts)
        self._node_cgroup = CgroupCpu(self._files.mounts, node_path) if node_path else None
        self._stat = NodeCpuTime(paths.stat) if not node_path else None
        self._manager = CpuManagerReader(paths.manager, kubelet)
        self._rates: CpuRates[str] = CpuRates(window_ns)
        self._bursts: CpuRates[str] | None = None if burst_window_ns is None else CpuRates(burst_window_ns)
        self._owners = CpuOwners()
        self._best_effort = BestEffortSets(self._files)

    def watch(self, owners: Iterable[Owner]) -> None:
        """Take the node's cgroups, after some were created, removed or changed their owner."""
        self._owners = now = cpu_owners(owners)
        known = {*self._best_effort.watch(now), *now.pods, *now.applications}
        if now.parent is not None:
            known.add(now.parent)
        self._files.keep_only(known)
        self._rates.keep_only(known | {_NODE, _ISOLATED})
        if self._bursts is not None:
            self._bursts.keep_only(known)

    def sample_burst(self, now_ns: int) -> BurstLook:
        """Return which pods use the CPUs, over the window of bursts; none where it is not set.

        Cost:    2 µs for each host application outside the best-effort directory.
        """
        root, parent = self._owners.root, self._owners.parent
        best_effort = self._burst(root, now_ns) if root is not None else None
        others = self._burst(parent, now_ns) if parent is not None and self._owners.has_others else None
        together = max(others - best_effort, 0) if others is not None and best_effort is not None else 0
        outside = self._owners.outside()
        return BurstLook(together + sum(self._burst(path, now_ns) or 0 for path in outside), best_effort or 0)

    def collect(
        self,
        now_ns: int,
        into: NodeSeries,
        *,
        be_request_millicpu: int | None = None,
        evict_window_ns: int = NS_PER_S,
        each_pod: bool = True,
    ) -> CpuMeasured:
        """Return the node's CPUs as they are now.

        Args:
            now_ns: CLOCK_MONOTONIC.
            into: gets what CPU eviction averages.
            be_request_millicpu: what best-effort pods ask for now, for the averages.
            evict_window_ns: over which CPU eviction averages.
            each_pod: pods one by one, as who evicts for CPU needs it; else only the best-effort directory, and
                what its parent used beside it.
        Raises:  KernelFileError: garbage. CgroupGone: the node's own cgroup was removed.
        """
        topology, manager = self._topology.read(), self._manager.read()
        node_used, on_isolated = self._node_used(now_ns, topology.isolated, manager)
        root, parent = self._owners.root, self._owners.parent
        be_used, be_burst = self._used(root, now_ns, is_be=False) if root is not None else (None, None)
        # Also where it is not asked for: a look takes the two from each other, so that they need the same samples.
        others = self._others(now_ns, be_used, be_burst)
        # Read in the first sampling too, which only begins the rates.
        pods = self._pods(now_ns, None if each_pod else frozenset(self._owners.apart))
        applications = self._applications(now_ns)
        usage = None
        if node_used is not None:
            usage = CpuUsage(
                self._window_ns,
                node_used,
                be_used,
                pods,
                None if each_pod else others,
                applications,
                on_isolated,
            )
        be_cgroups, be_quota = self._best_effort.read(), self._quota()
        measured = CpuMeasured(
            topology=topology,
            usage=usage,
            be_cgroups=be_cgroups,
            be_parent_cpus=None if parent is None else self._files.read(parent, CgroupCpu.cpus),
            be_missing=() if be_cgroups and be_quota is not None else self._missing(),
            be_quota=be_quota,
            manager=manager,
            be_idle=None if root is None else self._files.read(root, CgroupCpu.idle),
        )
        append_cpu(
            into,
            now_ns,
            node_used=node_used,
            be_used=be_used,
            be_request=be_request_millicpu,
            be_limit=be_limit_millicpu(measured, self._best_effort.sets),
        )
        return replace(measured, window=cpu_window(into, now_ns, evict_window_ns))

    def close(self) -> None:
        """Close every fd."""
        self._files.close()
        for kept in (self._topology, self._stat, self._node_cgroup):
            if kept is not None:
                kept.close()

    def _quota(self) -> BeQuota | None:
        root = self._owners.root
        found = None if root is None else self._files.read(root, CgroupCpu.bandwidth)
        return None if found is None else BeQuota(found.quota_us, found.period_us)

    # A directory that no hierarchy has is gone.
    def _missing(self) -> tuple[MissingDirectory, ...]:
        root, mounts = self._owners.root, self._files.mounts
        v1 = {name: mounts[name] for name in _HIERARCHIES if name in mounts and mounts[name].version == 1}
        paths = {} if root is None else {name: mount.mount_point / root for name, mount in v1.items()}
        missing = tuple(MissingDirectory(name, str(path)) for name, path in paths.items() if not path.is_dir())
        return missing if len(missing) < len(paths) else ()

    # Of those paths, None: of all.
    def _pods(self, now_ns: int, paths: Collection[str] | None) -> tuple[PodCpu, ...]:
        return tuple(
            PodCpu(uid, used, is_be, burst)
            for path, (uid, is_be) in self._owners.pods.items()
            if paths is None or path in paths
            for used, burst in [self._used(path, now_ns, is_be=is_be)]
            if used is not None
        )

    def _applications(self, now_ns: int) -> tuple[HostApplicationCpu, ...]:
        return tuple(
            HostApplicationCpu(name, used, is_be, burst)
            for path, (name, is_be) in self._owners.applications.items()
            for used, burst in [self._used(path, now_ns, is_be=is_be)]
            if used is not None
        )

    def _burst(self, path: str, now_ns: int) -> int | None:
        used_ns = self._files.read(path, CgroupCpu.used_ns)
        if used_ns is None or self._bursts is None:
            return None
        return self._bursts.millicpu(path, now_ns, used_ns)

    # Over the window, and over that of bursts, where those of best-effort pods do not matter.
    def _used(self, path: str, now_ns: int, *, is_be: bool) -> tuple[int | None, int | None]:
        used_ns = self._files.read(path, CgroupCpu.used_ns)
        if used_ns is None:
            return None, None
        burst = None if is_be or self._bursts is None else self._bursts.millicpu(path, now_ns, used_ns)
        return self._rates.millicpu(path, now_ns, used_ns), burst

    # Of kubepods, without what its best-effort directory used: that includes pods that ended within the window.
    def _others(self, now_ns: int, be_used: int | None, be_burst: int | None) -> OtherPodsCpu | None:
        parent = self._owners.parent
        if parent is None or not self._owners.has_others:
            return None
        used, burst = self._used(parent, now_ns, is_be=False)
        if used is None or be_used is None:
            return None
        more = None if burst is None or be_burst is None else max(burst - be_burst, 0)
        return OtherPodsCpu(max(used - be_used, 0), more)

    # Over the window, of the node, and of its isolated CPUs that are not in the kubelet's shared set.
    def _node_used(
        self, now_ns: int, isolated: Collection[int], manager: CpuManager | None
    ) -> tuple[int | None, int | msgspec.UnsetType]:
        node_ns, isolated_ns = self._node_ns(set_apart(isolated, manager.shared if manager is not None else ()))
        used = None if isolated_ns is None else self._rates.millicpu(_ISOLATED, now_ns, isolated_ns)
        return self._rates.millicpu(_NODE, now_ns, node_ns), msgspec.UNSET if used is None else used

    # None: isolated CPUs are not measured.
    def _node_ns(self, isolated: Collection[int]) -> tuple[int, int | None]:
        if self._stat is None:
            assert self._node_cgroup is not None  # one of the two, by the node's path
            return self._node_cgroup.used_ns(), None
        if not isolated:
            return self._stat.used_ns(), None
        whole_ns, each_ns = self._stat.used_ns_by_cpu()
        return whole_ns, sum(each_ns.get(cpu, 0) for cpu in isolated)
