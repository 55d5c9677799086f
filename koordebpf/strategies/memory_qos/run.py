"""Memory QoS in a running agent: measures for it, and reports what of its input cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.collect.pod_directories import HookCollector
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.view import NodeView
from koordebpf.strategies.memory_qos.decide import (
    MEMORY_QOS,
    MemoryQosDecision,
    PodWrites,
    directory_writes,
    pod_writes,
)
from koordebpf.strategies.memory_qos.measure import MemoryQosCollector
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured, memory_qos_view

log = logging.getLogger(__name__)


class MemoryQosRunner(StrategyRunner[MemoryQosMeasured, MemoryQosDecision]):
    """Asks the collector, logs problems once, and shows what is protected."""

    def __init__(self, collector: MemoryQosCollector) -> None:
        super().__init__("memory QoS", MEMORY_QOS, MemoryQosDecision, collector.measure)
        self._protected_bytes: Mapping[str, Mapping[str, int]] = {}  # by file, then by Kubernetes QoS

    def take(self, made: MemoryQosDecision, view: NodeView) -> Iterable[str]:
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
