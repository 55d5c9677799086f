"""The sink that logs: one sentence for each piece of news, repeats rarely and with their number.

What is wrong with the cluster's objects is logged however many there are and however often they change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from koordebpf.act.writer.change import FileChange
from koordebpf.decision.strategies import STRATEGIES
from koordebpf.policy.evict.eligibility import Eligibility
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import FeaturePlan
from koordebpf.report.ended_shortages import EndedShortages, JudgedFeatures
from koordebpf.report.record_line import oom_sentence
from koordebpf.report.sentences import late_sentence, outcome_sentence, tick_sentence
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Result
from koordebpf.store.open_plans import OpenPlans, plan_key
from koordebpf.store.repeat_filter import RepeatFilter
from koordebpf.store.sink import (
    AgentStopped,
    EligibilityCounted,
    Event,
    FileChanged,
    MemoryReleased,
    OomKilled,
    PlanDecided,
    ProblemsSeen,
    ReleaseOverdue,
    RoundEnded,
    StrategyActed,
    TickEnded,
)
from koordebpf.store.write_log import alike, request_sentence, write_sentence
from koordebpf.units import NS_PER_S, format_bytes, format_ns

log = logging.getLogger("koordebpf")
_SPAN_NS: Final = 30 * NS_PER_S
_MOST: Final = 10  # of one reason in a span. Why: enough to see a pattern; 300 pods that change are one piece of news
_BY_ROUND = tuple(each.name for each in STRATEGIES if each.is_logged_by_round)  # owners of files


class _Span(msgspec.Struct):
    since_ns: int
    logged: int = 0
    suppressed: int = 0
    level: int = logging.NOTSET  # the highest of what was suppressed


class ProblemLog:
    """Logs a problem once as long as it lasts, and of each reason at most ten in 30 s, with the number of the others.

    A reason is a word of ours, as `pods`; sentences name what tenants wrote, and there may be any number of them.
    """

    def __init__(self) -> None:
        self._lasting: dict[str, frozenset[str]] = {}
        self._repeats = RepeatFilter(_SPAN_NS)  # one that keeps coming back is no news each time
        self._spans: dict[str, _Span] = {}

    def report(self, by_reason: Mapping[str, Iterable[str]], now_ns: int) -> None:
        """Log what is new; `by_reason` holds everything that is wrong now."""
        for reason, sentences in by_reason.items():
            before = self._lasting.get(reason, frozenset())
            now = dict.fromkeys(sentences)
            self._lasting[reason] = frozenset(now)
            for sentence in now:
                if sentence not in before:
                    self.add(reason, sentence, now_ns)

    def add(self, reason: str, sentence: str, now_ns: int, level: int = logging.WARNING) -> None:
        """Log one sentence, or count it."""
        span = self._spans.get(reason)
        if span is None or now_ns - span.since_ns >= _SPAN_NS:
            self.flush(now_ns)
            span = self._spans[reason] = _Span(now_ns)
        if span.logged >= _MOST:
            span.suppressed += 1
            span.level = max(span.level, level)
        elif said := self._repeats.admit(f"{reason}:{sentence}", sentence, now_ns):
            span.logged += 1
            log.log(level, "%s", said)

    def flush(self, now_ns: int) -> None:
        """Log how many were suppressed in the spans that are over."""
        for reason, span in list(self._spans.items()):
            if now_ns - span.since_ns >= _SPAN_NS:
                del self._spans[reason]
                if span.suppressed:
                    within = format_ns(now_ns - span.since_ns)
                    log.log(span.level, "%s: %d more suppressed within %s", reason, span.suppressed, within)


class LogSink:
    """Remembers what was logged, and files of this round."""

    name = "log"
    takes = (
        PlanDecided,
        OutcomeArrived,
        MemoryReleased,
        ReleaseOverdue,
        FileChanged,
        StrategyActed,
        ProblemsSeen,
        OomKilled,
        EligibilityCounted,
        RoundEnded,
        TickEnded,
        AgentStopped,
    )

    def __init__(self, plans: OpenPlans) -> None:
        self._plans = plans
        self._repeats = RepeatFilter()
        self._plan_repeats = RepeatFilter()  # apart, as in `OpenPlans`: a sentence is logged when the audit has a line
        self._problems = ProblemLog()
        self._judged = JudgedFeatures()
        self._shortages = EndedShortages()
        self._held: dict[str, list[FileChange]] = {name: [] for name in _BY_ROUND}  # not logged yet
        self._ineligible: frozenset[str] = frozenset()  # reasons why no pod may be evicted; none: one may

    def publish(self, event: Event) -> None:
        """Log what is news."""
        match event:
            case PlanDecided():
                self._decided(event)
            case OutcomeArrived(outcome, now_ns):
                self._log(f"outcome:{outcome.uid}:{outcome.result.value}", outcome_sentence(outcome), now_ns)
            case MemoryReleased() if self._plans.is_awaited(event):
                self._released(event)
            case ReleaseOverdue(entry, now_ns, barred_ns):
                sentence = late_sentence(self._plans.pod_name(entry.uid), entry, now_ns, barred_ns)
                self._log(f"late:{entry.uid}", sentence, now_ns)
            case FileChanged(change):
                self._changed(change)
            case StrategyActed(_, news, now_ns):
                for each in news:
                    self._log(f"request:{each.plugin}:{each.uid}:{each.code}", request_sentence(each), now_ns)
            case ProblemsSeen(by_reason, now_ns):
                self._problems.report(by_reason, now_ns)
            case OomKilled():
                self._oom_killed(event)
            case RoundEnded(_, view, decision):
                for name in _BY_ROUND:
                    if (made := decision.strategies.get(name)) is not None:
                        self._log_held(name, view.now_ns, made.way)
                self._ended(decision.plan.features, view.now_ns, has_cpu=view.cpu is not None)
            case EligibilityCounted(found) if found and found.pods:
                self._counted(found)
            case TickEnded(now_ns):
                self._problems.flush(now_ns)
            case AgentStopped(now_ns):
                for name in _BY_ROUND:
                    self._log_held(name, now_ns)

    def _decided(self, event: PlanDecided) -> None:
        guards = tuple(ClosedGuard("", each.detail) for each in event.outcomes if each.result is Result.HELD)[:1]
        sentence = tick_sentence(event.plan, guards, dry_run=self._plans.dry_run, signals=self._plans.signals)
        if said := self._plan_repeats.admit(plan_key(event.plan, event.outcomes), sentence, event.decided_ns):
            log.info("%s", said)

    def _released(self, event: MemoryReleased) -> None:
        entry = event.entry
        within = format_ns(event.now_ns - entry.since_ns)
        sentence = f"{self._plans.pod_name(entry.uid)} gave {format_bytes(entry.credit_bytes)} back within {within}"
        self._log(f"released:{entry.uid}:{entry.since_ns}", sentence, event.now_ns)

    def _changed(self, change: FileChange) -> None:
        if change.owner in _BY_ROUND:
            self._held[change.owner].append(change)
        else:
            key = f"write:{change.path}:{change.result.value}:{change.is_correction}"
            self._log_change(key, change, 0, change.now_ns)

    def _log_held(self, name: str, now_ns: int, way: str | None = None) -> None:
        for change, *others in alike(self._held[name]):
            key = f"held:{change.path}:{change.result.value}:{change.is_correction}:{way}"
            self._log_change(key, change, len(others), now_ns)
        self._held[name].clear()

    # Tenants choose values, and how many files there are.
    def _log_change(self, key: str, change: FileChange, more: int, now_ns: int) -> None:
        if said := self._repeats.admit(key, write_sentence(change, more), now_ns):
            self._problems.add(f"files of {change.owner or 'the agent'}", said, now_ns, logging.INFO)

    def _oom_killed(self, event: OomKilled) -> None:
        # A pod that is killed at its own limit again and again has another cgroup each time.
        record, sentence = event.record, oom_sentence(event.record, event.owner)
        if said := self._repeats.admit(f"oom:{record.cgroup_id}", sentence, event.now_ns):
            kind = "OOM kills for the node's memory" if record.is_global else "OOM kills at limits"
            self._problems.add(kind, said, event.now_ns, logging.INFO)

    def _ended(self, features: Sequence[FeaturePlan], now_ns: int, *, has_cpu: bool) -> None:
        judged = self._judged.after(features, has_cpu=has_cpu)
        for key, sentence in self._shortages.poll(judged, now_ns):
            self._log(key, sentence, now_ns)

    # Once for each set of reasons: pods come and leave, and with them the numbers.
    def _counted(self, found: Eligibility) -> None:
        reasons = frozenset(found.reasons) if found.is_none else frozenset()
        if reasons != self._ineligible:
            log.log(logging.WARNING if reasons and not self._plans.dry_run else logging.INFO, "%s", found.sentence)
        self._ineligible = reasons

    def _log(self, key: str, sentence: str, now_ns: int) -> None:
        if said := self._repeats.admit(key, sentence, now_ns):
            log.info("%s", said)
