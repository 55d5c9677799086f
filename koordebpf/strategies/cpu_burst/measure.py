"""Reads quotas, use and throttling of containers that may burst, and what the node uses. One call a round."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import ClusterView, is_same
from koordebpf.collect.cpu.collector import CgroupCpuFiles, OnlineCpus
from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.bpf.throttle_events import ThrottleEvents
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.worker import StoppableThread
from koordebpf.kernel.proc.cpu_topology import SYSFS
from koordebpf.kernel.proc.cpu_usage import STAT, CgroupCpu, CpuBandwidth, NodeCpuTime
from koordebpf.kube.sources.cpu_manager import STATE as CPU_MANAGER_STATE
from koordebpf.state.cpu.rates import CpuRates
from koordebpf.strategies.cpu_burst.values import APART, BurstContainer, BurstMeasured, BurstPod, may_burst
from koordebpf.units import NS_PER_MS, NS_PER_S, NS_PER_US

T = TypeVar("T")
_MOST = 64  # at one poll, in turn. Why: 5 µs each; 128 are then read each 100 ms, for 0.6 % of a CPU
# A container is throttled once it has used its quota within a period, less what other CPUs hold of it: a slice each
# (sched_cfs_bandwidth_slice_us). Why half of the quota: a poll comes twice in a period.
_SLICE_NS = 5 * NS_PER_MS
_LEAST_DUE_NS = NS_PER_MS
log = logging.getLogger(__name__)
POLL_NS = 50 * NS_PER_MS  # Why: half a period of kubelet's quotas, in which a container can be throttled once
_REST_NS = 100 * NS_PER_MS  # after a throttling was seen. Why: a quota is raised once in a period
_IDLE_NS = NS_PER_S // 4  # where there is none to read
_NODE = ""  # its key among the rates
_NODE_WINDOW_NS = 5 * NS_PER_S  # Why: koordlet's, five of its intervals of 1 s
# Why: who bursts is read in each round, who is throttled at once; quotas of others change with their pods. 60 µs each.
_ALL_QUOTAS_NS = 30 * NS_PER_S


def throttles_ns(quota_us: int) -> int:
    """Return how much CPU time a container must have used before it is throttled; less, to be sure."""
    return max(quota_us * NS_PER_US // 2 - _SLICE_NS, _LEAST_DUE_NS)


class _Class(NamedTuple):
    # A directory of pods, and how much CPU time must have been used in it before one of its containers is throttled.
    path: str
    due_ns: dict[str, int]  # by container
    least_due_ns: int


class ThrottlePoller(Closing):
    """Reads nr_throttled of some containers through kept fds.

    A container is read only once its class of pods together has used what it takes to throttle it: while pods are idle
    one file is read for all of them.

    Args:
        mounts: by controller.
    """

    def __init__(self, mounts: Mapping[str, ControllerMount]) -> None:
        self.watched: Mapping[str, int] = {}  # paths below the mount → quota in µs; replaced by any thread
        self.reads = 0  # containers that were read
        self._files = CgroupCpuFiles(mounts)
        self._known: Mapping[str, int] = {}
        self._classes: tuple[_Class, ...] = ()
        self._used_ns: dict[str, int] = {}  # of the class, when a container was read or its class was last due
        self._waiting: dict[str, int | None] = {}  # containers that are to be read, and what their class has used
        self._counts: dict[str, int] = {}

    def poll(self) -> bool:
        """Read the next few that may be throttled; return whether one was since it was read before.

        Cost:    5 µs a class of pods, and 5 µs a container.
        """
        if (watched := self.watched) is not self._known:  # each round brings one; most are equal to the last
            if watched != self._known:
                self._learn(watched)
            self._known = watched
        for each in self._classes:
            self._poll_class(each)
        is_throttled = False
        for path in [*self._waiting][:_MOST]:
            is_throttled |= self._grew(path, self._waiting.pop(path))
        return is_throttled

    def _learn(self, watched: Mapping[str, int]) -> None:
        classes: dict[str, dict[str, int]] = {}
        for path, quota_us in watched.items():
            classes.setdefault(path.rsplit("/", 2)[0], {})[path] = throttles_ns(quota_us)
        self._classes = tuple(_Class(path, due_ns, min(due_ns.values())) for path, due_ns in classes.items())
        self._files.keep_only({*watched, *classes})
        self._counts = {path: count for path, count in self._counts.items() if path in watched}
        self._used_ns = {path: used for path, used in self._used_ns.items() if path in watched}
        self._waiting = {path: used for path, used in self._waiting.items() if path in watched}

    def _poll_class(self, pods: _Class) -> None:
        used_ns = self._read(pods.path, CgroupCpu.used_ns)
        before = self._used_ns.get(pods.path)
        if used_ns is not None and before is not None and 0 <= used_ns - before < pods.least_due_ns:
            return
        if used_ns is not None:
            self._used_ns[pods.path] = used_ns
        for path, due_ns in pods.due_ns.items():
            last = self._used_ns.get(path)
            if used_ns is None or last is None or not 0 <= used_ns - last < due_ns:
                self._waiting.setdefault(path, used_ns)

    def _grew(self, path: str, used_ns: int | None) -> bool:
        found = self._read(path, CgroupCpu.throttling)
        if found is None:
            return False
        before = self._counts.get(path)
        self._counts[path] = found[1]
        if used_ns is not None:
            self._used_ns[path] = used_ns
        self.reads += 1
        return before is not None and found[1] > before

    # None: it is gone or garbage; a round reads it, too, and says so.
    def _read(self, path: str, what: Callable[[CgroupCpu], T]) -> T | None:
        try:
            return self._files.read(path, what)
        except (KernelFileError, OSError):
            return None

    def close(self) -> None:
        """Close the files."""
        self._files.close()


class ThrottleWatch(Closing):
    """A thread that waits until the kernel throttles one of some containers, and wakes the loop.

    Where the kernel cannot report it, the thread polls (`ThrottlePoller`).

    Args:
        mounts: by controller.
        wake: called from the thread.
        events: opens the kernel's reports, in the thread, since that takes a while.
    """

    def __init__(
        self,
        mounts: Mapping[str, ControllerMount],
        wake: Callable[[], None],
        events: Callable[[], ThrottleEvents] = ThrottleEvents,
    ) -> None:
        self._poller = ThrottlePoller(mounts)
        self._cpu = mounts.get("cpu")
        self._wake = wake
        self._open_events = events
        self._events: ThrottleEvents | None = None
        self._lock = threading.Lock()  # of `watched` and what the kernel was asked for
        self._is_seen = False
        self._thread = StoppableThread("cpu-burst", self._run)

    def start(self) -> None:
        """Start to wait."""
        self._thread.start()

    @property
    def reads(self) -> int:
        """How many times a container was read: none where the kernel reports who is throttled."""
        return self._poller.reads

    @property
    def watched(self) -> Mapping[str, int]:
        """Containers that are watched: paths below the mount → quota in µs. Any thread may set it."""
        return self._poller.watched

    @watched.setter
    def watched(self, watched: Mapping[str, int]) -> None:
        with self._lock:
            is_new = watched.keys() != self._poller.watched.keys()
            self._poller.watched = watched
            if is_new and self._events is not None:
                self._watch(self._events)

    def poll(self) -> bool:
        """Tell whether a container was throttled since the last time."""
        is_seen, self._is_seen = self._is_seen, False
        return is_seen

    def close(self) -> None:
        """End the thread and close the files."""
        self._thread.close()
        self._poller.close()

    def _run(self) -> None:
        try:
            events = self._open_events()
        except SupportError as error:
            log.info("%s: cpu.stat is read %d times a second instead", error, NS_PER_S // POLL_NS)
            self._poll()
            return
        with events:
            try:
                with self._lock:
                    self._events = events
                    self._watch(events)
                self._listen(events)
            finally:
                with self._lock:
                    self._events = None

    # One that is gone is throttled no more. More than there is room for are seen by the rounds, each second.
    def _watch(self, events: ThrottleEvents) -> None:
        if self._cpu is None:
            return
        ids = set[int]()
        for path in self._poller.watched:
            with contextlib.suppress(CgroupGone, OSError):
                ids.add(cgroup_id(self._cpu.mount_point / path))
        events.keep(ids)

    def _listen(self, events: ThrottleEvents) -> None:
        while True:
            self._thread.wait(None, events.fileno())
            if events.read():
                self._report()
                self._thread.wait(time.monotonic_ns() + _REST_NS)

    def _poll(self) -> None:
        while True:
            is_throttled = self._poller.poll()
            if is_throttled:
                self._report()
            rest_ns = _REST_NS if is_throttled else POLL_NS
            self._thread.wait(time.monotonic_ns() + (rest_ns if self._poller.watched else _IDLE_NS))

    def _report(self) -> None:
        self._is_seen = True
        self._wake()


class _Quota(msgspec.Struct, frozen=True):
    bandwidth: CpuBandwidth
    burst_us: int | None


class _Pod(msgspec.Struct, frozen=True):
    uid: str
    path: str
    containers: Mapping[str, str]  # id → path


class _Tree:
    def __init__(self, pods: tuple[_Pod, ...] = (), apart: tuple[str, ...] = ()) -> None:
        self.pods = pods  # which may burst
        self.with_quota: tuple[_Pod, ...] | None = None  # those of them; None: all quotas are to be read
        self.apart = apart  # paths of LSE, LSR and BE pods


class BurstCollector(Closing):
    """Measures for CPU burst.

    Args:
        index: of the node's cgroups.
        known: of the cluster.
        mounts: by controller.
        node_path: of the node below any mount, "" for the machine.
    Raises:  SupportError: no sysfs or procfs.
    """

    def __init__(
        self,
        index: CgroupIndex,
        known: ClusterView,
        mounts: Mapping[str, ControllerMount],
        node_path: str = "",
        sysfs: Path = SYSFS,
        stat: Path = STAT,
        manager: Path = CPU_MANAGER_STATE,
    ) -> None:
        self.active: Collection[str] = ()  # paths whose quotas are read in each round: those that are written
        self.is_throttled = False  # one was, just now: who used CPU time since its counts were read is read again
        self._index = index
        self._known = known
        self._node_path = node_path
        self._node = _NodeFiles(sysfs, None if node_path else stat, manager)
        self._files = CgroupCpuFiles(mounts)
        self._tree = _Tree()
        self._seen: tuple[int, object] | None = None  # version of the index; what is known of the cluster
        self._quotas: dict[str, _Quota | None] = {}
        self._rates = _Rates()
        self._due = Due(_ALL_QUOTAS_NS)

    def measure(self, now_ns: int) -> BurstMeasured | None:
        """Return what is there now; None: pods are not known yet.

        Raises:  KernelFileError: garbage. CgroupGone: the node's own cgroup was removed.
        Cost:    3 µs a container with a quota, 6 where it used half of it; 60 µs for each whose quota is read.
        """
        if not self._known.is_whole:
            return None
        self._follow(now_ns)
        spec = self._known.spec
        online, isolated = self._node.cpus.read()
        among = self._tree.pods if self._tree.with_quota is None else self._tree.with_quota
        pods = tuple(made for each in among if (made := self._pod(each, now_ns)) is not None)
        self.is_throttled = False
        if self._tree.with_quota is None:
            self._tree.with_quota = tuple(each for each in among if self._has_quota(each))
        return BurstMeasured(
            strategy=spec.cpuBurstStrategy if spec is not None else None,
            cpus=len(online),
            node_used_millicpu=self._rates.node.millicpu(_NODE, now_ns, self._node_ns()),
            apart_used_millicpu=self._apart_used(now_ns),
            pods=pods,
            isolated=len(isolated) if len(isolated) < len(online) else 0,
        )

    def close(self) -> None:
        """Close every fd."""
        self._files.close()
        self._node.close()

    def _follow(self, now_ns: int) -> None:
        seen = (self._index.version, self._known.reported)
        if not is_same(seen, self._seen):
            self._seen = seen
            self._learn()
        if self._due.is_nearly_due(now_ns):
            self._due.done(now_ns)
            self._quotas.clear()
            self._tree.with_quota = None
        else:
            for path in self.active:
                self._quotas.pop(path, None)

    # A directory counts as a pod's only where it bears that pod's own UID, whatever its annotations say.
    def _learn(self) -> None:
        index, tree, apart = self._index, list[_Pod](), list[str]()
        facts = {each.uid: each for each in self._known.facts}
        for uid, of_pod in index.pod_cgroups().items():
            owner, pod = index.owner(of_pod), facts.get(uid)
            if owner is None or pod is None or owner.kind is not OwnerKind.POD:
                continue
            path = owner.path.strip("/")
            if not bears(path.rpartition("/")[2], index.names_to_act_on(uid)):
                continue
            if pod.koord_qos == "BE" or pod.koord_qos in APART:
                apart.append(path)
            elif may_burst(pod):
                tree.append(_Pod(uid, path, self._containers(of_pod)))
        self._tree = _Tree(tuple(tree), tuple(apart))
        known = {*apart, *(path for each in tree for path in (each.path, *each.containers.values()))}
        self._files.keep_only({*known, self._node_path})
        self._rates.keep_only(known)
        self._quotas = {path: each for path, each in self._quotas.items() if path in known}

    def _containers(self, of_pod: int) -> Mapping[str, str]:
        owners = (self._index.owner(child) for child in self._index.children(of_pod))
        return {
            owner.container_id: owner.path.strip("/")
            for owner in sorted(filter(None, owners), key=lambda each: each.path)
            if owner.kind is OwnerKind.CONTAINER and owner.container_id
        }

    def _pod(self, pod: _Pod, now_ns: int) -> BurstPod | None:
        found = [self._container(pod, each, now_ns) for each in pod.containers]
        containers = tuple(each for each in found if each is not None)
        if not containers or (own := self._quota(pod.path)) is None:
            return None
        return BurstPod(
            pod.uid, pod.path, own.bandwidth.quota_us, own.bandwidth.period_us, own.burst_us, containers=containers
        )

    def _has_quota(self, pod: _Pod) -> bool:
        known = (self._quotas.get(path) for path in pod.containers.values())
        return any(each is not None and each.bandwidth.quota_us is not None for each in known)

    def _container(self, pod: _Pod, container_id: str, now_ns: int) -> BurstContainer | None:
        path = pod.containers[container_id]
        if (own := self._quota(path)) is None or own.bandwidth.quota_us is None:
            return None
        used_ns = self._files.read(path, CgroupCpu.used_ns)
        if used_ns is None or (counts := self._throttling(path, used_ns, own.bandwidth.quota_us)) is None:
            return None
        is_throttled, ratio = self._rates.throttled(path, now_ns, *counts)
        if is_throttled and path not in self.active:  # what it had some seconds ago is not what it is raised from
            self._quotas.pop(pod.path, None)
            self._quotas.pop(path)
            own = self._quota(path)
        if own is None or (quota_us := own.bandwidth.quota_us) is None:
            return None
        used = self._rates.used.millicpu(path, now_ns, used_ns)
        return BurstContainer(
            container_id, path, quota_us, own.bandwidth.period_us, own.burst_us, used, is_throttled, ratio
        )

    # What it said before, while it has not used enough for a throttling of its own since: what it used before that in
    # the same period is not known, so that this may be late by a period. None: it is gone, or counts none.
    def _throttling(self, path: str, used_ns: int, quota_us: int) -> tuple[int, int] | None:
        counted_ns, counts = self._rates.counted.get(path, (0, None))
        if counts is not None and 0 <= used_ns - counted_ns < (1 if self.is_throttled else throttles_ns(quota_us)):
            return counts
        counts = self._files.read(path, CgroupCpu.throttling)
        self._rates.counted[path] = used_ns, counts
        return counts

    # None: it is gone, or has no such files.
    def _quota(self, path: str) -> _Quota | None:
        if path not in self._quotas:
            files = CgroupCpuFiles(self._files.mounts)
            bandwidth = files.read(path, CgroupCpu.bandwidth)
            burst_us = files.read(path, CgroupCpu.burst_us) if bandwidth is not None else None
            files.close()
            self._quotas[path] = None if bandwidth is None else _Quota(bandwidth, burst_us)
        return self._quotas[path]

    def _node_ns(self) -> int:
        if self._node.time is not None:
            return self._node.time.used_ns()
        return self._files.read(self._node_path, CgroupCpu.used_ns) or 0

    def _apart_used(self, now_ns: int) -> int:
        used = 0
        for path in self._tree.apart:
            used_ns = self._files.read(path, CgroupCpu.used_ns)
            if used_ns is not None:
                used += self._rates.node.millicpu(path, now_ns, used_ns) or 0
        return used


class _NodeFiles(Closing):
    # The CPUs of the node, and their time; None: the node is a cgroup.
    def __init__(self, sysfs: Path, stat: Path | None, manager: Path) -> None:
        self.cpus = OnlineCpus(sysfs, manager)
        self.time = NodeCpuTime(stat) if stat is not None else None

    def close(self) -> None:
        self.cpus.close()
        if self.time is not None:
            self.time.close()


class _Rates:
    # Of the node and what is apart, of containers, and how often these were throttled: now_ns, periods, throttled.
    # `counted`: CPU time used when a container's counts were read last; periods, throttled.
    def __init__(self) -> None:
        self.node: CpuRates[str] = CpuRates(_NODE_WINDOW_NS)
        self.used: CpuRates[str] = CpuRates(NS_PER_S)
        self._counts: dict[str, deque[tuple[int, int, int]]] = {}
        self.counted: dict[str, tuple[int, tuple[int, int] | None]] = {}

    def throttled(self, path: str, now_ns: int, periods: int, throttled: int) -> tuple[bool, float | None]:
        samples = self._counts.setdefault(path, deque())
        if samples and (periods < samples[-1][1] or throttled < samples[-1][2]):
            samples.clear()  # another cgroup has the path now
        is_throttled = bool(samples) and throttled > samples[-1][2]
        samples.append((now_ns, periods, throttled))
        while len(samples) > 2 and samples[1][0] <= now_ns - NS_PER_S:
            samples.popleft()
        _, first_periods, first_throttled = samples[0]
        ratio = (throttled - first_throttled) / (periods - first_periods) if periods > first_periods else None
        return is_throttled, ratio

    def keep_only(self, known: set[str]) -> None:
        self.node.keep_only({*known, _NODE})
        self.used.keep_only(known)
        self._counts = {path: each for path, each in self._counts.items() if path in known}
        self.counted = {path: each for path, each in self.counted.items() if path in known}
