"""resctrl in a running agent: measures for it, makes and removes groups, and moves tasks.

It measures what the hardware takes, which groups there are, and what monitoring says of them. Schemata are written as
files of any other strategy are, by `OwnStrategies`: in the round after a group was made.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.errors import CgroupGone, KernelFileError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.cgroup.subtree import task_numbers, tasks_of
from koordebpf.kernel.host.written_texts import parse_schemata
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.kernel.proc.mounts import read_mounts
from koordebpf.policy.strategy import GATE_OFF, Decision
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.slo.spec import NodeSLOSpec
from koordebpf.slo.strategies.resource_qos import QOSClass
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.state.view import NodeView
from koordebpf.strategies.resctrl.decide import RDT_RESCTRL, ResctrlDecision
from koordebpf.strategies.resctrl.groups import ResctrlGroups, recorded_groups
from koordebpf.strategies.resctrl.values import (
    CLASSES,
    GROUPS,
    BandwidthInfo,
    BandwidthUnit,
    CacheInfo,
    MonitoredDomain,
    PodTasks,
    ResctrlMeasured,
)

RESCTRL = Path("/sys/fs/resctrl")
_MOST_PERCENT, _MOST_ABSOLUTE = 100, 2048  # MAX_MBA_BW, MAX_MBA_BW_AMD of arch/x86/kernel/cpu/resctrl
_ABSOLUTE_VENDORS = (b"AuthenticAMD", b"HygonGenuine")
_PREFIX = "mon_L3_"
_MOST_DOMAINS = 64  # Why: L3 caches of the largest machines


class ResctrlCollector:
    """Measures for resctrl.

    Args:
        root: where resctrl is mounted.
        index: of the node's cgroups.
        proc: where cpuinfo and self/mountinfo are.
        counted_in: the mount in which pods' tasks are counted; None: they are not. It costs 30 µs a cgroup.
    """

    def __init__(
        self, root: Path, index: CgroupIndex, proc: Path = Path("/proc"), *, counted_in: Path | None = None
    ) -> None:
        self._root = root
        self._index = index
        self._proc = proc
        self._counted_in = counted_in

    def measure(self, spec: NodeSLOSpec | None, made: Collection[str]) -> ResctrlMeasured:
        """Return what is there now; `made` are the groups that this agent has made.

        Cost:    0.3 ms.
        """
        classes = {}
        for group, name in CLASSES.items():
            of_class: QOSClass | None = getattr(spec.resourceQOSStrategy, name) if spec is not None else None
            if of_class is not None and of_class.resctrlQOS is not None:
                classes[group] = of_class.resctrlQOS
        try:
            resources = parse_schemata(read_kernel_file(self._root / "schemata").text, str(self._root / "schemata"))
            l3, mb = self._l3(resources), self._mb(resources)
        except (CgroupGone, FileNotFoundError):
            problem = f"resctrl is not mounted at {self._root}, or the CPU or the kernel has none of it"
            return ResctrlMeasured(classes, problem=problem)
        except (OSError, KernelFileError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            return ResctrlMeasured(classes, problem=f"resctrl: {self._root} cannot be read: {why}")
        there = tuple(group for group in CLASSES if (self._root / group).is_dir())
        pods = self._pods()
        return ResctrlMeasured(
            classes,
            l3,
            mb,
            tuple(group for group in there if group in made),
            tuple(group for group in there if group not in made),
            pods,
            tasks=self._tasks(pods, there) if self._counted_in is not None else {},
        )

    def _l3(self, resources: dict[str, dict[int, int]]) -> CacheInfo | None:
        names = tuple(sorted(name for name in resources if name.startswith("L3")))
        if not names:
            return None
        info = self._root / "info" / names[0]
        mask = _number(info / "cbm_mask", 16)
        return CacheInfo(mask, _number(info / "min_cbm_bits"), names, tuple(sorted(resources[names[0]])))

    def _mb(self, resources: dict[str, dict[int, int]]) -> BandwidthInfo | None:
        values = resources.get("MB")
        if values is None:
            return None
        info, unit = self._root / "info/MB", self._unit()
        most = _MOST_PERCENT if unit == "percent" else max(_MOST_ABSOLUTE, *values.values())
        least, gran = _number(info / "min_bandwidth"), _number(info / "bandwidth_gran")
        return BandwidthInfo(least, gran, unit, most, tuple(sorted(values)))

    def _unit(self) -> BandwidthUnit:
        mounts = read_mounts(self._proc / "self/mountinfo", ("resctrl",))
        if any("mba_MBps" in each.options.split(",") for each in mounts):
            return "mbps"
        for line in (self._proc / "cpuinfo").read_bytes().split(b"\n"):
            if line.startswith(b"vendor_id"):
                return "absolute" if line.rpartition(b" ")[2] in _ABSOLUTE_VENDORS else "percent"
        return "percent"

    # A directory counts as a pod's only where it bears that pod's own UID, whatever its annotations say.
    def _pods(self) -> tuple[PodDirectory, ...]:
        found = []
        for uid, cgroup_id in self._index.pod_cgroups().items():
            owner = self._index.owner(cgroup_id)
            if owner is None or owner.kind is not OwnerKind.POD:
                continue
            path = owner.path.strip("/")
            if bears(path.rpartition("/")[2], self._index.names_to_act_on(uid)):
                found.append(PodDirectory(uid, path))
        return tuple(found)

    def _tasks(self, pods: tuple[PodDirectory, ...], groups: tuple[str, ...]) -> dict[str, PodTasks]:
        assert self._counted_in is not None
        in_groups = {group: _listed(self._root / group / "tasks") for group in groups}
        found = {}
        for pod in pods:
            tasks = tasks_of(self._counted_in / pod.path)
            among = {group: len(tasks & listed) for group, listed in in_groups.items() if tasks & listed}
            found[pod.uid] = PodTasks(len(tasks), among)
        return found


def _number(path: Path, base: int = 10) -> int:
    text = read_kernel_file(path).text
    try:
        value = int(text, base)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 32:  # as the kernel keeps them
        raise KernelFileError(str(path), text, "must be a number of 32 bits")
    return value


def _listed(tasks: Path) -> set[int]:
    try:
        fd = os.open(tasks, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # the group was removed meanwhile
        return set()
    try:
        return task_numbers(fd)
    finally:
        os.close(fd)


# Reads what resctrl's monitoring says of the groups of QoS classes.
#
# Source:  Documentation/filesystems/resctrl.rst, "Resource alloc and monitor groups"; koordinator
#          pkg/koordlet/metricsadvisor/collectors/resctrl.


def read_monitoring(root: Path) -> tuple[MonitoredDomain, ...]:
    """Return what each cache says of each class that has a group; nothing where there is no monitoring.

    Cost:    50 µs a value: the kernel asks a CPU beside that cache.
    """
    found = []
    for group in CLASSES:
        try:
            names = sorted(each.name for each in (root / group / "mon_data").iterdir())
        except OSError:
            continue
        for name in [name for name in names if name.startswith(_PREFIX)][:_MOST_DOMAINS]:
            domain = name.removeprefix(_PREFIX)
            if domain.isdecimal():
                here = root / group / "mon_data" / name
                kinds = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
                found.append(MonitoredDomain(group, int(domain), *(_bytes(here / kind) for kind in kinds)))
    return tuple(found)


# Unavailable, Unassigned and Error are no numbers: there is no counter for the group now.
def _bytes(path: Path) -> int | None:
    with contextlib.suppress(CgroupGone, OSError, KernelFileError, ValueError):
        return int(read_kernel_file(path).text)
    return None


class RdtResctrlRunner(StrategyRunner[ResctrlMeasured, ResctrlDecision]):
    """Makes, fills and removes groups.

    Args:
        known: of the cluster.
        collector: of what resctrl has.
        groups: that this agent makes.
        others: names of those that another agent of this node has made: a frame is made beside it.
    """

    def __init__(
        self, known: ClusterView, collector: ResctrlCollector, groups: ResctrlGroups, others: Collection[str] = ()
    ) -> None:
        super().__init__("resctrl", RDT_RESCTRL, ResctrlDecision, self._measured)
        self._known = known
        self._collector = collector
        self._groups = groups
        self._others = others

    def _measured(self, _now_ns: int) -> ResctrlMeasured | None:
        if not self._known.is_whole:
            return None
        return self._collector.measure(self._known.spec, {*self._groups.made, *self._others})

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Make, fill and remove groups; all are removed where the gate is off."""
        super().carry_out(decisions, view)
        made = decisions.get(RDT_RESCTRL.name)
        if made is not None and made.skipped == GATE_OFF:
            self._groups.restore(view.now_ns)

    def act(self, made: ResctrlDecision, view: NodeView) -> Iterable[str]:
        """Make, fill and remove groups."""
        self._groups.apply(made.groups, made.members, view.now_ns)
        return made.problems

    def close(self) -> None:
        """Remove the groups."""
        self._groups.restore(time.monotonic_ns())


def open_runner(node: NodeContext) -> RdtResctrlRunner | None:
    """Return it; None: its gate is off. Groups that an agent left which was killed are removed then."""
    record = node.folder / GROUPS if node.folder else None
    is_on = bool(node.config.feature_gates.get(RDT_RESCTRL.gate))
    mounts, watch = find_controllers(), node.measuring.watch
    hierarchy = mounts["cpu"].mount_point if "cpu" in mounts else watch.scope.hierarchy.mount_point
    groups = ResctrlGroups(RESCTRL, hierarchy, record, node.report)
    if not is_on:
        groups.restore(time.monotonic_ns())
        return None
    collector = ResctrlCollector(RESCTRL, watch.index, counted_in=hierarchy if node.is_one_frame else None)
    others = recorded_groups(node.other_folder / GROUPS) if node.other_folder is not None else ()
    runner = RdtResctrlRunner(node.measuring.known, collector, groups, others)
    node.stack.callback(runner.close)
    return runner
