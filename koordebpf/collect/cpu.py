"""Reads the node's CPUs: which there are, who used how much, and what the best-effort directories may use.

A cgroup that is gone in the middle of it is left out, here and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self, TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.attribution.paths import BEST_EFFORT
from koordebpf.errors import CgroupGone, ConfigError, SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.proc.cpu_topology import SYSFS, CpuTopologyFiles
from koordebpf.kernel.proc.cpu_usage import STAT, CgroupCpu, NodeCpuTime
from koordebpf.kube.sources.cpu_manager import STATE as CPU_MANAGER_STATE
from koordebpf.kube.sources.cpu_manager import CpuManagerFile, CpuManagerState
from koordebpf.state.cpu.best_effort import be_limit_millicpu, be_sets
from koordebpf.state.cpu.measured import (
    BeCgroup,
    BeQuota,
    CpuManager,
    CpuMeasured,
    CpuUsage,
    HostApplicationCpu,
    OtherPodsCpu,
    PodCpu,
)
from koordebpf.state.cpu.rates import CpuRates, CpuWindows
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)

_NODE = ""  # its key among the rates; no cgroup below the node has it
_CONTAINER_DEPTH = 2  # below the best-effort directory, as with kubelet
# What another process writes into a single set shows within so many rounds; the writer corrects it. Why 30: koordlet
# writes again after 60 s (resource-force-update-seconds); the sets of 221 directories take 1 ms, so many 0.04 ms.
_ROUNDS = 30

T = TypeVar("T")


class BurstLook(msgspec.Struct, frozen=True, gc=False):
    """What pods and host applications used in the last moments, those in the best-effort directory and all others."""

    others_millicpu: int
    best_effort_millicpu: int


class CpuCollector:
    """Measures the node's CPUs through kept fds.

    Cost:    9 µs for each pod where `each_pod`; 4 µs for each set of CPUs that is read: a part in turn, all
             where one has changed.
    """

    def __init__(
        self,
        mounts: Mapping[str, ControllerMount],
        *,
        node_path: str = "",
        window_ns: int = NS_PER_S,
        burst_window_ns: int | None = None,
        sysfs: Path = SYSFS,
        stat: Path = STAT,
        manager: Path = CPU_MANAGER_STATE,
        kubelet: Callable[[], CpuManagerState | None] | None = None,
    ) -> None:
        """Open what does not change.

        Args:
            mounts: by controller.
            node_path: of the cgroup that is the node, relative to the mounts; "": the machine.
            window_ns: over which rates are taken. Of the machine, ticks of 10 ms show in one far below a second.
            burst_window_ns: over which bursts of those that are not best-effort are measured; None: they are not.
            sysfs: /sys/devices/system.
            stat: /proc/stat.
            manager: kubelet's cpu_manager_state.
            kubelet: says the same where that file cannot be reached.
        Raises:  SupportError: no sysfs or procfs.
        """
        self._mounts = dict(mounts)
        self._window_ns = window_ns
        self._topology = CpuTopologyFiles(sysfs)
        self._node_cgroup = CgroupCpu(self._mounts, node_path) if node_path else None
        self._stat = NodeCpuTime(stat) if not node_path else None
        self._manager = CpuManagerFile(manager)
        self._kubelet = kubelet
        self._manager_problem: str | None = None
        self._rates: CpuRates[str] = CpuRates(window_ns)
        self._bursts: CpuRates[str] | None = None if burst_window_ns is None else CpuRates(burst_window_ns)
        self._windows = CpuWindows()
        self._files: dict[str, CgroupCpu] = {}
        self._pods: dict[str, tuple[str, bool]] = {}  # path → uid, is best-effort
        self._applications: dict[str, tuple[str, bool]] = {}  # path → name, is best-effort
        self._be_tree: tuple[BeCgroup, ...] = ()  # without CPUs
        self._be_paths: list[str] = []
        self._be_cgroups: tuple[BeCgroup, ...] = ()  # with those of the last reading
        self._be_sets: frozenset[tuple[int, ...]] = frozenset()  # of `_be_cgroups`
        self._be_cpus: dict[str, tuple[int, ...] | None] = {}
        self._turn = 0
        self._be_parent: str | None = None
        self._apart: tuple[str, ...] = ()  # pods outside the best-effort directory, and not in `_be_parent`
        self._has_others = False  # `_be_parent` holds nothing but pods

    def watch(self, owners: Iterable[Owner]) -> None:
        """Take the node's cgroups, after some were born, died or changed their owner."""
        owned = {owner.path.strip("/"): owner for owner in owners}
        root = best_effort_root(owned)
        below = f"{root}/"
        self._pods = {
            path: (owner.pod_uid, root is not None and path.startswith(below))
            for path, owner in owned.items()
            if owner.kind is OwnerKind.POD and owner.pod_uid is not None
        }
        self._applications = {
            path: (owner.host_application, root is not None and path.startswith(below))
            for path, owner in owned.items()
            if owner.host_application is not None and is_application(path, owned)
        }
        self._be_tree = () if root is None else tuple(self._tree(root, owned))
        self._be_paths = [each.path for each in self._be_tree]
        self._be_parent = None if root is None else root.rpartition("/")[0]
        self._apart = self._not_together(owned)
        known = {each.path for each in self._be_tree} | self._pods.keys() | self._applications.keys()
        if self._be_parent is not None:
            known.add(self._be_parent)
        for path in self._files.keys() - known:
            self._files.pop(path).close()
        self._be_cgroups = ()
        self._be_cpus = {each.path: self._be_cpus[each.path] for each in self._be_tree if each.path in self._be_cpus}
        self._rates.keep_only(known | {_NODE})
        if self._bursts is not None:
            self._bursts.keep_only(known)

    def look(self, now_ns: int) -> BurstLook:
        """Return which pods use the CPUs, over the window of bursts; none where it is not set.

        Cost:    2 µs for each host application outside the best-effort directory.
        """
        best_effort = self._burst(self._be_tree[0].path, now_ns) if self._be_tree else None
        others = self._burst(self._be_parent, now_ns) if self._be_parent is not None and self._has_others else None
        together = max(others - best_effort, 0) if others is not None and best_effort is not None else 0
        outside = (*self._apart, *(path for path, (_, is_be) in self._applications.items() if not is_be))
        return BurstLook(together + sum(self._burst(path, now_ns) or 0 for path in outside), best_effort or 0)

    def sample(
        self,
        now_ns: int,
        *,
        be_request_millicpu: int | None = None,
        evict_window_ns: int = NS_PER_S,
        each_pod: bool = True,
    ) -> CpuMeasured:
        """Return the node's CPUs as they are now.

        Args:
            now_ns: CLOCK_MONOTONIC.
            be_request_millicpu: what best-effort pods ask for now, for the averages.
            evict_window_ns: over which CPU eviction averages.
            each_pod: pods one by one, as who evicts for CPU needs it; else only the best-effort directory, and
                what its parent used beside it.
        Raises:  KernelFileError: garbage. CgroupGone: the node's own cgroup was removed.
        """
        node_ns = self._stat.used_ns() if self._stat is not None else self._node_ns()
        node_used = self._rates.millicpu(_NODE, now_ns, node_ns)
        be_used, be_burst = self._used(self._be_tree[0].path, now_ns, is_be=False) if self._be_tree else (None, None)
        # Also where it is not asked for: a look takes the two from each other, so that they need the same samples.
        others = self._others(now_ns, be_used, be_burst)
        apart = None if each_pod else frozenset(self._apart)
        # Read in the first sampling too, which only begins the rates.
        pods = tuple(
            PodCpu(uid, used, is_be, burst)
            for path, (uid, is_be) in self._pods.items()
            if apart is None or path in apart
            for used, burst in [self._used(path, now_ns, is_be=is_be)]
            if used is not None
        )
        applications = tuple(
            HostApplicationCpu(name, used, is_be, burst)
            for path, (name, is_be) in self._applications.items()
            for used, burst in [self._used(path, now_ns, is_be=is_be)]
            if used is not None
        )
        usage = None
        if node_used is not None:
            usage = CpuUsage(self._window_ns, node_used, be_used, pods, None if each_pod else others, applications)
        measured = CpuMeasured(
            topology=self._topology.read(),
            usage=usage,
            be_cgroups=self._with_cpus(),
            be_parent_cpus=None if self._be_parent is None else self._read(self._be_parent, CgroupCpu.cpus),
            be_quota=self._quota(),
            manager=self._read_manager(),
            be_idle=self._read(self._be_tree[0].path, CgroupCpu.idle) if self._be_tree else None,
        )
        self._windows.push(
            now_ns,
            node_used=node_used,
            be_used=be_used,
            be_request=be_request_millicpu,
            be_limit=be_limit_millicpu(measured, self._be_sets),
        )
        return replace(measured, window=self._windows.window(now_ns, evict_window_ns))

    def close(self) -> None:
        """Close every fd."""
        for files in self._files.values():
            files.close()
        self._files.clear()
        for kept in (self._topology, self._stat, self._node_cgroup):
            if kept is not None:
                kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On v1 a set may hold only what each set below it leaves, so that everything below has to follow. On v2 what lies
    # below a container is the container's own affair.
    def _tree(self, root: str, owned: Mapping[str, Owner]) -> Iterable[BeCgroup]:
        mount = self._mounts.get("cpuset")
        deepest = _CONTAINER_DEPTH if mount is None or mount.version == 2 else None
        yield BeCgroup(root, "root")
        for path in sorted(path for path in owned if path.startswith(f"{root}/")):
            depth = path.count("/") - root.count("/")
            if deepest is None or depth <= deepest:
                yield BeCgroup(path, "pod" if depth < _CONTAINER_DEPTH else "container", owned[path].pod_uid)

    def _with_cpus(self) -> tuple[BeCgroup, ...]:
        paths = self._be_paths
        new = [path for path in paths if path not in self._be_cpus or path not in self._files]
        share = -(-len(paths) // _ROUNDS)
        due = {*paths[:1], *paths[self._turn : self._turn + share], *new}
        self._turn = self._turn + share if self._turn + share < len(paths) else 0
        is_other = self._read_sets(due)
        if is_other:
            self._read_sets(path for path in paths if path not in due)
        if is_other or new or not self._be_cgroups:
            self._be_cgroups = tuple(
                BeCgroup(each.path, each.level, each.uid, self._be_cpus[each.path])
                for each in self._be_tree
                if each.path in self._files  # else it is gone
            )
            self._be_sets = be_sets(self._be_cgroups)
        return self._be_cgroups

    # Tells whether one is another than when it was last read.
    def _read_sets(self, paths: Iterable[str]) -> bool:
        is_other = False
        for path in paths:
            cpus = self._read(path, CgroupCpu.cpus)
            is_other |= self._be_cpus.get(path, cpus) != cpus
            self._be_cpus[path] = cpus
        return is_other

    # A malformed file is reported once and says nothing, as an annotation.
    def _read_manager(self) -> CpuManager | None:
        try:
            state = self._manager.read()
        except ConfigError as error:
            if str(error) != self._manager_problem:
                log.warning("%s", error)
                self._manager_problem = str(error)
            return None
        self._manager_problem = None
        if state is None and self._kubelet is not None:
            state = self._kubelet()
        return None if state is None else CpuManager(state.policy, state.pinned, state.shared)

    def _quota(self) -> BeQuota | None:
        found = self._read(self._be_tree[0].path, CgroupCpu.bandwidth) if self._be_tree else None
        return None if found is None else BeQuota(found.quota_us, found.period_us)

    def _burst(self, path: str, now_ns: int) -> int | None:
        used_ns = self._read(path, CgroupCpu.used_ns)
        if used_ns is None or self._bursts is None:
            return None
        return self._bursts.millicpu(path, now_ns, used_ns)

    # Over the window, and over that of bursts, where those of best-effort pods do not matter.
    def _used(self, path: str, now_ns: int, *, is_be: bool) -> tuple[int | None, int | None]:
        used_ns = self._read(path, CgroupCpu.used_ns)
        if used_ns is None:
            return None, None
        burst = None if is_be or self._bursts is None else self._bursts.millicpu(path, now_ns, used_ns)
        return self._rates.millicpu(path, now_ns, used_ns), burst

    # Of kubepods, without what its best-effort directory used: that includes pods that ended within the window.
    def _others(self, now_ns: int, be_used: int | None, be_burst: int | None) -> OtherPodsCpu | None:
        if self._be_parent is None or not self._has_others:
            return None
        used, burst = self._used(self._be_parent, now_ns, is_be=False)
        if used is None or be_used is None:
            return None
        more = None if burst is None or be_burst is None else max(burst - be_burst, 0)
        return OtherPodsCpu(max(used - be_used, 0), more)

    # Pods that are to be read one by one, even without `each_pod`: they are not in kubepods, or something is there
    # that is no pod.
    def _not_together(self, owned: Mapping[str, Owner]) -> tuple[str, ...]:
        parent = self._be_parent
        above = f"{parent}/"
        others = [path for path, (_, is_be) in self._applications.items() if not is_be]
        outside = tuple(path for path, (_, is_be) in self._pods.items() if not is_be)
        self._has_others = (
            parent is not None
            and parent in owned
            and owned[parent].kind is OwnerKind.ROOT
            and not any(path.startswith(above) for path in others)
        )
        return tuple(path for path in outside if not path.startswith(above)) if self._has_others else outside

    def _node_ns(self) -> int:
        assert self._node_cgroup is not None  # one of the two, by the node's path
        return self._node_cgroup.used_ns()

    # None: it is gone, or has no such file.
    def _read(self, path: str, what: Callable[[CgroupCpu], T]) -> T | None:
        files = self._files.get(path)
        if files is None:
            files = self._files[path] = CgroupCpu(self._mounts, path)
        try:
            return what(files)
        except SupportError:
            return None
        except CgroupGone:
            self._files.pop(path).close()
            return None


def best_effort_root(owned: Mapping[str, Owner]) -> str | None:
    """Return the path of the node's best-effort directory; None: there is none.

    Of two, as a change of kubelet's cgroup driver leaves them until the next boot, it is the one with pods, of those
    the highest, and else systemd's, which koordlet takes too.
    """
    with_pods = {path.rpartition("/")[0] for path, owner in owned.items() if owner.kind is OwnerKind.POD}
    return min(
        (path for path, owner in owned.items() if owner.kind is OwnerKind.ROOT and owner.kube_qos == BEST_EFFORT),
        key=lambda path: (path not in with_pods, path.count("/"), not path.endswith(".slice"), path),
        default=None,
    )


def is_application(path: str, owned: Mapping[str, Owner]) -> bool:
    """Tell whether a cgroup is a host application's own; what lies below is a part of it."""
    above = owned.get(path.rpartition("/")[0])
    return owned[path].host_application is not None and (above is None or above.host_application is None)
