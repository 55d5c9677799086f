"""Measures the image filesystem and the writable layers of pods, in a thread of its own.

As Katalyst does by the kubelet's figures: a container's own layer, neither volumes nor logs nor the image below.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.kernel.host.disk_use import (
    DiskUse,
    NodeFiles,
    Overlay,
    disk_use,
    node_files,
    open_below,
    overlays,
    project_of,
    project_use,
)
from koordebpf.kernel.io.closing import Closing, have_ended
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.strategies.katalyst.values import ImageFs, RootfsMeasured, RootfsUse
from koordebpf.units import NS_PER_S

_MAX_PROCESSES = 8  # Why: the first is the container's own; others may have a root of their own making
_PROCS_BYTES = 1 << 12
_OWN_BYTES = 1 << 16  # of a process's own table: its root is the first, and a container may mount 100,000 times more
log = logging.getLogger(__name__)
# Where container runtimes have their root; the first one that has layers of pods, else the first that is there.
RUNTIME_ROOTS = tuple(
    map(Path, ("/var/lib/containerd", "/var/lib/containers/storage", "/var/lib/docker", "/var/lib/kubelet"))
)
_LOOK_S = 1.0  # between two looks at the filesystem
_CLOSE_S = 1.0  # Why: as for evictions (act/evict/api.py)


class LayerTable:
    """The writable layers of the overlays that the node has.

    Args:
        mounts: of the node. What a container mounts is in its own mount namespace, and not among them.
        proc: of this process's pid namespace.
    """

    def __init__(self, mounts: Iterable[Overlay], proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._by_device = {each.device: each.upper for each in mounts}
        # containerd: /run/containerd/io.containerd.runtime.v2.task/k8s.io/<id>/rootfs
        self._by_id = {each.mount_point.parent.name: each.upper for each in mounts if each.mount_point.name == "rootfs"}

    def upper_of(self, container_id: str, cgroups: Iterable[str]) -> Path | None:
        """Return a container's writable layer; None: it is not found.

        By the container's id in the mount point, as containerd names it; else by the device that a process of the
        container has as its root, as of CRI-O and Docker, if the node has that mount too.
        """
        upper = self._by_id.get(container_id)
        if upper is not None:
            return upper
        for pid in _pids(cgroups):
            for device in self._root_devices(pid):
                if (upper := self._by_device.get(device)) is not None:
                    return upper
        return None

    def _root_devices(self, pid: int) -> list[str]:
        try:
            mounts = overlays(self._proc / str(pid) / "mountinfo", _OWN_BYTES)
        except OSError:
            return []
        return [each.device for each in mounts if each.mount_point == Path("/")]


# As this pid namespace has them; 0 is a process of another one.
def _pids(cgroups: Iterable[str]) -> list[int]:
    found: list[int] = []
    for path in cgroups:
        try:
            fd = os.open(f"{path}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found += [int(each) for each in os.read(fd, _PROCS_BYTES).split(b"\n")[:-1] if each != b"0"]
        except OSError:
            continue
        finally:
            os.close(fd)
        if len(found) >= _MAX_PROCESSES:
            break
    return found[:_MAX_PROCESSES]


class WalkLimits(msgspec.Struct, frozen=True):
    """What looking at layers may cost.

    `entries`      of one pod. Why 250,000: 1 s of CPU, and ten times a large layer.
    `pass_ns`      for all pods; the ones that were left out are the first of the next pass. Why 60 s: 15 times what 330
                   containers with 500 files take while the filesystem is short.
    `rest_ns`      from one pass to the next, while the filesystem is not short; None: there is none meanwhile.
    `urgent_rest_ns` the same while it is, and `first_rest_ns` before the first pass of a shortage.
    `share`        of a core, while the filesystem is not short.
    `urgent_share` of a core, while it is: the pass that chooses the pod to evict.
    """

    entries: int = 250_000
    pass_ns: int = 60 * NS_PER_S
    rest_ns: int | None = 120 * NS_PER_S
    urgent_rest_ns: int = 15 * NS_PER_S
    first_rest_ns: int = 5 * NS_PER_S
    share: float = 0.02
    urgent_share: float = 0.2


class Container(msgspec.Struct, frozen=True):
    """One container: its id and the directories where its processes are."""

    container_id: str
    cgroups: tuple[str, ...]


Pods = Mapping[str, tuple[Container, ...]]  # by UID


class NodeContainers:
    """The running containers of the known pods, sandboxes left out.

    Args:
        index: of the node's cgroups.
        mount_point: of the hierarchy that it is of.
    """

    def __init__(self, index: CgroupIndex, mount_point: Path) -> None:
        self._index = index
        self._mount_point = mount_point
        self._read: tuple[int, int] | None = None  # which version, and when
        self._pods: Pods = {}

    def __call__(self) -> Pods:
        """Return them, as of a second ago at most.

        Cost:    nothing while the index stays the same, else 5 µs a container.
        """
        now_ns = time.monotonic_ns()
        if self._read is None or (self._read[0] != self._index.version and now_ns - self._read[1] >= NS_PER_S):
            self._read = self._index.version, now_ns
            self._pods = {uid: tuple(self._of(pod)) for uid, pod in self._index.pod_cgroups().items()}
        return self._pods

    def _of(self, pod_cgroup: int) -> Iterator[Container]:
        index = self._index
        for each in index.children(pod_cgroup):
            owner = index.owner(each)
            if owner is None or owner.kind is not OwnerKind.CONTAINER or owner.container_id is None:
                continue
            # crun has processes one level down.
            paths = [index.path(cgroup) for cgroup in (each, *index.children(each)[:4])]
            yield Container(owner.container_id, tuple(f"{self._mount_point}/{path}" for path in paths if path))


class RootfsCollector(Closing):
    """Looks at the image filesystem each second and at pods' layers in passes, in its own thread.

    Args:
        containers: of the pods whose layers are looked at; called by `measure` alone.
        image_fs: a directory on the filesystem; None: it is found.
        is_short: whether, by the filesystem, pods may have to be evicted for it: then a new pass begins at once.
        asks_quotas: where a layer has a project quota of its own, that is asked in place of a walk.
        limits: of the walk.
        node: where the node's mounts and root are; None: they are found.
    """

    def __init__(
        self,
        containers: Callable[[], Pods],
        image_fs: Path | None,
        is_short: Callable[[ImageFs], bool],
        *,
        asks_quotas: bool = False,
        limits: WalkLimits | None = None,
        node: NodeFiles | None = None,
    ) -> None:
        self._containers = containers
        self._given = image_fs
        self._is_short = is_short
        self._asks_quotas = asks_quotas
        self._limits = limits or WalkLimits()
        self._node = node_files() if node is None else node
        self._path: Path | None = None
        self._pods: Pods = {}
        self._found: tuple[ImageFs | None, RootfsMeasured | None] = (None, None)
        self._said: set[str] = set()
        self._is_closing = threading.Event()
        supervisor = Supervisor("rootfs")
        self._thread = supervisor.thread(functools.partial(self._work, supervisor), again=True)
        self._thread.start()

    def measure(self) -> tuple[ImageFs | None, RootfsMeasured | None]:
        """Return what was found last, and have the layers of the pods of now looked at. Does not wait."""
        self._pods = self._containers()
        return self._found

    def close(self) -> None:
        """Stop the thread; one that hangs in a filesystem is left."""
        self._is_closing.set()
        if not have_ended([self._thread], _CLOSE_S):
            log.warning("the image filesystem has not answered: its thread is left")

    def _work(self, supervisor: Supervisor) -> None:
        current = _Pass(self._limits, self._is_closing, self._check_space)
        ended_ns: int | None = None
        left_out: frozenset[str] = frozenset()
        while not self._is_closing.is_set():
            try:
                is_short = self._check_space()
                if self._pods and current.is_next_due(ended_ns, is_short=is_short):
                    current = _Pass(self._limits, self._is_closing, self._check_space, is_short=is_short)
                    found, left = self._measure(current, left_out)
                    if current.is_outdated:  # what it has seen is older than the shortage
                        ended_ns = None
                        continue
                    self._found, left_out = (self._found[0], found), left
                    ended_ns = time.monotonic_ns()
                supervisor.worked()
            except Exception as error:
                supervisor.failed(error)
                ended_ns = time.monotonic_ns()
            self._is_closing.wait(_LOOK_S)

    # Whether the filesystem is short now.
    def _check_space(self) -> bool:
        if self._path is None:
            self._path = self._given or self._image_path()
        path, found = self._path, None
        if path is not None:
            try:
                found = self._image_fs(path)
            except OSError as error:
                self._report(f"image filesystem {path}: {error.strerror}")
                self._path = None
        if found is not None:
            self._report(f"the image filesystem is that of {path}", logging.INFO)
        self._found = found, self._found[1]
        return found is not None and self._is_short(found)

    def _image_fs(self, path: Path) -> ImageFs:
        fd = open_below(self._node.root, path)
        try:
            seen = os.fstatvfs(fd)
        finally:
            os.close(fd)
        inodes = (seen.f_files, seen.f_ffree) if seen.f_files else (None, None)
        available, capacity = seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize
        return ImageFs(str(path), capacity, available, time.monotonic_ns(), *inodes)

    def _image_path(self) -> Path | None:
        uppers = [each.upper for each in overlays(self._node.mountinfo) if each.upper is not None]
        there = [each for each in RUNTIME_ROOTS if self._is_there(each)]
        with_layers = Counter(each for upper in uppers for each in there if upper.is_relative_to(each))
        if with_layers:
            return max(there, key=lambda each: with_layers[each])
        return there[0] if there else None

    def _is_there(self, path: Path) -> bool:
        try:
            os.close(open_below(self._node.root, path))
        except OSError:
            return False
        return True

    # With the pods that are to be the first of the next pass.
    def _measure(self, current: _Pass, first: frozenset[str]) -> tuple[RootfsMeasured, frozenset[str]]:
        began_ns, pods = time.monotonic_ns(), self._pods
        self._path = None  # containers may have come to another runtime
        table = LayerTable(overlays(self._node.mountinfo))
        found: dict[str, RootfsUse] = {}
        order = sorted(pods, key=lambda each: (each not in first, each))
        reached = 0
        for number, uid in enumerate(order):
            if current.is_over:
                break
            use = self._pod_use(pods[uid], table, current)
            if use is not None:
                found[uid] = use
            # One that the end of the pass has cut off comes first next time; if it was the first, it never fits.
            if not current.is_over or number == 0:
                reached = number + 1
        return RootfsMeasured(began_ns, time.monotonic_ns(), found), frozenset(order[reached:])

    # None: of none of its containers a layer is known.
    def _pod_use(self, containers: Iterable[Container], table: LayerTable, current: _Pass) -> RootfsUse | None:
        uses: list[DiskUse] = []
        is_cut = False
        left = self._limits.entries
        for each in containers:
            upper = table.upper_of(each.container_id, each.cgroups)
            if upper is None:
                self._report("some containers' writable layers are not found: their pods use at least the rest")
                is_cut = True
                continue
            try:
                uses.append(self._use(upper, left, current))
                left = max(left - uses[-1].inodes, 0)
            except FileNotFoundError:
                continue  # the container has just ended
            except OSError as error:
                self._report(f"some writable layers cannot be read: {error.strerror}")
                is_cut = True
            current.pause()
        if not uses:
            return None
        is_cut = is_cut or any(each.is_cut for each in uses)
        return RootfsUse(sum(each.used_bytes for each in uses), sum(each.inodes for each in uses), is_cut)

    def _use(self, upper: Path, max_entries: int, current: _Pass) -> DiskUse:
        fd = open_below(self._node.root, upper)
        try:
            project = project_of(fd) if self._asks_quotas else None
            counted = project_use(fd, project) if project is not None else None
            return disk_use(fd, max_entries, current.pause) if counted is None else counted
        finally:
            os.close(fd)

    def _report(self, sentence: str, level: int = logging.WARNING) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.log(level, "Katalyst's plugins: %s", sentence)


class _Pass:
    """One look at all layers: its share of a core, and when it has to end."""

    def __init__(
        self, limits: WalkLimits, is_closing: threading.Event, look: Callable[[], bool], *, is_short: bool = False
    ) -> None:
        self._limits = limits
        self._is_closing = is_closing
        self._check_space = look
        self._began_short = is_short
        now_ns = time.monotonic_ns()
        self._ends_ns = now_ns + limits.pass_ns
        self._looked_ns = self._paused_ns = now_ns
        self._used_ns = time.thread_time_ns()
        self.is_outdated = False

    def is_next_due(self, ended_ns: int | None, *, is_short: bool) -> bool:
        """Tell whether another pass begins now; None: this one gave nothing."""
        limits = self._limits
        rest_ns = limits.rest_ns
        if is_short:
            rest_ns = limits.urgent_rest_ns if self._began_short else limits.first_rest_ns
        return rest_ns is not None and (ended_ns is None or time.monotonic_ns() - ended_ns >= rest_ns)

    @property
    def is_over(self) -> bool:
        """Whether what is left is not looked at."""
        return self.is_outdated or self._is_closing.is_set() or time.monotonic_ns() >= self._ends_ns

    def pause(self) -> bool:
        """Wait so that the thread keeps to its share of a core, and the disk is used half of the time at most."""
        now_ns = time.monotonic_ns()
        used_ns = time.thread_time_ns() - self._used_ns
        share = self._limits.urgent_share if self._began_short else self._limits.share
        rest_ns = max(used_ns / share - (now_ns - self._paused_ns), now_ns - self._paused_ns)
        self._is_closing.wait(rest_ns / NS_PER_S)
        if now_ns - self._looked_ns >= _LOOK_S * NS_PER_S:
            self._looked_ns = now_ns
            self.is_outdated = self._check_space() and not self._began_short
        self._paused_ns, self._used_ns = time.monotonic_ns(), time.thread_time_ns()
        return not self.is_over
