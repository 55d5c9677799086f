"""Memory QoS in a running agent: directories of pods, which of its files this kernel has, what protects those above.

Directories are found as for runtime hooks. What of its input cannot be used is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.collect.pod_directories import HookCollector
from koordebpf.errors import CgroupGone, KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, Value, file_name, parse_value
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.pods.hook_pods import HooksMeasured
from koordebpf.state.view import NodeView
from koordebpf.strategies.memory_qos.decide import (
    MEMORY_QOS,
    MemoryQosDecision,
    PodWrites,
    directory_writes,
    pod_writes,
)
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured, Protection, memory_qos_view

_ALL = "Guaranteed"  # the directory of all pods
_FILES = tuple(each for each in CgroupFile if each.controller == "memory")
log = logging.getLogger(__name__)


class MemoryQosCollector(Closing):
    """Measures for memory QoS.

    Args:
        directories: looks when it is due.
        memory: the mount of the memory controller.
        node_path: of the node below the mount, "" for the machine. Its own protection is from what is outside it.
    """

    def __init__(self, directories: HookCollector, memory: ControllerMount, node_path: str = "") -> None:
        self._directories = directories
        self._memory = memory
        self._node_path = node_path
        self._files: tuple[str, ...] = ()  # of this kernel, once a pod's directory is there
        self._last: MemoryQosMeasured | None = None

    def measure(self, now_ns: int) -> MemoryQosMeasured | None:
        """Return what is there now; None: nothing has changed, and the last look is less than 10 s ago.

        Raises:  KernelFileError: a file above the pods is not of its form.
        Cost:    2 µs where nothing has changed; else as HookCollector, and 30 µs a directory above pods.
        """
        found = self._directories.measure(now_ns)
        if found is None:
            return None
        self._files = self._files or self._support(found)
        measured = MemoryQosMeasured(
            pods=found.pods,
            directories=found.directories,
            above=self._above(found.directories.get(_ALL)),
            files=self._files,
            qos=found.qos,
        )
        # The same value again lets everything that was worked out from it be found by identity.
        self._last = self._last if measured == self._last else measured
        return self._last

    def close(self) -> None:
        """Close what finding directories keeps open."""
        self._directories.close()

    def _support(self, found: HooksMeasured) -> tuple[str, ...]:
        for each in found.pods:
            directory = self._memory.mount_point / each.path
            if directory.is_dir():
                names = ((file, file_name(file, self._memory.version)) for file in _FILES)
                return tuple(file.value for file, name in names if name and (directory / name).exists())
        return ()

    # The root of the hierarchy has no such files, and limits nothing.
    def _above(self, path: str | None) -> tuple[Protection, ...]:
        above: list[Protection] = []
        while path and (path := path.rpartition("/")[0]) not in ("", self._node_path):
            try:
                least, low = self._bytes(path, CgroupFile.MEMORY_MIN), self._bytes(path, CgroupFile.MEMORY_LOW)
            except (OSError, CgroupGone):
                continue
            above.append(Protection(path, least, low))
        return tuple(reversed(above))

    def _bytes(self, path: str, file: CgroupFile) -> int | None:
        name = file_name(file, self._memory.version)
        if name is None:
            raise FileNotFoundError(file.value)
        at = self._memory.mount_point / path / name
        value: Value = parse_value(file, self._memory.version, read_kernel_file(at).text, str(at))
        if value is not None and not isinstance(value, int):
            raise KernelFileError(str(at), str(value), "must be a number or max")
        return value


class MemoryQosRunner(StrategyRunner[MemoryQosMeasured, MemoryQosDecision]):
    """Asks the collector, logs problems once, and shows what is protected."""

    def __init__(self, collector: MemoryQosCollector) -> None:
        super().__init__("memory QoS", MEMORY_QOS, MemoryQosDecision, collector.measure)
        self._protected_bytes: Mapping[str, Mapping[str, int]] = {}  # by file, then by Kubernetes QoS

    def act(self, made: MemoryQosDecision, view: NodeView) -> Iterable[str]:
        """Report what is protected."""
        self._protected_bytes = made.protected_bytes
        return made.problems

    def families(self) -> Iterable[Metric]:
        """Yield what is protected, once it was decided."""
        if protected := self._protected_bytes:
            text = "Memory that memory QoS protects, in a dry run would; Guaranteed has that of all pods."
            family = GaugeMetricFamily("koordebpf_protected_bytes", text, labels=["file", "kube_qos"])
            for file, by_qos in protected.items():
                for kube_qos, value in by_qos.items():
                    family.add_metric((file, kube_qos), value)
            yield family

    def lines(self, measured: MemoryQosMeasured, made: MemoryQosDecision, view: NodeView) -> Mapping[str, PodLines]:
        """Return the files of each pod, and what its directories lack."""
        node = memory_qos_view(measured, view.facts, view.frame.node)
        directories = {each.uid: each for each in measured.pods}
        of_pods = {pod.uid: pod_writes(pod, directories[pod.uid], made.rules) for pod in node.pods}
        above = directory_writes(node, of_pods.values(), made.rules)
        return {uid: _lines(own, above) for uid, own in of_pods.items()}


def _lines(own: PodWrites, above: PodWrites) -> PodLines:
    wanted = (*own.writes, *(each for each in above.writes if each.write.path == own.path))
    settings = (
        PodSetting(each.write.path, each.write.file.value, each.hook, each.source, each.write.value)
        for each in wanted
        if each.write.value is None or isinstance(each.write.value, int)
    )
    is_protected = bool(own.min_bytes or own.low_bytes)
    return PodLines(own.path, tuple(settings), (*own.problems, *(above.problems if is_protected else ())))


def open_runner(node: NodeContext) -> MemoryQosRunner | None:
    """Return it; None: there is no memory controller, which is logged.

    Where files may hold what an agent before this one wrote all pods are looked at at once.

    Raises:  SupportError: no sysfs.
    """
    memory = find_controllers().get("memory")
    if memory is None:
        log.warning("memory QoS has no effect: this host has no memory controller")
        return None
    watch = node.measuring.watch
    directories = HookCollector(watch.index, node.measuring.known, memory, watch.scope.node_path)
    directories.due = node.due(directories.period_ns)
    directories.admits_all = node.writer.is_journalled or node.is_one_frame
    collector = MemoryQosCollector(directories, memory, watch.scope.node_path)
    node.stack.callback(collector.close)
    return MemoryQosRunner(collector)
