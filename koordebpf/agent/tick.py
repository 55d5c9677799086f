"""One tick: what the kernel and the cluster told is taken in, the node is measured, decided on, and acted upon.

Policy is elsewhere: `decide` chooses, `act.guards` forbids, `state.series` sets the pace. What this owns is the order,
and what has to be remembered from one tick to the next.
"""

from __future__ import annotations

import logging
import os
import time

import msgspec

from koordebpf.act.actuator import Actuator, OutcomeQueue
from koordebpf.act.guards import Budget, ClosedGuard, GuardFacts, GuardLimits, closed_guards, screen
from koordebpf.act.outcome import Outcome, Result
from koordebpf.act.pending import expire, note_outcome, note_told
from koordebpf.agent.collector import Collector
from koordebpf.agent.config import AgentConfig
from koordebpf.agent.known import Known
from koordebpf.agent.reporter import Reporter
from koordebpf.agent.watch import NodeWatch
from koordebpf.decide.evict.settings import EvictSettings
from koordebpf.decide.plan import Plan
from koordebpf.decide.rounds import decide
from koordebpf.detect.be_memory_evict import FEATURE, threshold_bytes
from koordebpf.events.layout import decode_stall
from koordebpf.events.records import OomKill
from koordebpf.state.build import build_view, node_capacity_bytes
from koordebpf.state.series import next_sample_ns
from koordebpf.state.stalls import NODE, StallWindow
from koordebpf.state.view import Measured, NodeMeasure, NodeView, PendingRelease, RefusedEviction, StallParts
from koordebpf.units import NS_PER_MS, NS_PER_S

log = logging.getLogger(__name__)

_FULL_EVERY_NS = NS_PER_S  # all pods, for growth, metrics and `top`
_WAITING_PACE_NS = 10 * NS_PER_MS  # while memory of the evicted comes back
_LOSS_WINDOW_NS = 10 * NS_PER_S  # lost records close a guard for this long
_HELPLESS_PACE_NS = 100 * NS_PER_MS  # above the threshold with nobody to evict
_HELD_PACE_NS = NS_PER_S  # above the threshold with a guard closed


class Agent:
    """Everything one node's agent remembers, and its tick."""

    def __init__(
        self,
        config: AgentConfig,
        watch: NodeWatch,
        collector: Collector,
        executor: Actuator,
        outcomes: OutcomeQueue,
        reporter: Reporter,
        limits: GuardLimits,
        own_pod_uid: str | None,
    ) -> None:
        self._config = config
        self._watch = watch
        self._collector = collector
        self._executor = executor
        self._outcomes = outcomes
        self._reporter = reporter
        self._limits = limits
        self._own_pod_uid = own_pod_uid
        self._settings = EvictSettings(cool_time_ns=config.cool_time_ns)
        self._known = Known()
        self._stalls = StallWindow()
        self._episodes_seen = -1
        self._pending: tuple[PendingRelease, ...] = ()
        self._late: frozenset[str] = frozenset()  # of the pending: said to be late already
        self._refused: dict[str, RefusedEviction] = {}
        self._budget = Budget()
        self._last_evict_ns: int | None = None
        self._crossed_ns: int | None = None
        self._threshold: int | None = None  # as of the last tick: how exactly the next sample has to look
        self._next_full_ns = 0
        self._next_round_ns = 0
        self._records = 0
        self._lost_seen = 0
        self._loss_since_ns = 0
        self._suspended_ns = _suspended_ns()
        self._resumed_ns = 0

    def tick(self) -> int:
        """Run once; return when the next tick is due at the latest (CLOCK_MONOTONIC ns)."""
        now_ns = time.monotonic_ns()
        self._take_in()
        strategy = self._known.strategy
        measured = self._measure(now_ns) if now_ns >= self._next_full_ns else None
        node = measured.node if measured else self._collector.node(self._threshold)
        threshold = None
        if self._config.feature_gates.get(FEATURE):
            threshold = threshold_bytes(strategy, node_capacity_bytes(self._known.node, node))
        self._threshold = threshold
        is_above = threshold is not None and node.used_bytes >= threshold
        if not is_above:
            self._crossed_ns = None
        elif self._crossed_ns is None:
            self._crossed_ns = time.monotonic_ns()
        if measured or (is_above and now_ns >= self._next_round_ns):
            node, is_above = self._round(now_ns, measured or self._measure(now_ns))
        self._reporter.flush()
        return now_ns + self._pace_ns(node, threshold, is_above)

    def _take_in(self) -> None:
        # What happened since the last tick: kernel records, answers of executors, changes of the cluster.
        for record, owner in self._watch.drain():
            self._records += 1
            if isinstance(record, OomKill):
                self._reporter.oom_kill(record, owner)
        for outcome in self._outcomes.drain():
            self._note(outcome)
        state, is_news = self._watch.cluster()
        if is_news and state:
            self._known.learn(state)
            self._watch.know_host_applications(self._known.host_applications)
            self._reporter.problems(self._known.problems)
            self._refused = {uid: entry for uid, entry in self._refused.items() if uid in self._known.uids}
            self._executor.forget(self._known.uids)
            self._next_round_ns = 0  # another threshold, another candidate, or a source that is back

    def _note(self, outcome: Outcome) -> None:
        outcome = self._executor.observe(outcome)
        self._pending = note_outcome(self._pending, outcome)
        if outcome.result in (Result.REFUSED, Result.GONE) and outcome.sent_ns is not None:
            self._budget = self._budget.give_back(outcome.decided_ns)
        if outcome.result is Result.REFUSED or (outcome.result is Result.FAILED and outcome.retry_at_ns):
            self._refused[outcome.uid] = RefusedEviction(outcome.uid, outcome.retry_at_ns, outcome.detail)
            self._next_round_ns = 0  # another candidate may serve meanwhile
        self._reporter.outcome(outcome)

    def _measure(self, now_ns: int) -> Measured:
        self._next_full_ns = now_ns + (_WAITING_PACE_NS if self._is_waiting(now_ns) else _FULL_EVERY_NS)
        stalls = self._stall_rows(now_ns)
        tmpfs = [each.uid for each in self._known.facts if each.keeps_tmpfs(self._config.executor)]
        return self._collector.everything(stalls, tmpfs, stalls.get(NODE))

    def _round(self, now_ns: int, measured: Measured) -> tuple[NodeMeasure, bool]:
        # The decision on a full measurement; returns the node as measured and whether it is above its threshold.
        view = build_view(
            pods=self._known.facts,
            node=self._known.node,
            strategy=self._known.strategy,
            measured=measured,
            feature_gates=self._config.feature_gates,
            executor=self._config.executor,
            pending=self._pending,
            last_evict_ns=self._last_evict_ns,
            refused=tuple(self._refused.values()),
        )
        view = self._settle(view)
        plan = decide(view, self._settings)
        is_above = any(feature.verdict.fires for feature in plan.features)
        guards = closed_guards(self._guard_facts(view), self._limits)
        if is_above and now_ns >= self._next_round_ns:
            self._carry_out(view, plan, guards)
        self._reporter.view(view, plan, guards, self._watch)
        return view.measure, is_above

    def _is_waiting(self, now_ns: int) -> bool:
        # A victim's memory comes back in tens of milliseconds, or with its grace period: look closely only at first.
        return any(now_ns - entry.since_ns < _FULL_EVERY_NS for entry in self._pending)

    def _settle(self, view: NodeView) -> NodeView:
        # Which of those that were told to go have given their memory back, before the decision counts on them.
        told = {entry.uid for entry in self._pending}
        for pod in view.pods:
            if pod.is_terminating and pod.uid not in told and pod.memory:
                self._pending = note_told(
                    self._pending, uid=pod.uid, credit_bytes=pod.memory.koordinator_used_bytes, now_ns=view.now_ns
                )
        waiting, released, late = expire(
            self._pending, view.pods, view.strays, now_ns=view.now_ns, max_ns=self._settings.pending_max_ns
        )
        for entry in released:
            self._reporter.released(entry, view.now_ns)
        for entry in late:
            if entry.uid not in self._late:
                self._reporter.late(entry, view.now_ns)
        self._late = frozenset(entry.uid for entry in late)
        # The late stay known as such: forgotten, a pod that cannot die would be counted on anew.
        self._pending = (*waiting, *late)
        return msgspec.structs.replace(view, pending=self._pending)

    def _carry_out(self, view: NodeView, plan: Plan, guards: tuple[ClosedGuard, ...]) -> None:
        decided_ns = time.monotonic_ns()
        if not plan.victims:
            self._next_round_ns = decided_ns + (_WAITING_PACE_NS if self._is_waiting(decided_ns) else _HELPLESS_PACE_NS)
            self._reporter.plan(view, plan, (), crossed_ns=self._crossed_ns, decided_ns=decided_ns)
            return
        screening = screen(
            plan.victims, guards, self._budget, self._limits, now_ns=decided_ns, own_pod_uid=self._own_pod_uid
        )
        outcomes = [self._executor.submit(victim, decided_ns) for victim in screening.allowed]
        outcomes += [self._executor.submit(victim, decided_ns, guard) for victim, guard in screening.held]
        credits = {victim.candidate.uid: victim.candidate.credit_bytes for victim in plan.victims}
        is_acting = False
        for outcome in outcomes:
            if outcome.result in (Result.SENT, Result.DONE):
                is_acting = True
                self._budget = self._budget.spend(decided_ns)
                self._last_evict_ns = decided_ns
                self._pending = note_told(
                    self._pending, uid=outcome.uid, credit_bytes=credits[outcome.uid], now_ns=decided_ns
                )
        # Nothing was sent, so nothing will change by itself: the same plan each few milliseconds would say nothing new.
        self._next_round_ns = decided_ns + (_HELD_PACE_NS if guards else self._settings.cool_time_ns)
        if is_acting:
            self._next_full_ns = self._next_round_ns = decided_ns + _WAITING_PACE_NS
        self._reporter.plan(view, plan, outcomes, crossed_ns=self._crossed_ns, decided_ns=decided_ns)
        for outcome in outcomes:
            if outcome.result not in (Result.SENT, Result.DRY_RUN):
                self._note(outcome)

    def _stall_rows(self, now_ns: int) -> dict[str, StallParts]:
        totals = self._watch.totals()
        if totals and totals.episodes != self._episodes_seen:
            self._episodes_seen = totals.episodes
            sums = [decode_stall(key, value) for key, value in self._watch.signals.stalls()]
            self._reporter.stalls(self._stalls.push(now_ns, sums, self._watch.index.subtree_pod), self._known.facts)
        else:
            self._stalls.forget_older(now_ns)
        return self._stalls.rows()

    def _guard_facts(self, view: NodeView) -> GuardFacts:
        state = self._watch.source.state() if self._watch.source else None
        totals = self._watch.totals()
        lost = (totals.ring_lost if totals else 0) - self._lost_seen
        records = self._records
        if view.now_ns - self._loss_since_ns > _LOSS_WINDOW_NS:
            self._loss_since_ns, self._lost_seen, self._records = view.now_ns, self._lost_seen + lost, 0
        running = [pod for pod in view.pods if pod.phase == "Running" and not pod.is_terminating]
        return GuardFacts(
            now_ns=view.now_ns,
            source=self._config.source,
            pods_synced_ns=(state.synced_at_ns or None) if state else None,
            source_problem=state.problems[0] if state and state.problems else None,
            records=records,
            lost_records=lost,
            clock_jump_ns=self._clock_jump_ns(state.synced_at_ns if state else 0),
            running_pods=len(running),
            running_pods_without_cgroup=sum(pod.cgroup_id is None for pod in running),
        )

    def _clock_jump_ns(self, synced_at_ns: int) -> int:
        # After a suspend both cgroups and pods are read anew; the guard opens once the source has answered since.
        jump_ns = _suspended_ns() - self._suspended_ns
        if abs(jump_ns) > self._limits.clock_jump_max_ns and not self._resumed_ns:
            self._watch.rescan()
            self._resumed_ns = time.monotonic_ns()
        elif self._resumed_ns and synced_at_ns > self._resumed_ns:
            self._suspended_ns, self._resumed_ns, jump_ns = _suspended_ns(), 0, 0
        return jump_ns

    def _pace_ns(self, node: NodeMeasure, threshold: int | None, is_above: bool) -> int:
        if threshold is None:
            return self._config.sample_cap_ns
        if is_above:
            wait_ns = self._next_round_ns - time.monotonic_ns()
            return min(max(wait_ns, self._config.sample_floor_ns), self._config.sample_cap_ns)
        if self._is_waiting(time.monotonic_ns()):
            return _WAITING_PACE_NS
        return next_sample_ns(
            threshold - node.used_bytes,
            node.growth_bytes_per_s,
            cpus=os.cpu_count() or 1,
            floor_ns=self._config.sample_floor_ns,
            cap_ns=self._config.sample_cap_ns,
        )


def _suspended_ns() -> int:
    # CLOCK_BOOTTIME runs while the machine is suspended, CLOCK_MONOTONIC does not.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
