"""The sink of the metrics."""

from __future__ import annotations

from koordebpf.decision.strategies import STRATEGIES
from koordebpf.policy.detect.verdict import UseEvidence
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import FeaturePlan
from koordebpf.report.ended_shortages import JudgedFeatures
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.amount import MEMORY, Amount
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PendingRelease
from koordebpf.store.open_plans import OpenPlans, is_acting
from koordebpf.store.sink import (
    EligibilityCounted,
    Event,
    ExemptCounted,
    MemoryReleased,
    OomKilled,
    PlanDecided,
    RoundEnded,
    StallsCharged,
    TickEnded,
    TickFailed,
)
from koordebpf.units import NS_PER_S


class MetricsSink:
    """Brings the metrics up to date with each event."""

    name = "metrics"
    takes = (
        PlanDecided,
        OutcomeArrived,
        MemoryReleased,
        OomKilled,
        StallsCharged,
        EligibilityCounted,
        ExemptCounted,
        RoundEnded,
        TickEnded,
        TickFailed,
    )

    def __init__(self, metrics: AgentMetrics, plans: OpenPlans) -> None:
        self._metrics = metrics
        self._plans = plans
        self._judged = JudgedFeatures()
        metrics.decision.is_dry_run = plans.dry_run

    def publish(self, event: Event) -> None:
        """Count and measure."""
        match event:
            case PlanDecided():
                self._decided(event)
            case OutcomeArrived(outcome):
                self._count(outcome)
            case MemoryReleased(entry) if self._plans.is_awaited(event):
                self._released(entry)
            case OomKilled(record):
                self._metrics.indicators.oom_killed(is_global=record.is_global)
            case StallsCharged():
                self._charge(event)
            case ExemptCounted(held_bytes):
                self._metrics.decision.exempt_bytes = held_bytes
            case EligibilityCounted(found):
                self._metrics.node.eligibility = found
            case RoundEnded():
                self._ended(event)
            case TickEnded():
                self._tick()
            case TickFailed():
                self._metrics.failed_ticks += 1

    def _decided(self, event: PlanDecided) -> None:
        if event.crossed_ns is not None and is_acting(event.outcomes):
            self._metrics.decision.seen_to_decided.observe_ns(event.decided_ns - event.crossed_ns)
        for outcome in event.outcomes:
            if outcome.result is Result.DRY_RUN:  # the others come by `OutcomeArrived`
                self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        self._metrics.count_outcome(outcome, self._plans.feature(outcome.uid))
        if outcome.result is Result.DONE:
            self._metrics.indicators.evicted(outcome.uid)

    def _released(self, entry: PendingRelease) -> None:
        metrics = self._metrics
        metrics.decision.released_bytes += entry.credit_bytes
        marks = metrics.node.marks.get(self._plans.feature(entry.uid), {})
        metrics.indicators.released(entry.credit_bytes, marks.get("threshold"))

    def _charge(self, event: StallsCharged) -> None:
        news, pods = event.news, self._metrics.pods
        self._metrics.ledger.add(news.charges)
        self._metrics.indicators.charge(news.charges, event.pods)
        for pod in event.pods if news.by_pod else ():
            if row := news.by_pod.get(pod.uid):
                pods.add_stall(pod.namespace, pod.name, "global", row.global_ns)
                pods.add_stall(pod.namespace, pod.name, "limit", row.limit_ns)

    def _ended(self, event: RoundEnded) -> None:
        metrics, view, decision, signals = self._metrics, event.view, event.decision, event.signals
        metrics.record(view)
        if decision.carried is not None and decision.plan.victims and not metrics.decision.is_dry_run:
            metrics.indicators.decided(view)
        metrics.decision.closed_guards = tuple(guard.code for guard in decision.guards)
        for feature in self._judged.after(decision.plan.features, has_cpu=view.cpu is not None):
            self._judge(feature)
        for each in STRATEGIES:
            if (made := decision.strategies.get(each.name)) is not None and made.skipped:
                metrics.decision.count_skipped(each.gate, made.skipped)
        for guard in decision.holding if decision.plan.victims else ():
            metrics.decision.count_skipped("act", guard.code)
        metrics.signals.record(signals)
        if signals.pods_synced_ns is not None:
            metrics.pods.synced_age_s = (view.now_ns - signals.pods_synced_ns) / NS_PER_S

    def _judge(self, feature: FeaturePlan) -> None:
        name, decision = feature.verdict.feature, self._metrics.decision
        decision.needs[name] = Amount(feature.balance.resource, feature.balance.need)
        if feature.balance.resource == MEMORY:
            self._metrics.node.marks[name] = _marks(feature.verdict.evidence)
        if feature.verdict.skipped:
            decision.count_skipped(name, feature.verdict.skipped)

    def _tick(self) -> None:
        self._metrics.ticks += 1
        for line in self._plans.closed:
            if line.is_settled and line.decided_to_freed_ns is not None:
                self._metrics.decision.decided_to_freed.observe_ns(line.decided_to_freed_ns)


def _marks(evidence: UseEvidence | None) -> dict[str, int]:
    marks = {"threshold": evidence.threshold, "lower": evidence.lower} if evidence else {}
    return {mark: value for mark, value in marks.items() if value is not None}
