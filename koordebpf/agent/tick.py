"""One tick: what the kernel and the cluster told is taken in, the node is measured, decided on, and acted upon.

Policy is elsewhere: `decide` chooses, `act.guards` forbids, `state.series` sets the pace. What this owns is the order,
and what has to be remembered from one tick to the next.
"""

from __future__ import annotations

import logging
import os

import msgspec

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.act.guards.emergency import without_stale
from koordebpf.act.guards.rules import ClosedGuard, closed_guards, screen
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.agent.emergency import Emergency
from koordebpf.agent.guard_watch import GuardWatch
from koordebpf.agent.overdue import Overdue
from koordebpf.agent.pace import Pace
from koordebpf.agent.reporter import Reporter
from koordebpf.agent.strategies.ladder import Ladder
from koordebpf.agent.strategies.suppression import Suppression
from koordebpf.agent.strategies.suppression_wake import SuppressionWake
from koordebpf.agent.strategies.taint import NodeMarking
from koordebpf.clock import Clock, SystemClock
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.history import NodeHistory
from koordebpf.collect.memory import Collector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.events.records import OomKill
from koordebpf.policy.decide import decide
from koordebpf.policy.detect import be_memory_evict, memory_evict
from koordebpf.policy.detect.verdict import USED
from koordebpf.policy.evict.candidates.exemptions import exempt_bytes
from koordebpf.policy.evict.cpu_features import CPU_FEATURES
from koordebpf.policy.memory import Event as MemoryEvent
from koordebpf.policy.memory import (
    EvictionFailed,
    EvictionSent,
    NodeMeasured,
    OutcomeArrived,
    PodsListed,
    after,
    frees_the_round,
    is_waiting,
    settled,
)
from koordebpf.policy.plan import Plan
from koordebpf.slo.strategies.threshold_bytes import threshold_bytes
from koordebpf.state.build import build_view
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.pods.exemptions import asked_labels, judged
from koordebpf.state.view import Measured, NodeMeasure, NodeView
from koordebpf.store.budget import KeptBudget

log = logging.getLogger(__name__)

_BY_USE = (be_memory_evict.FEATURE, memory_evict.FEATURE)  # what a crossing of the threshold concerns

_ACTING = frozenset({Result.SENT, Result.DONE})
_IN_VAIN = frozenset({Result.GONE, Result.FAILED})  # at once, before anything was sent


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
        own_pod_uid: str | None,
        kept: KeptBudget | None = None,
        emergency: Emergency | None = None,
        suppression: Suppression | None = None,
        wake: SuppressionWake | None = None,
        ladder: Ladder | None = None,
        marking: NodeMarking | None = None,
        overdue: Overdue | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._watch = watch
        self._collector = collector
        self._executor = executor
        self._outcomes = outcomes
        self._reporter = reporter
        self._own_pod_uid = own_pod_uid
        self._emergency = emergency
        self._suppression = suppression
        self._wake = wake
        self._woken_by: str | None = None  # why the CPUs are measured, and best-effort pods held, before their time
        self._ladder = ladder
        self._marking = marking
        self._overdue = overdue
        self._last_view: NodeView | None = None
        self._settings = config.eviction
        self._evicts_for_cpu = any(config.feature_gates.get(feature.name) for feature in CPU_FEATURES)
        is_by_label = asked_labels(config.eviction.exemptions) is not None
        self._known = Known(
            strict=config.compat == "strict",
            labels_max_age_ns=config.guards.pods_max_age_ns if is_by_label else None,
        )
        self._history = NodeHistory(watch, collector, config.eviction.exemptions)
        self._kept = kept or KeptBudget(None)
        self._memory = DecisionMemory(budget=self._kept.budget)
        self._clock = clock or SystemClock()
        self._pace = Pace(
            floor_ns=config.sample_floor_ns, cap_ns=config.sample_cap_ns, act_ahead_ns=config.eviction.act_ahead_ns
        )
        self._guards = GuardWatch(config, watch, self._clock)
        self._cpus = os.cpu_count() or 1  # as of the last full measurement: it is a file of sysfs
        self._started_ns = self._clock.now_ns()
        self._threshold: int | None = None  # as of the last tick: how exactly the next sample has to look
        self._name_problems: tuple[str, ...] = ()

    def tick(self) -> int:
        """Run once; return when the next tick is due at the latest (CLOCK_MONOTONIC ns)."""
        now_ns = self._clock.now_ns()
        if self._ladder:
            self._ladder.thaw_overdue(now_ns)
        self._take_in()
        self._woken_by = self._wake.look(now_ns) if self._wake else None
        if self._woken_by:
            self._pace.want_full(now_ns)
        measured = self._measure(now_ns) if self._pace.is_full_due(now_ns) else None
        node = measured.node if measured else self._sample()
        self._threshold = threshold = self._threshold_of(node)
        is_above = self._pace.sampled(node, threshold, now_ns, self._clock.now_ns())
        if measured or (is_above and self._pace.is_round_due(now_ns)):
            node, is_above = self._round(now_ns, measured or self._measure(now_ns, node))
        self._reporter.flush()
        then_ns = self._clock.now_ns()
        waits = is_waiting(self._memory, then_ns)
        due_ns = self._pace.due_ns(
            now_ns, then_ns, node, threshold, is_above=is_above, is_waiting=waits, cpus=self._cpus
        )
        if self._wake:
            due_ns = min(due_ns, self._wake.due_ns or due_ns)
        return min(due_ns, self._ladder.due_ns(now_ns) or due_ns) if self._ladder else due_ns

    def _threshold_of(self, node: NodeMeasure) -> int | None:
        if not any(self._config.feature_gates.get(name) for name in _BY_USE):
            return None
        return threshold_bytes(self._known.strategy, self._known.capacity_bytes(node))

    def _take_in(self) -> None:
        # What happened since the last tick: kernel records, answers of executors, changes of the cluster.
        records = 0
        for record, owner in self._watch.drain():
            records += 1
            if isinstance(record, OomKill):
                self._reporter.oom_kill(record, owner)
        self._guards.count(records)
        self.take_outcomes()
        state, is_news = self._watch.cluster()
        if is_news and state:
            self._known.learn(state)
            self._watch.know_host_applications(self._known.host_applications)
            self._reporter.problems(self._known.problems_by_reason)
            self._remember(PodsListed(self._known.uids))
            self._executor.forget(self._known.uids)
            self._pace.want_round()
        if state and self._known.look_at_namespaces(state, self._clock.now_ns()):
            self._reporter.problems(self._known.problems_by_reason)
        problems = self._watch.index.problems
        if problems != self._name_problems:
            self._name_problems = problems
            self._reporter.problems({"cgroup names": problems})

    def take_outcomes(self) -> None:
        """Take note of what came of evictions since the last time; each tick does."""
        for outcome in self._outcomes.drain():
            self._note(outcome)

    def _note(self, outcome: Outcome) -> None:
        outcome = self._executor.observe(outcome)
        if self._overdue:
            self._overdue.note(outcome)
        self._remember(OutcomeArrived(outcome, self._clock.now_ns()))
        if frees_the_round(self._memory, outcome):
            # Another candidate may serve meanwhile; and what is back must be seen before it is used again.
            self._pace.want_round()
            self._pace.want_full(0)
        self._reporter.outcome(outcome)

    def _measure(self, now_ns: int, sampled: NodeMeasure | None = None) -> Measured:
        waits = is_waiting(self._memory, now_ns)
        self._pace.measured(now_ns, is_waiting=waits)
        tmpfs = [each.uid for each in self._known.facts if each.keeps_tmpfs(self._config.executor)]
        measured = self._history.measure(now_ns, self._known, tmpfs, sampled)
        # A round amid a crossing has no time for the CPUs, and those that wait for memory to come back need none.
        if self._suppression and sampled is None and (self._pace.take_cpu(now_ns, is_waiting=waits) or self._woken_by):
            cpu = self._suppression.measure(
                measured.now_ns, self._known, self._last_view, each_pod=self._evicts_for_cpu
            )
            measured = msgspec.structs.replace(measured, cpu=cpu)
        self._cpus = len(measured.cpu.topology.online) if measured.cpu else os.cpu_count() or 1
        self._reporter.stalls(self._history.news, self._known.facts)
        if self._known.look_at_capacity(measured.node):
            self._reporter.problems(self._known.problems_by_reason)
        return measured

    def _sample(self) -> NodeMeasure:
        node = self._collector.node(self._threshold)
        self._history.note(self._clock.now_ns(), node)
        return node

    def _round(self, now_ns: int, measured: Measured) -> tuple[NodeMeasure, bool]:
        # The decision on a full measurement; returns the node as measured and whether it is above its threshold.
        view = self._settle(self._view(measured))
        source, emergency = self._watch.source, self._emergency
        lost = emergency.look(measured, source.state()) if emergency and source else None
        judged = emergency.narrowed(view, self._known.facts) if emergency and lost else view
        plan = decide(judged, self._settings)
        is_above = any(feature.verdict.fires for feature in plan.features)
        guards = closed_guards(self._guards.facts(view, self._memory), self._config.guards)
        holding = without_stale(guards) if lost else guards
        if is_above and self._pace.is_round_due(now_ns):
            self._pace.round_began(for_cpu=not any(feature.verdict.needs for feature in plan.features))
            if emergency and lost:
                plan = msgspec.structs.replace(plan, sentence=f"{lost}: {plan.sentence}")
                self._carry_out(judged, plan, holding, emergency.executor)
            elif self._overdue and (late := self._overdue.look(view, plan)):
                self._carry_out(view, late, guards, self._overdue.kill)
            elif self._ladder:
                self._carry_out(view, *self._ladder.climb(view, plan, guards, self._executor))
                self._pace.round_ns = min(self._pace.round_ns, self._ladder.due_ns(now_ns) or self._pace.round_ns)
            else:
                self._carry_out(view, plan, guards, self._executor)
        elif self._ladder and not is_above:
            self._ladder.climb(view, plan, guards, self._executor)
        if self._ladder and self._ladder.last_rung_ns == view.now_ns:
            self._history.restart_stall_window()
        if self._suppression and view.cpu and self._known.is_whole:  # else nobody knows whose CPUs are whose
            self._reporter.suppression(self._suppression.hold(view, self._woken_by), self._suppression.counts)
            self._last_view = view
        if self._marking:
            self._marking.look(plan, self._memory.pending, self._memory.late, view.now_ns)
        if self._ladder:
            self._reporter.ladder(self._ladder.counts)
        if self._pace.take_exempt(view.now_ns):
            self._reporter.exempt(exempt_bytes(view, self._settings))
        self._reporter.view(view, plan, guards, self._watch, holding=holding)
        return view.measure, is_above

    def _view(self, measured: Measured) -> NodeView:
        view = build_view(
            pods=self._known.facts,
            node=self._known.node,
            strategy=self._known.strategy,
            measured=measured,
            feature_gates=self._config.feature_gates,
            executor=self._config.executor,
            pending=self._memory.pending,
            last_evict_ns=self._memory.last.last_ns(for_cpu=False),
            last_cpu_evict_ns=self._memory.last.last_ns(for_cpu=True),
            topology=self._known.topology,
            wall_s=self._clock.wall_s(),
            own_pod_uid=self._own_pod_uid,
            evictions=self._memory.budget.recent(measured.now_ns),
            pdbs=self._known.pdbs,
            started_ns=self._started_ns,
            refused=self._memory.refused,
            namespaces=self._known.namespaces,
            strict=self._known.is_strict,
        )
        return judged(view, self._settings.exemptions)

    def _settle(self, view: NodeView) -> NodeView:
        # Which of those that were told to go have given their memory back, before the decision counts on them.
        news = settled(
            self._memory,
            NodeMeasured(view, self._settings.pending_max_ns, keeps_released=self._config.executor == "api"),
        )
        self._keep(news.memory)
        for entry in news.released:
            self._reporter.released(entry, view.now_ns)
        for entry in news.late:
            self._reporter.late(entry, view.now_ns, self._settings.pending_max_ns)
        return msgspec.structs.replace(view, pending=self._memory.pending)

    def _remember(self, event: MemoryEvent) -> None:
        self._keep(after(self._memory, event))

    def _keep(self, memory: DecisionMemory) -> None:
        if memory.budget != self._memory.budget:
            self._kept.keep(memory.budget)
        self._memory = memory

    def _carry_out(self, view: NodeView, plan: Plan, guards: tuple[ClosedGuard, ...], executor: Actuator) -> None:
        decided_ns = self._clock.now_ns()
        if not plan.victims:
            self._pace.no_victim(decided_ns, is_waiting=is_waiting(self._memory, decided_ns))
            self._reporter.plan(plan, (), crossed_ns=self._pace.crossed_ns, decided_ns=decided_ns)
            return
        screening = screen(
            plan.victims,
            guards,
            self._memory.budget,
            self._config.guards,
            now_ns=decided_ns,
            own_pod_uid=self._own_pod_uid,
        )
        if screening.allowed and not executor.is_dry_run:
            self._reporter.begin(plan, crossed_ns=self._pace.crossed_ns, decided_ns=decided_ns)
        outcomes = [executor.submit(victim, decided_ns) for victim in screening.allowed]
        outcomes += [executor.submit(victim, decided_ns, guard) for victim, guard in screening.held]
        results = {outcome.uid: outcome.result for outcome in outcomes}
        acting = {uid for uid, result in results.items() if result in _ACTING}
        for feature in plan.features:
            # Of one that goes for stalls the node's use says nothing: page cache is no part of it.
            is_for_use = feature.verdict.stall is None and USED in feature.verdict.amounts
            for_cpu = bool(feature.verdict.cpu_needs)
            for victim in feature.victims:
                pod = victim.candidate
                if pod.uid in acting:
                    if self._overdue and executor is self._executor:
                        self._overdue.sent(feature.verdict.feature, victim, view, decided_ns)
                    self._remember(EvictionSent(pod, decided_ns, view.known_used_bytes, is_for_use, for_cpu))
                elif results[pod.uid] in _IN_VAIN:
                    self._remember(EvictionFailed(pod, decided_ns))
        self._pace.carried_out(
            decided_ns, is_acting=bool(acting), is_held=bool(guards), cool_time_ns=self._settings.cool_time_ns
        )
        self._reporter.plan(plan, outcomes, crossed_ns=self._pace.crossed_ns, decided_ns=decided_ns)
        for outcome in outcomes:
            if outcome.result not in (Result.SENT, Result.DRY_RUN):
                self._note(outcome)
