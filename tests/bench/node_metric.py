"""What reports of a node with 110 pods take: bytes of an hour, beside koordlet's whole status each minute, and time."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from koordebpf.jobs.node_metric.render import CollectPolicy, Rendering, Reported, with_prediction
from koordebpf.jobs.node_metric.sending import OtherWriter, Send, Sending, limits
from koordebpf.jobs.node_metric.sending import Report as Rendered
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.kube.cache.objects import ObjectMeta, Pod, PodSpec, PodStatus
from koordebpf.kube.colocation.node_metrics import ManagedFields, OwnMeta, OwnNodeMetric
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.state.pods.facts import PodFacts, pod_facts
from koordebpf.state.prediction import Amounts, ProdPrediction
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import GIB, NS_PER_S
from tests.bench.figure import Figure, figure
from tests.bench.machine_hour import MachineHour
from tests.bench.report import Report
from tests.bench.seeded_hour import CAPACITY_BYTES, CAPACITY_MILLICPU, PlayedPod, SeededHour
from tests.support.json_patch import applied

_HOUR_S, _FILLED_S, _INTERVAL_S = 3600, 1800, 60
_EXPIRED_S = 180  # koord-scheduler, nodeMetricExpirationSeconds
_META = {"name": "node-1.example.internal", "uid": "0d4de06c-3f1b-4d6f-a1c5-5e2f0a4c2d11", "generation": 3}


class Hour:
    """The reports of an hour, sent to an object that takes them."""

    def __init__(self, node: SeededHour | MachineHour) -> None:
        self._node = node
        self.sent_bytes: list[int] = []
        self.whole_bytes: list[int] = []
        self.ages_s: list[float] = []
        self.step_ms: list[float] = []
        self.render_ms: list[float] = []
        self.decide_ms: list[float] = []
        self.off_percent: list[float] = []  # of the node's CPU, and of the sums of pods
        self._version = 1
        self._object: Any = {"metadata": {"resourceVersion": "1"}, "status": {}}
        self._sending = Sending(NodeMetricSettings(), OtherWriter("koordebpf"))
        self._facts: dict[str, PodFacts] = {}

    def run(self, seconds: int, *, fills: int = _FILLED_S) -> None:
        """Fill half an hour, then report each minute."""
        store = SeriesStore()
        for second in range(1, fills + seconds + 1):
            store.append_round(second * NS_PER_S, dict(self._node.samples(second)))
            if second > fills and second % _INTERVAL_S == 0:
                self._report(store, second)

    def _report(self, store: SeriesStore, second: int) -> None:
        now_ns, wall_s = second * NS_PER_S, 1_767_323_045 + second
        time_text = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pods = [self._facts.setdefault(each.name, _facts_of(each)) for each in self._node.pods]
        made = Rendering(store, Reported(now_ns=now_ns, time=time_text, policy=CollectPolicy(), pods=pods))
        began_ns = time.thread_time_ns()
        last_ns = began_ns
        for _ in made.steps():
            now = time.thread_time_ns()
            self.step_ms.append((now - last_ns) / 1e6)
            last_ns = now
        self.render_ms.append((time.thread_time_ns() - began_ns) / 1e6)
        assert made.status is not None
        predicted = ProdPrediction(Amounts(9000 + second % 700, 30 * GIB), Amounts(7000 + second % 900, 25 * GIB))
        status = with_prediction(made.status, predicted)
        whole = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": _META, "status": status}
        self.whole_bytes.append(len(json.dumps(whole, separators=(",", ":"))))
        self._send(status, now_ns, wall_s)
        updated = datetime.fromisoformat(self._object["status"]["updateTime"]).timestamp()
        self.ages_s.append(wall_s + _INTERVAL_S - updated)  # by the next report
        self._compare(status)

    def _send(self, status: dict[str, Any], now_ns: int, wall_s: float) -> None:
        self._sending.found(self._found(), now_ns, wall_s, _INTERVAL_S * NS_PER_S)
        within = limits(NodeMetricSettings(), CAPACITY_MILLICPU, CAPACITY_BYTES)
        report = Rendered(now_ns, status, _INTERVAL_S * NS_PER_S, _INTERVAL_S * NS_PER_S, within)
        began_ns = time.thread_time_ns()
        step = self._sending.step(report, now_ns)
        self.decide_ms.append((time.thread_time_ns() - began_ns) / 1e6)
        if not isinstance(step, Send):
            return
        self._sending.starts(step, now_ns)
        self._object = applied(self._object, step.body)
        self._version += 1
        self._object["metadata"]["resourceVersion"] = str(self._version)
        self._sending.answered(step, self._found(), NS_PER_S // 100)
        self.sent_bytes.append(len(step.body))

    def _found(self) -> OwnNodeMetric:
        writer = ManagedFields("koordebpf", "Update", "status", "2026-01-02T03:04:05Z")
        return OwnNodeMetric(OwnMeta("n1", "uid", str(self._version), (writer,)), {}, self._object["status"])

    # How far off what the server has is.
    def _compare(self, exact: dict[str, Any]) -> None:
        there = self._object["status"]
        mine, true = (each["nodeMetric"]["nodeUsage"]["resources"]["cpu"] for each in (there, exact))
        self.off_percent.append(_off(quantity_millicpu(mine), quantity_millicpu(true)))
        for name, number in (("cpu", quantity_millicpu), ("memory", quantity_bytes)):
            sums = [
                sum(number(pod["podUsage"]["resources"][name]) for pod in of["podsMetric"]) for of in (there, exact)
            ]
            self.off_percent.append(_off(*sums))


def node_metric(report: Report) -> None:
    """Report an hour, or ten minutes of it: one of a machine, and one that is made with a seed."""
    _measure(report, "a machine's hour", MachineHour())
    _measure(report, "a seeded hour", SeededHour())


def _measure(report: Report, name: str, node: SeededHour | MachineHour) -> None:
    hour, seconds = Hour(node), 600 if report.quick else _HOUR_S
    hour.run(seconds)
    ours, koordlets = sum(hour.sent_bytes), sum(hour.whole_bytes)
    minutes = seconds // 60
    method = f"{len(hour.sent_bytes)} of {minutes} reports were sent, 110 pods"
    report.add(figure(f"NodeMetric, bytes of a patch, {name}", "B", hour.sent_bytes, method))
    report.add(figure("  koordlet's whole status", "B", hour.whole_bytes, "the same status as one PUT each minute"))
    times = koordlets / ours
    report.add(
        Figure(
            name="  fewer bytes than koordlet's",
            unit="×",
            n=minutes,
            p50=times,
            p99=times,
            worst=times,
            method=f"{koordlets >> 10} KiB ÷ {ours >> 10} KiB",
            reach="≥ 5",
            reached=times >= 5,
        )
    )
    report.add(
        figure("  age when the next could come", "s", hour.ages_s, "koord-scheduler drops at 180 s", reach_p99=150)
    )
    report.add(
        figure("  off by", "%", hour.off_percent, "the node's CPU, and pods' CPU and memory summed up", reach_p99=2)
    )
    report.add(figure("  rendering in the loop's thread", "ms", hour.render_ms, "CPU time, once a minute, in steps"))
    report.add(
        figure("  its longest steps", "ms", hour.step_ms, "CPU time, each between two looks at the clock", reach_p99=1)
    )
    report.add(figure("  what of it is sent", "ms", hour.decide_ms, "CPU time, in a thread of its own"))
    if max(hour.ages_s) >= _EXPIRED_S:
        raise RuntimeError(f"a report was {max(hour.ages_s)} s old")


def _facts_of(pod: PlayedPod) -> PodFacts:
    meta = ObjectMeta(name=f"{pod.name}-7d4b9c6f5-x2x{pod.name[-2:]}", namespace="team-payments", uid=f"uid-{pod.name}")
    return pod_facts(Pod(meta, PodSpec(priority=pod.priority), PodStatus(phase="Running", qosClass=pod.qos)))


def _off(mine: int, exact: int) -> float:
    return abs(mine - exact) / exact * 100
