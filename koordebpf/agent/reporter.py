"""Tells every listener of `report` what a tick did: the log, the audit file, Kubernetes Events, metrics, health."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from koordebpf.act.guards import ClosedGuard
from koordebpf.act.outcome import Outcome, Result
from koordebpf.agent.watch import NodeWatch
from koordebpf.attribution.owner import Owner
from koordebpf.decide.plan import Plan, Victim
from koordebpf.events.records import OomKill
from koordebpf.report.audit import AuditLog, OpenPlan
from koordebpf.report.events import EventPoster, eviction_event
from koordebpf.report.http import Health
from koordebpf.report.metrics import AgentMetrics
from koordebpf.report.sentences import RepeatFilter, outcome_sentence, tick_sentence
from koordebpf.report.trace import owner_text
from koordebpf.state.facts import PodFacts
from koordebpf.state.stalls import StallGrowth
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.units import NS_PER_S, format_bytes, format_ns

log = logging.getLogger("koordebpf")

_GIVE_UP_NS = 180 * NS_PER_S  # an audit line is written with what is known by then


class Reporter:
    """Owns what has to be remembered to tell a story once: open audit lines, sentences said, the victims' texts."""

    def __init__(
        self,
        *,
        node: str,
        dry_run: bool,
        audit: AuditLog | None,
        events: EventPoster | None,
        metrics: AgentMetrics,
        health: Health,
    ) -> None:
        self._node = node
        self._dry_run = dry_run
        self._audit = audit
        self._events = events
        self._metrics = metrics
        self._health = health
        self._repeats = RepeatFilter()
        self._open: list[tuple[int, OpenPlan]] = []  # since when
        self._victims: dict[str, Victim] = {}
        self._was_above = False
        self._problems: tuple[str, ...] = ()
        metrics.is_dry_run = dry_run

    def problems(self, sentences: tuple[str, ...]) -> None:
        """Say what the source or the strategy is wrong about, each once."""
        for sentence in sentences:
            if sentence not in self._problems:
                log.warning("%s", sentence)
        self._problems = sentences

    def oom_kill(self, record: OomKill, owner: Owner | None) -> None:
        """Say that the kernel's OOM killer was there first."""
        scope = "the node's memory" if record.is_global else "its own limit"
        self._say(
            f"oom:{record.cgroup_id}",
            f"the kernel's OOM killer took {record.comm} ({record.tgid}) of {owner_text(owner, record.cgroup_id)}"
            f" for {scope}",
        )

    def stalls(self, grown: Mapping[str, StallGrowth], facts: Sequence[PodFacts]) -> None:
        """Add what pods stalled since the last call to their metrics."""
        for pod in facts:
            if row := grown.get(pod.uid):
                self._metrics.add_stall(pod.namespace, pod.name, "global", row.global_ns)
                self._metrics.add_stall(pod.namespace, pod.name, "limit", row.limit_ns)

    def plan(
        self, view: NodeView, plan: Plan, outcomes: Sequence[Outcome], *, crossed_ns: int | None, decided_ns: int
    ) -> None:
        """Tell of a plan that fired, with the outcomes known at once."""
        guards = tuple(ClosedGuard("", o.detail) for o in outcomes if o.result is Result.HELD)[:1]
        key = "plan:" + (",".join(victim.candidate.uid for victim in plan.victims) or plan.features[0].reason[:16])
        news = self._say(key, tick_sentence(plan, guards, dry_run=self._dry_run))
        is_acting = any(o.result in (Result.SENT, Result.DONE) for o in outcomes)
        if crossed_ns is not None and is_acting:
            self._metrics.seen_to_decided.observe_ns(decided_ns - crossed_ns)
        for outcome in outcomes:
            if outcome.result is Result.DRY_RUN:  # the others come by `outcome`
                self._metrics.count_outcome(outcome)
        if not (is_acting or news):
            return
        line = OpenPlan(
            plan,
            node=self._node,
            dry_run=self._dry_run,
            seen_ns=crossed_ns,
            decided_ns=decided_ns,
            wall_s=time.time(),
        )
        for victim in plan.victims:
            self._victims[victim.candidate.uid] = victim
        self._open.append((decided_ns, line))
        for outcome in outcomes:
            line.note(outcome)

    def outcome(self, outcome: Outcome) -> None:
        """Tell of an outcome that came later."""
        self._say(f"outcome:{outcome.uid}:{outcome.result.value}", outcome_sentence(outcome))
        self._metrics.count_outcome(outcome)
        for _, line in self._open:
            line.note(outcome)
        victim = self._victims.get(outcome.uid)
        if self._events and victim and (event := eviction_event(victim, outcome)):
            self._events.post(event, time.time())

    def released(self, entry: PendingRelease, now_ns: int) -> None:
        """Tell that a victim's memory is back. Pods that someone else deleted are no news."""
        if entry.uid not in self._victims:
            return
        self._metrics.released_bytes += entry.credit_bytes
        for _, line in self._open:
            line.note_freed(entry.uid, now_ns)
        name = self._name(entry.uid)
        self._say(
            f"released:{entry.uid}:{entry.since_ns}",
            f"{name} gave {format_bytes(entry.credit_bytes)} back within {format_ns(now_ns - entry.since_ns)}",
        )

    def late(self, entry: PendingRelease, now_ns: int) -> None:
        """Tell that a victim, or a pod that someone else deleted, did not give its memory back in time.

        It is no longer counted on.
        """
        self._say(
            f"late:{entry.uid}",
            f"{self._name(entry.uid)} was to go and still holds its memory {format_ns(now_ns - entry.since_ns)} later",
        )

    def view(self, view: NodeView, plan: Plan, guards: tuple[ClosedGuard, ...], watch: NodeWatch) -> None:
        """Bring metrics and readiness up to date with a full measurement."""
        metrics = self._metrics
        metrics.node = view.measure
        metrics.capacity_bytes = view.capacity_bytes
        metrics.closed_guards = tuple(guard.code for guard in guards)
        metrics.pending_bytes = sum(entry.credit_bytes for entry in view.pending)
        for feature in plan.features:
            metrics.need_bytes[feature.verdict.feature] = feature.need_bytes
            if feature.verdict.skipped:
                metrics.count_skipped(feature.verdict.feature, feature.verdict.skipped)
        for guard in guards:
            if plan.victims:
                metrics.count_skipped("act", guard.code)
        attributed = sum(pod.cgroup_id is not None for pod in view.pods)
        metrics.pods_by_attribution = {
            "attributed": attributed,
            "without_cgroup": len(view.pods) - attributed,
            "without_pod": len(view.strays),
        }
        metrics.keep_pods((pod.namespace, pod.name) for pod in view.pods)
        if totals := watch.totals():
            metrics.records, metrics.lost_records = totals.ring_sent, totals.ring_lost
        if watch.source and (synced_ns := watch.source.state().synced_at_ns):
            metrics.pods_synced_age_s = (view.now_ns - synced_ns) / NS_PER_S
        metrics.audit_dropped = self._audit.dropped if self._audit else 0
        metrics.events_dropped = self._events.dropped if self._events else 0
        is_above = any(feature.verdict.fires for feature in plan.features)
        if self._was_above and not is_above:
            self._say(f"below:{view.now_ns}", f"back below the threshold: {plan.features[0].verdict.reason}")
        self._was_above = is_above
        self._health.ticked(view.now_ns, tuple(guard.sentence for guard in guards))

    def flush(self) -> None:
        """Write the audit lines whose story is told."""
        self._metrics.ticks += 1
        if not self._open:
            return
        now_ns = time.monotonic_ns()
        still: list[tuple[int, OpenPlan]] = []
        for since_ns, line in self._open:
            if line.is_settled or now_ns - since_ns > _GIVE_UP_NS:
                if line.is_settled and line.decided_to_freed_ns is not None:
                    self._metrics.decided_to_freed.observe_ns(line.decided_to_freed_ns)
                if self._audit and not self._audit.write(line.record()):
                    self._say("audit", f"an audit line was lost: {self._audit.last_error}")
            else:
                still.append((since_ns, line))
        self._open = still
        if not still:
            self._victims.clear()

    def failed_tick(self, error: Exception) -> None:
        """Count a tick that an error ended, and be not ready until a full one succeeds."""
        self._metrics.failed_ticks += 1
        self._health.failed(f"the last tick failed: {error}")

    def close(self) -> None:
        """Write every open audit line with what is known, and post the last Events."""
        for _, line in self._open:
            if self._audit:
                self._audit.write(line.record())
        self._open = []
        if self._events:
            self._events.close()

    def _say(self, key: str, sentence: str) -> bool:
        said = self._repeats.say(key, sentence, time.monotonic_ns())
        if said:
            log.info("%s", said)
        return said is not None

    def _name(self, uid: str) -> str:
        victim = self._victims.get(uid)
        return f"{victim.candidate.namespace}/{victim.candidate.name}" if victim else f"pod {uid}"
