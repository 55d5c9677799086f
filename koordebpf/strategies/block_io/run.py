"""Block IO in a running agent: finds what the limits of devices go to, and reports what of its input cannot be used.

It looks each 10 s, and when something has changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.attribution.index import CgroupIndex
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import ClusterView, is_same
from koordebpf.collect.pod_directories import PodDirectoryCache
from koordebpf.kernel.cgroup.files import CgroupFile, file_name
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.kernel.host.block_devices import WholeDisks, whole_disks
from koordebpf.kernel.proc.mounts import MOUNTINFO
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.state.view import NodeView
from koordebpf.strategies.block_io.decide import BLOCK_IO, BlockIODecision, BlockWrite
from koordebpf.strategies.block_io.values import (
    BLKIO_QOS_ANNOTATION,
    BlockIOMeasured,
    Disks,
    PodDirectories,
    block_io_view,
)
from koordebpf.units import NS_PER_S

_FILES = tuple(each for each in CgroupFile if each.controller in ("blkio", "io"))
_CLASSES = ("beClass", "lsrClass", "lsClass", "cgroupRoot")
_GUARANTEED = "Guaranteed"
_IN_ROOT = "blkio.cost."
# The agent's own, and where it has the host's PIDs those of the node's init.
MOUNT_TABLES = (MOUNTINFO, Path("/proc/1/mountinfo"))
log = logging.getLogger(__name__)


class BlockIOCollector:
    """Measures for the strategy of block IO.

    Args:
        index: of the node's cgroups.
        known: of the cluster.
        mount: of the controller blkio or io.
        kubelet_dir: kubelet's --root-dir.
        sysfs: where block devices are listed.
        mountinfo: tables of mounts; of a mount point the last one counts.
    """

    period_ns = 10 * NS_PER_S  # Why: as of runtime hooks; koordlet has 1 s

    def __init__(
        self,
        index: CgroupIndex,
        known: ClusterView,
        mount: ControllerMount,
        kubelet_dir: str,
        sysfs: Path = Path("/sys"),
        mountinfo: Sequence[Path] = MOUNT_TABLES,
    ) -> None:
        self._directories = PodDirectoryCache(index, known)
        self._known = known
        self._mount = mount
        self._pods_dir = f"{kubelet_dir.rstrip('/')}/pods"
        self._sysfs = sysfs
        self._mountinfo = mountinfo
        self.due = Due(self.period_ns)
        self._seen: tuple[int, object] | None = None  # version of the index; what is known of the cluster

    def measure(self, now_ns: int) -> BlockIOMeasured | None:
        """Return what is there now; None: nothing has changed, and the last look is less than 10 s ago.

        Devices and mounts are read only where a NodeSLO or a pod names any.

        Raises:  SupportError: no sysfs or procfs.
        Cost:    1 µs where nothing has changed; else 2 µs a cgroup of a pod, and as `whole_disks`.
        """
        if not self._known.is_whole:
            return None
        seen = self._directories.inputs
        if is_same(seen, self._seen) and not self.due.is_nearly_due(now_ns):
            return None
        measured = self._measured()
        self._seen = seen
        self.due.done(now_ns)
        return measured

    def _measured(self) -> BlockIOMeasured:
        pods, directories = self._pods()
        spec = self._known.spec
        qos = spec.resourceQOSStrategy if spec is not None else None
        asking = {
            each.uid for each in self._known.facts if (each.pod.metadata.annotations or {}).get(BLKIO_QOS_ANNOTATION)
        }
        measured = BlockIOMeasured(
            version=self._mount.version, pods=pods, directories=directories, files=self._files(directories), qos=qos
        )
        if not asking and not _has_blocks(qos):
            return measured
        readable = [each for each in self._mountinfo if os.access(each, os.R_OK)]
        disks = whole_disks(self._sysfs, readable or self._mountinfo, self._pods_dir)
        with_volumes = tuple(
            replace(each, volumes=self._volumes(each.uid, disks)) if each.uid in asking else each for each in pods
        )
        return replace(measured, pods=with_volumes, devices=disks.devices, groups=disks.groups)

    def _pods(self) -> tuple[tuple[PodDirectories, ...], Mapping[str, str]]:
        found, directories = self._directories.read()
        return tuple(PodDirectories(each.uid, each.path, each.containers) for each in found), directories

    # <dir>/<uid>/volumes/<plugin>/<name>, of CSI with /mount behind it.
    def _volumes(self, uid: str, disks: WholeDisks) -> Mapping[str, Disks]:
        place = f"{self._pods_dir}/{uid}/volumes/"
        found: dict[str, Disks] = {}
        for at, below in disks.mounts.items():
            parts = at.removeprefix(place).split("/") if at.startswith(place) else []
            if len(parts) == 2 or (len(parts) == 3 and parts[2] == "mount"):
                found[parts[1]] = below
        return found

    def _files(self, directories: Mapping[str, str]) -> tuple[CgroupFile, ...]:
        path = directories.get("BestEffort") or directories.get("Burstable") or directories.get(_GUARANTEED)
        found = []
        for file in _FILES:
            name = file_name(file, self._mount.version)
            at = "" if file.value.startswith(_IN_ROOT) else path
            if name is not None and at is not None and (self._mount.mount_point / at / name).exists():
                found.append(file)
        return tuple(found)


def _has_blocks(qos: ResourceQOSStrategy | None) -> bool:
    parts = (getattr(qos, each, None) for each in _CLASSES)
    return any(each is not None and each.blkioQOS and each.blkioQOS.enable and each.blkioQOS.blocks for each in parts)


class BlockIOMetrics:
    """What block IO shows of itself; its writes count in `koordebpf_file_writes`."""

    def __init__(self) -> None:
        self._cgroups = 0

    def record(self, made: BlockIODecision) -> None:
        """Take over what was decided when it was due last."""
        self._cgroups = len({each.path for each in made.writes})

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        text = "Cgroups that have limits of block devices; in a dry run, would have."
        yield GaugeMetricFamily("koordebpf_block_io_cgroups", text, self._cgroups)


class BlockIORunner(StrategyRunner[BlockIOMeasured, BlockIODecision]):
    """Asks the collector, and reports how much is limited."""

    def __init__(self, collector: BlockIOCollector, metrics: BlockIOMetrics) -> None:
        super().__init__("block IO", BLOCK_IO, BlockIODecision, collector.measure)
        self._metrics = metrics
        self._said = ""

    def act(self, made: BlockIODecision, view: NodeView) -> Iterable[str]:
        """Report how much is limited where that has changed."""
        if made.reason != self._said:
            log.info("%s", made.reason)
        self._said = made.reason
        self._metrics.record(made)
        return made.problems

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self._metrics.families()

    def lines(self, measured: BlockIOMeasured, made: BlockIODecision, view: NodeView) -> Mapping[str, PodLines]:
        """Return the limits of each pod's directories."""
        found = {}
        for pod in block_io_view(measured, view.facts).pods:
            own = (each for each in made.sources if f"{each.write.path}/".startswith(f"{pod.path}/"))
            found[pod.uid] = PodLines(pod.path, tuple(_line(each) for each in own))
        return found


def _line(limit: BlockWrite) -> PodSetting:
    write = limit.write
    return PodSetting(write.path, write.file.value, BLOCK_IO.gate, limit.source, str(write.value))


def open_runner(node: NodeContext) -> BlockIORunner | None:
    """Return it; None: the node has no controller blkio or io, which is logged."""
    mounts = find_controllers()
    mount = mounts.get("blkio") or mounts.get("io")
    if mount is None:
        log.warning("feature gate %s: this node has no controller blkio or io: no device is limited", BLOCK_IO.gate)
        return None
    settings, watch = node.settings_of(BLOCK_IO), node.measuring.watch
    collector = BlockIOCollector(watch.index, node.measuring.known, mount, settings.kubelet_dir)
    collector.due = node.due(collector.period_ns)
    return BlockIORunner(collector, BlockIOMetrics())
