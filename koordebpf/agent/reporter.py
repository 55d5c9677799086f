"""Reports what a tick did: the log, the audit file, Kubernetes Events, metrics, health."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from koordebpf.act.guards.rules import ClosedGuard
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.owners import SUPPRESS
from koordebpf.agent.ended_shortages import BY_CPU, EndedShortages
from koordebpf.agent.open_plans import OpenPlans
from koordebpf.agent.problems import ProblemLog
from koordebpf.attribution.owner import Owner
from koordebpf.collect.history import StallNews
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.events.records import OomKill
from koordebpf.policy.plan import Plan
from koordebpf.policy.suppress.round import SUPPRESS_GATE, SuppressPlan
from koordebpf.policy.suppress.settings import Policy
from koordebpf.report.events import EventPoster
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.report.sentences import RepeatFilter, late_sentence, outcome_sentence, tick_sentence
from koordebpf.report.trace.record_line import oom_sentence
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.store.audit import AuditRecord, OpenPlan
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.store.write_log import AuditedWrite, alike, audited_write, write_sentence
from koordebpf.units import NS_PER_S, format_bytes, format_ns

log = logging.getLogger("koordebpf")


class Reporter:
    """Owns what has to be remembered to tell a story once: open audit lines, sentences said, the victims' texts."""

    def __init__(
        self,
        *,
        node: str,
        dry_run: bool,
        trail: AuditTrail,
        events: EventPoster | None,
        metrics: AgentMetrics,
        health: Health,
    ) -> None:
        self._node = node
        self._dry_run = dry_run
        self._trail = trail
        self._events = events
        self._metrics = metrics
        self._health = health
        self._repeats = RepeatFilter()
        self._plans = OpenPlans()
        self._shortages = EndedShortages()
        self._recent = Recent()
        self._held: list[FileChange] = []  # by suppression, not said yet
        self._problems = ProblemLog()
        metrics.decision.is_dry_run = dry_run
        self._tell_interrupted()
        self._recent.publish(self._plans.records)

    def problems(self, by_reason: Mapping[str, Sequence[str]]) -> None:
        """Log what is wrong with the source, its objects or the strategy, each once as long as it lasts."""
        self._problems.report(by_reason, time.monotonic_ns())

    def oom_kill(self, record: OomKill, owner: Owner | None) -> None:
        """Say that the kernel's OOM killer was there first."""
        now_ns = time.monotonic_ns()
        # A pod that is killed at its own limit again and again has another cgroup each time.
        if said := self._repeats.say(f"oom:{record.cgroup_id}", oom_sentence(record, owner), now_ns):
            kind = "OOM kills for the node's memory" if record.is_global else "OOM kills at limits"
            self._problems.add(kind, said, now_ns, logging.INFO)

    def stalls(self, news: StallNews, facts: Sequence[PodFacts]) -> None:
        """Add what pods stalled since the last call, and what it was charged to, to the metrics."""
        self._metrics.ledger.add(news.charges)
        for pod in facts if news.by_pod else ():
            if row := news.by_pod.get(pod.uid):
                self._metrics.pods.add_stall(pod.namespace, pod.name, "global", row.global_ns)
                self._metrics.pods.add_stall(pod.namespace, pod.name, "limit", row.limit_ns)

    def begin(self, plan: Plan, *, crossed_ns: int | None, decided_ns: int) -> None:
        """Note a plan before it is carried out: should the agent be killed meanwhile, its successor reports it."""
        line = self._plans.carried_out = self._open_line(plan, crossed_ns, decided_ns)
        if not self._trail.begin(line.record()):
            self._say("in-flight", "what is under way cannot be noted: a kill of the agent now would leave no record")

    def plan(self, plan: Plan, outcomes: Sequence[Outcome], *, crossed_ns: int | None, decided_ns: int) -> None:
        """Tell of a plan that fired, with the outcomes known at once."""
        current, self._plans.carried_out = self._plans.carried_out, None
        guards = tuple(ClosedGuard("", o.detail) for o in outcomes if o.result is Result.HELD)[:1]
        # A guard that opens is news, and so is a kill of who was evicted.
        key = "held:" if guards else f"{plan.sentence.partition(' ')[0]}:"
        # Amounts change with each look and are no news.
        why_none = [each.reason.lstrip("0123456789. ") for each in plan.features if each.verdict.fires]
        key += ",".join(victim.candidate.uid for victim in plan.victims) or "; ".join(why_none)
        news = self._say(key, tick_sentence(plan, guards, dry_run=self._dry_run, signals=self._metrics.signals.quality))
        is_acting = any(o.result in (Result.SENT, Result.DONE) for o in outcomes)
        if crossed_ns is not None and is_acting:
            self._metrics.decision.seen_to_decided.observe_ns(decided_ns - crossed_ns)
        self._plans.remember(plan)
        for outcome in outcomes:
            if outcome.result is Result.DRY_RUN:  # the others come by `outcome`
                self._count(outcome)
        if not (is_acting or news or current):
            return
        line = current or self._open_line(plan, crossed_ns, decided_ns)
        for outcome in outcomes:
            self._note(line, outcome)

    def outcome(self, outcome: Outcome) -> None:
        """Tell of an outcome that came later."""
        self._say(f"outcome:{outcome.uid}:{outcome.result.value}", outcome_sentence(outcome))
        self._count(outcome)
        for line in self._plans:
            self._note(line, outcome)
        if self._events and (victim := self._plans.victim(outcome.uid)):
            self._events.post_outcome(victim, outcome, time.monotonic_ns(), time.time())

    def _open_line(self, plan: Plan, crossed_ns: int | None, decided_ns: int) -> OpenPlan:
        line = OpenPlan(
            plan,
            node=self._node,
            dry_run=self._dry_run,
            seen_ns=crossed_ns,
            decided_ns=decided_ns,
            wall_s=time.time(),
            signals=self._metrics.signals.quality,
        )
        self._plans.add(line, decided_ns)
        self._recent.changed()
        return line

    def _note(self, line: OpenPlan, outcome: Outcome) -> None:
        if line.note(outcome):
            self._recent.changed()
            self._trail.progress(line.id, outcome)

    def _count(self, outcome: Outcome) -> None:
        self._metrics.count_outcome(outcome, self._plans.feature(outcome.uid))

    def suppression(self, plan: SuppressPlan, counts: Mapping[tuple[str, str], int]) -> None:
        """Bring the metrics of suppression up to date, and say where none takes place."""
        metrics = self._metrics.suppression
        metrics.held_millicpu, metrics.policy, metrics.writes = plan.held_millicpu, plan.policy, counts
        # That a first sample is not enough yet is no news: there is one after each start.
        if plan.skipped and plan.skipped not in (metrics.skipped, "first_sample"):
            log.info("best-effort pods' CPU is not held: %s", plan.reason)
        metrics.skipped = plan.skipped
        if plan.skipped:
            self._metrics.decision.count_skipped(SUPPRESS_GATE, plan.skipped)
        self._tell_held(plan.policy)

    def ladder(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Bring the metrics up to date with what the ladder has tried to write, by file and result."""
        self._metrics.suppression.ladder_writes = counts

    def written(self, change: FileChange) -> None:
        """Record a file that was changed for a strategy, or could not be."""
        (self.held if change.owner == SUPPRESS else self.change)(change)

    def change(self, change: FileChange) -> None:
        """Tell of a file that was changed, or could not be."""
        self._say(f"write:{change.path}:{change.result.value}:{change.new}", write_sentence(change))
        self._note_write(change)

    def held(self, change: FileChange) -> None:
        """The same of suppression, whose files are hundreds and change with the load: said once a round, and rarely."""
        self._held.append(change)
        self._note_write(change)

    def _tell_held(self, policy: Policy | None = None) -> None:
        for change, *others in alike(self._held):
            key = f"held:{change.path}:{change.result.value}:{change.is_correction}:{policy}"
            self._say(key, write_sentence(change, len(others)))
        self._held.clear()

    def _note_write(self, change: FileChange) -> None:
        line = audited_write(change, self._node, time.time())
        self._recent.add_write(line)
        if change.result is WriteResult.WRITTEN or not self._dry_run:
            self._trail.write(line)

    def released(self, entry: PendingRelease, now_ns: int) -> None:
        """Tell that a victim's memory is back. Pods that someone else deleted, or that held none, are no news."""
        if self._plans.victim(entry.uid) is None or not entry.credit_bytes:
            return
        self._metrics.decision.released_bytes += entry.credit_bytes
        for line in self._plans:
            line.note_freed(entry.uid, now_ns)
        self._recent.changed()
        name = self._plans.name(entry.uid)
        self._say(
            f"released:{entry.uid}:{entry.since_ns}",
            f"{name} gave {format_bytes(entry.credit_bytes)} back within {format_ns(now_ns - entry.since_ns)}",
        )

    def late(self, entry: PendingRelease, now_ns: int, barred_ns: int) -> None:
        """Report that a victim, or a pod that someone else deleted, did not release its memory in time.

        It is no longer counted on; one whose eviction brought nothing is passed over for `barred_ns`.
        """
        for line in self._plans if entry.failed_ns is not None else ():
            line.note_in_vain(entry.uid, entry.why)
        self._say(f"late:{entry.uid}", late_sentence(self._plans.name(entry.uid), entry, now_ns, barred_ns))

    def view(
        self,
        view: NodeView,
        plan: Plan,
        guards: tuple[ClosedGuard, ...],
        watch: NodeWatch,
        *,
        holding: tuple[ClosedGuard, ...] | None = None,
    ) -> None:
        """Bring metrics and readiness up to date with a full measurement.

        Args:
            view: what was decided on.
            plan: the decision.
            guards: those that are closed; with one the agent is not ready.
            watch: where signals come from.
            holding: those of them that forbid acting now, in an emergency not all. None: all.
        """
        metrics = self._metrics
        metrics.take(view)
        metrics.decision.closed_guards = tuple(guard.code for guard in guards)
        judged = self._shortages.judged(plan.features, has_cpu=view.cpu is not None)
        for feature in judged:
            name = feature.verdict.feature
            if name in BY_CPU:
                metrics.decision.need_millicpu[name] = feature.cpu.need_millicpu if feature.cpu else 0
            else:
                metrics.decision.need_bytes[name] = feature.need_bytes
            if feature.verdict.skipped:
                metrics.decision.count_skipped(feature.verdict.feature, feature.verdict.skipped)
        for guard in guards if holding is None else holding:
            if plan.victims:
                metrics.decision.count_skipped("act", guard.code)
        metrics.signals.quality = watch.quality
        metrics.signals.lost = len(watch.lost)
        metrics.signals.other_kubepods = len(watch.index.kubelet.others)
        self._health.rests_on(watch.quality, tuple(f"{source.signal}: {source.reason}" for source in watch.lost))
        if totals := watch.totals():
            metrics.signals.take_totals(totals)
        if watch.source and (synced_ns := watch.source.state().synced_at_ns):
            metrics.pods.synced_age_s = (view.now_ns - synced_ns) / NS_PER_S
        self._trail.catch_up()
        if problem := self._trail.problem:
            self._say("audit", problem)
        metrics.sinks.audit_dropped, metrics.sinks.audit_waiting = self._trail.dropped, self._trail.waiting
        metrics.sinks.events_dropped = self._events.dropped if self._events else 0
        for key, sentence in self._shortages.look([feature.verdict for feature in judged], view.now_ns):
            self._say(key, sentence)
        self._health.ticked(view.now_ns, tuple(guard.sentence for guard in guards))

    def exempt(self, held_bytes: Mapping[str, int]) -> None:
        """Bring the metrics up to date with the memory of pods that their owners' own words spare, by reason."""
        self._metrics.decision.exempt_bytes = held_bytes

    def flush(self) -> None:
        """Write the audit lines whose outcomes are final, and publish what other threads read."""
        self._metrics.ticks += 1
        now_ns = time.monotonic_ns()
        self._problems.flush(now_ns)
        for line in self._plans.take_settled(now_ns):
            if line.is_settled and line.decided_to_freed_ns is not None:
                self._metrics.decision.decided_to_freed.observe_ns(line.decided_to_freed_ns)
            record = line.record()
            self._recent.add_decision(record)
            self._trail.write(record)
        if not self._plans:
            self._trail.clear()
        self._recent.publish(self._plans.records)  # a plan changes while it is recorded: only the loop may look at it

    def decisions(self) -> tuple[AuditRecord, ...]:
        """Return the last decisions as of the last tick, also those whose outcome is awaited; from any thread."""
        return self._recent.decisions()

    def writes(self) -> tuple[AuditedWrite, ...]:
        """Return the last changes of files as of the last tick, also those of a dry run; from any thread."""
        return self._recent.writes()

    def failed_tick(self, error: Exception) -> None:
        """Count a tick that an error ended, and be not ready until a full one succeeds."""
        self._metrics.failed_ticks += 1
        self._health.failed(f"the last tick failed: {error}")

    def close(self) -> None:
        """Write every open audit line with what is known, and post the last Events."""
        self._tell_held()
        for record in self._plans.close():
            self._trail.write(record)
        self._trail.close()
        if self._events:
            self._events.close()

    def _tell_interrupted(self) -> None:
        for record in self._trail.left:
            log.warning("the agent before this one was ended in the middle of: %s", record.sentence)
            self._recent.add_decision(record)
            self._trail.write(record)
        self._trail.clear()

    def _say(self, key: str, sentence: str) -> bool:
        said = self._repeats.say(key, sentence, time.monotonic_ns())
        if said:
            log.info("%s", said)
        return said is not None
