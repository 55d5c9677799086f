"""Service level indicators: what best-effort pods cost the others, and what evictions cost best-effort pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.report.prom.bounded import by_label
from koordebpf.report.prom.decision import Histogram
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY
from koordebpf.state.stalls.ledger import Charge
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import NS_PER_S

_LEAD_BOUNDS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_MILLI = 1_000


class IndicatorMetrics:
    """The numbers that the recording rules of deploy/monitoring make indicators of.

    An eviction was needless if the node would have been below the threshold without it when its memory was back. Its
    lead is the time after which the node would have been full, by the forecast that it was decided with. A pod's lost
    CPU time is what it used since this agent saw it first, at the moment of its eviction.
    """

    def __init__(self) -> None:
        self._ls_stalls_by_be_ns = 0
        self._be_used_s: float | None = None  # None: CPUs are not measured
        self._be_lost_s: float | None = None  # None: those of pods are not
        self._used_s: dict[str, float] = {}  # of best-effort pods that are there, by uid
        self._looked_ns: int | None = None
        self._returned: list[tuple[int, int]] = []  # bytes that are back, and the threshold; till the next look
        self._needless = 0
        self._lead = Histogram(_LEAD_BOUNDS_S)
        self._oom_kills = {"node": 0, "limit": 0}
        self._be_bytes: int | None = None
        self._batch_bytes: int | None = None
        self._batch_millicpu: int | None = None

    def charge(self, charges: Sequence[Charge], pods: Iterable[PodFacts]) -> None:
        """Add what other pods stalled on account of best-effort ones."""
        if charges:
            be = {pod.uid for pod in pods if _is_best_effort(pod)}
            self._ls_stalls_by_be_ns += sum(
                each.ns
                for each in charges
                if each.victim.kind == "pod" and each.victim.uid not in be and each.cause.uid in be
            )

    def take(self, view: NodeView) -> None:
        """Take over what a full measurement says; evictions whose memory came back before it are judged."""
        be = [pod for pod in view.pods if _is_best_effort(pod)]
        self._be_bytes = sum(pod.memory.usage_bytes for pod in be if pod.memory is not None)
        self._batch_bytes = (view.allocatable or {}).get(BATCH_MEMORY)
        self._batch_millicpu = (view.cpu.allocatable or {}).get(BATCH_CPU) if view.cpu else None
        self._add_cpu(be, view)
        returned, self._returned = self._returned, []
        if view.used_bytes is not None:
            self._needless += sum(view.used_bytes + back < threshold for back, threshold in returned)

    def _add_cpu(self, be: Sequence[PodView], view: NodeView) -> None:
        before, self._looked_ns = self._looked_ns, view.now_ns
        if view.cpu is None:
            return
        seconds = 0.0 if before is None else (view.now_ns - before) / NS_PER_S
        used = {pod.uid: pod.cpu_used_millicpu for pod in be if pod.cpu_used_millicpu is not None}
        is_by_pod = len(used) == len(be)
        usage = view.cpu.measured.usage
        # Suppression measures the best-effort directory, and no pod in it.
        millicpu = sum(used.values()) if is_by_pod else usage.be_used_millicpu if usage else None
        if millicpu is not None:
            self._be_used_s = (self._be_used_s or 0.0) + millicpu / _MILLI * seconds
        if is_by_pod:
            self._be_lost_s = self._be_lost_s or 0.0
            self._used_s = {uid: self._used_s.get(uid, 0.0) + more / _MILLI * seconds for uid, more in used.items()}

    def decided(self, view: NodeView) -> None:
        """Count the lead of a plan that evicts: a node that did not grow has none."""
        if view.forecast is not None and view.forecast.oom is not None:
            self._lead.observe_ns(view.forecast.oom.point_ns)

    def evicted(self, uid: str) -> None:
        """Count what a pod that was evicted had used."""
        if self._be_lost_s is not None:
            self._be_lost_s += self._used_s.pop(uid, 0.0)

    def released(self, back_bytes: int, threshold: int | None) -> None:
        """Note memory of an eviction that is back; `threshold` None: its feature does not judge memory in use."""
        if threshold is not None:
            self._returned.append((back_bytes, threshold))

    def oom_killed(self, *, is_global: bool) -> None:
        """Count a kill by the kernel."""
        self._oom_kills["node" if is_global else "limit"] += 1

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        yield CounterMetricFamily(
            "koordebpf_ls_stall_by_be_seconds",
            "Time tasks of other pods stalled for memory, charged to best-effort ones.",
            self._ls_stalls_by_be_ns / NS_PER_S,
        )
        if self._be_used_s is not None:
            text = "CPU time of best-effort pods."
            yield CounterMetricFamily("koordebpf_be_cpu_seconds", text, self._be_used_s)
        if self._be_lost_s is not None:
            text = "CPU time that best-effort pods had used when they were evicted."
            yield CounterMetricFamily("koordebpf_be_lost_cpu_seconds", text, self._be_lost_s)
        if self._be_bytes is not None:
            text = "Memory of best-effort pods, page cache included."
            yield GaugeMetricFamily("koordebpf_be_memory_bytes", text, self._be_bytes)
        if self._batch_bytes is not None:
            text = "Memory that the Node has for batch pods."
            yield GaugeMetricFamily("koordebpf_batch_allocatable_bytes", text, self._batch_bytes)
        if self._batch_millicpu is not None:
            text = "CPUs that the Node has for batch pods."
            yield GaugeMetricFamily("koordebpf_batch_allocatable_cores", text, self._batch_millicpu / _MILLI)
        text = "Evictions without which the node would have been below the threshold when their memory was back."
        yield CounterMetricFamily("koordebpf_needless_evictions", text, self._needless)
        text = "From a plan that evicts to when the node would have been full, as forecast."
        yield self._lead.family("koordebpf_lead_over_oom_seconds", text)
        text = "Processes that the kernel's OOM killer killed, by whose limit it was."
        yield by_label(CounterMetricFamily, "koordebpf_oom_kills", text, "scope", self._oom_kills)


def _is_best_effort(pod: PodFacts | PodView) -> bool:
    return pod.koord_qos == "BE" or (not pod.koord_qos and pod.kube_qos == "BestEffort")
