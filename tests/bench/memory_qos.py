"""Memory QoS of 110 pods in 330 containers on a tree of cgroup v2: a round, and a NodeSLO until all files hold it."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.policy.reconcile import DesiredState
from koordebpf.policy.strategy import Empty
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.strategies.memory_qos.decide import MEMORY_QOS, MemoryQosDecision
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured, MemoryQosSettings
from koordebpf.units import NS_PER_S
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.support.values import memory_qos as values
from tests.support.values.builders import view_of_measured
from tests.support.values.hooks import batch_pod_object
from tests.support.values.memory_qos import GIB, V2, memory

_PODS, _CONTAINERS = 110, 3
_FILES = {"memory.min": "0", "memory.low": "0", "memory.high": "max"}
_DIRECTORIES = {qos: f"kubepods/{qos.lower()}" for qos in ("Burstable", "BestEffort")} | {"Guaranteed": "kubepods"}


class _Node:
    def __init__(self, root: Path, journal: Journal) -> None:
        names = [f"c{number}" for number in range(_CONTAINERS)]
        self.facts = []
        found = []
        for number in range(_PODS):
            is_be = number % 2 == 1
            resources = memory("1Gi", "2Gi", "kubernetes.io/batch-memory" if is_be else "memory")
            kube_qos = "BestEffort" if is_be else "Burstable"
            uid = f"uid-{number}"
            self.facts.append(
                pod_facts(
                    batch_pod_object(
                        "BE" if is_be else "LS", dict.fromkeys(names, resources), uid=uid, name=uid, kube_qos=kube_qos
                    )
                )
            )
            path = f"{_DIRECTORIES[kube_qos]}/pod{uid}"
            found.append(PodDirectory(uid, path, {f"id-{name}": f"{path}/{name}" for name in names}))
        for path in (*_DIRECTORIES.values(), *(p for each in found for p in (each.path, *each.containers.values()))):
            (root / path).mkdir(parents=True, exist_ok=True)
            for name, text in _FILES.items():
                # As long as any value: a file of tmpfs keeps what is behind the last byte written.
                (root / path / name).write_text(text.ljust(20) + "\n")
        self.pods = tuple(found)
        self.writer = CgroupWriter(Places({"memory": ControllerMount(2, root)}), journal, enforce=True)
        self.now_s = 0

    def measured(self, percent: int) -> MemoryQosMeasured:
        fields = {"minLimitPercent": percent, "lowLimitPercent": percent + 10, "throttlingPercent": 80}
        qos = values.memory_qos(ls=fields, be=fields)
        return MemoryQosMeasured(self.pods, _DIRECTORIES, (), tuple(sorted(each.value for each in V2)), qos)

    def round(self, measured: MemoryQosMeasured | None) -> tuple[float, int]:
        """Return how long a round takes, in ms, and how many files it wrote."""
        self.now_s += 1
        node = NodeMeasure(scope="machine", total_bytes=64 * GIB, used_bytes=GIB)
        now_ns = self.now_s * NS_PER_S
        given = Measured(now_ns=now_ns, since_ns=now_ns, node=node)
        view = view_of_measured(given, self.facts)
        started_ns = time.perf_counter_ns()
        made = MEMORY_QOS.decide(view, measured, Empty(), MemoryQosSettings())
        writes = self._apply(made) if made.skipped is None else 0
        return (time.perf_counter_ns() - started_ns) / 1e6, writes

    def _apply(self, made: MemoryQosDecision) -> int:
        return self.writer.apply(DesiredState(made.reason, made.writes), self.now_s * NS_PER_S, "memoryQos").writes


def memory_qos(report: Report) -> None:
    """Write all files, change a percentage of the NodeSLO again and again, and look at rounds without a change."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, Journal(Path(folder) / "journal") as journal:
        node = _Node(Path(folder) / "cgroup", journal)
        n = 20 if report.quick else 100
        either = [node.measured(60), node.measured(70)]  # values of as many digits
        first_ms, files = node.round(either[0])
        what = f"{_PODS} pods, {_PODS * _CONTAINERS} containers, {files} files on tmpfs"
        report.add(figure("memory QoS, first round", "ms", [first_ms], f"{what}; with the journal"))
        gc.collect()
        gc.freeze()
        changes = [node.round(either[(number + 1) % 2]) for number in range(n)]
        # Containers' memory.high does not depend on the percentage.
        if {count for _, count in changes} != {files - _PODS * _CONTAINERS}:
            raise RuntimeError(f"{ {count for _, count in changes} } files were written")
        took = [ms for ms, _ in changes]
        report.add(figure("memory QoS, another NodeSLO", "ms", took, f"{what}; to the last file", reach_p99=200))
        last = either[n % 2]
        same = [node.round(last)[0] for _ in range(5 * n)]
        report.add(figure("memory QoS, nothing to change", "ms", same, f"{what}; a round in which a look is due"))
        idle = [node.round(None)[0] * 1000 for _ in range(5 * n)]
        report.add(figure("memory QoS, not due", "µs", idle, what))
        gc.unfreeze()
