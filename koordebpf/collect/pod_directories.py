"""Finds the directories that runtime hooks write, when a look is due: each 10 s, and when something has changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import ClusterView, is_same
from koordebpf.collect.cpu.collector import OnlineCpus
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.cpu_topology import SYSFS
from koordebpf.kube.sources.cpu_manager import STATE as CPU_MANAGER_STATE
from koordebpf.slo.strategies.host_applications import HostApplication, host_directories
from koordebpf.state.pods.hook_pods import ApplicationDirectory, HooksMeasured, PodDirectory
from koordebpf.units import NS_PER_S

_GUARANTEED = "Guaranteed"


def pod_directories(index: CgroupIndex) -> tuple[list[PodDirectory], dict[str, str]]:
    """Return pods with their containers, and the directory of each class; Guaranteed has that of all pods.

    A directory counts as a pod's only where it bears that pod's own UID, whatever its annotations say. Paths are below
    the mount.

    Cost:    2 µs a cgroup of a pod.
    """
    found: list[PodDirectory] = []
    classes: dict[str, str] = {}
    for uid, cgroup_id in index.pod_cgroups().items():
        owner = index.owner(cgroup_id)
        if owner is None or owner.kind is not OwnerKind.POD:
            continue
        path = owner.path.strip("/")
        above, _, name = path.rpartition("/")
        if not bears(name, index.names_to_act_on(uid)):
            continue
        classes.setdefault(owner.kube_qos or _GUARANTEED, above)
        found.append(PodDirectory(uid, path, _containers(index, cgroup_id)))
    for qos in ("Burstable", "BestEffort"):
        if qos in classes:
            classes.setdefault(_GUARANTEED, classes[qos].rpartition("/")[0])
    return found, dict(sorted(classes.items()))


def _containers(index: CgroupIndex, cgroup_id: int) -> Mapping[str, str]:
    owners = (index.owner(child) for child in index.children(cgroup_id))
    return {
        owner.container_id: owner.path.strip("/")
        for owner in sorted(filter(None, owners), key=lambda each: each.path)
        if owner.kind is OwnerKind.CONTAINER and owner.container_id
    }


class PodDirectoryCache:
    """`pod_directories`, made again only where the index or what is known of the cluster has changed."""

    def __init__(self, index: CgroupIndex, known: ClusterView) -> None:
        self._index = index
        self._known = known
        self._made_of: tuple[int, object] | None = None
        self._found: tuple[list[PodDirectory], dict[str, str]] = ([], {})

    @property
    def inputs(self) -> tuple[int, object]:
        """What the directories follow from: the version of the index, and what is known of the cluster."""
        return self._index.version, self._known.reported

    def read(self) -> tuple[list[PodDirectory], dict[str, str]]:
        """Return the same as `pod_directories`."""
        inputs = self.inputs
        if not is_same(inputs, self._made_of):
            self._found, self._made_of = pod_directories(self._index), inputs
        return self._found


_MOST_NEW = 16  # pods at one look. Why: their files take 30 ms at first; 110 pods at once would hold the loop for 0.2 s


class HookCollector(Closing):
    """Measures for runtime hooks.

    Args:
        index: of the node's cgroups.
        known: of the cluster.
        cpu: the mount of the cpu controller; None: there is none, and no pod has files to write.
        node_path: of the node below any mount, "" for the machine.
        sysfs: where the CPUs are listed.
        manager: kubelet's cpu_manager_state, which may give isolated CPUs to pods.
    Raises:  SupportError: no sysfs.
    """

    period_ns = 10 * NS_PER_S  # Why: koordlet's --runtime-hooks-reconcile-interval

    def __init__(
        self,
        index: CgroupIndex,
        known: ClusterView,
        cpu: ControllerMount | None,
        node_path: str = "",
        sysfs: Path = SYSFS,
        manager: Path = CPU_MANAGER_STATE,
    ) -> None:
        self._directories = PodDirectoryCache(index, known)
        self._known = known
        self._cpu = cpu
        self._node_path = node_path
        self._cpus = OnlineCpus(sysfs, manager)
        self.due = Due(self.period_ns)
        self.admits_all = False  # pods that are new at the first look: their files hold what they are to hold
        self._seen: tuple[int, object] | None = None  # version of the index; what is known of the cluster
        self._last: HooksMeasured | None = None
        self._known_paths: frozenset[str] = frozenset()  # of pods that were measured last
        self._has_more = False  # new pods wait for the next look
        self._support: dict[CgroupFile, bool] = {}  # of this kernel, once a pod's directory is there

    def measure(self, now_ns: int) -> HooksMeasured | None:
        """Return what is there now; None: nothing has changed, and the last look is less than 10 s ago.

        Cost:    2 µs where nothing has changed; else 2 µs a cgroup of a pod.
        """
        if not self._known.is_whole:
            return None
        seen = self._directories.inputs
        online, isolated = self._cpus.read()
        is_due = self.due.is_nearly_due(now_ns) or self._has_more
        last = self._last
        has_same_input = is_same(seen, self._seen)
        if not is_due and has_same_input and last is not None and (online, isolated) == (last.online, last.isolated):
            return None
        measured = self._measured(online, isolated)
        is_news = self._seen is None or seen[1] is not self._seen[1] or measured != last
        self._seen = seen
        if not (is_due or is_news):
            return None
        self.due.done(now_ns)
        # The same value again lets everything that was worked out from it be found by identity.
        self._last = last if last is not None and measured == last else measured
        return self._last

    def close(self) -> None:
        """Close the list of CPUs."""
        self._cpus.close()

    def _measured(self, online: tuple[int, ...], isolated: tuple[int, ...]) -> HooksMeasured:
        found, directories = self._directories.read()
        pods = self._admitted(found)
        spec = self._known.spec
        return HooksMeasured(
            pods=pods,
            directories=directories,
            applications=self._applications(spec.hostApplications) if spec is not None else (),
            online=online,
            isolated=isolated,
            qos=spec.resourceQOSStrategy if spec is not None else None,
            has_bvt=self._has(CgroupFile.CPU_BVT, pods),
            has_idle=self._has(CgroupFile.CPU_IDLE, pods),
        )

    # All that are known, and of the new ones the first few.
    def _admitted(self, found: list[PodDirectory]) -> tuple[PodDirectory, ...]:
        new = [each for each in found if each.path not in self._known_paths]
        self._has_more = len(new) > _MOST_NEW and not self.admits_all
        self.admits_all = False
        if self._has_more:
            waiting = {each.path for each in new[_MOST_NEW:]}
            found = [each for each in found if each.path not in waiting]
        self._known_paths = frozenset(each.path for each in found)
        return tuple(found)

    # Of the directories of both cgroup drivers one exists.
    def _applications(self, applications: tuple[HostApplication, ...]) -> tuple[ApplicationDirectory, ...]:
        if self._cpu is None:
            return ()
        found = []
        for each in applications:
            for directory in host_directories([each]):
                path = f"{self._node_path}/{directory}".strip("/")
                if self._cpu.mount_point.joinpath(path).is_dir():
                    found.append(ApplicationDirectory(each.name, path, each.qos))
                    break
        return tuple(found)

    def _has(self, file: CgroupFile, pods: tuple[PodDirectory, ...]) -> bool:
        if file not in self._support and self._cpu is not None:
            for each in pods[:1]:
                directory = self._cpu.mount_point / each.path
                if directory.is_dir():
                    self._support[file] = (directory / file.value).exists()
        return self._support.get(file, False)
