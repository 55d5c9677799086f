"""One round of an agent: the frame of a measurement, the decision on it, and carrying that out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from koordebpf.agent.evictions import Evictions
from koordebpf.agent.pace import Pace
from koordebpf.agent.parts import AgentParts
from koordebpf.clock import Clock
from koordebpf.collect.cluster_view import frame_of, in_force
from koordebpf.collect.node_watch import NodeWatch, signal_state
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings, decide_tick, tick_view
from koordebpf.decision.strategies import may_choose_any
from koordebpf.policy.evict.all_features import are_on
from koordebpf.policy.evict.eligibility import eligibility
from koordebpf.policy.evict.exemptions import exempt_bytes
from koordebpf.state.amount import CPU, MEMORY
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.guard_facts import LOSS_WINDOW_NS, GuardFacts
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.view import Frame, NodeView
from koordebpf.store.sink import EligibilityCounted, Event, ExemptCounted, ReportFailed, RoundEnded
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)
_NO_FACTS = GuardFacts(now_ns=0, source="file", pods_synced_ns=None)  # they are gathered from the view


class GuardWatch:
    """Counts records and suspends between two looks. After a suspend cgroups and pods are read again."""

    def __init__(
        self,
        config: AgentConfig,
        watch: NodeWatch,
        clock: Clock,
        node_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._config = config
        self._node_problem = node_problem
        self._watch = watch
        self._clock = clock
        self._records = 0
        totals = watch.totals()
        self._lost_seen = totals.ring_lost if totals else 0
        self._loss_since_ns = 0
        self._suspended_ns = clock.suspended_ns()
        self._resumed_ns = 0

    def count(self, records: int) -> None:
        """Add records that the kernel sent."""
        self._records += records

    def facts(self, view: NodeView, memory: DecisionMemory) -> GuardFacts:
        """Return what the guards look at."""
        state = self._watch.source.state() if self._watch.source else None
        totals = self._watch.totals()
        lost = (totals.ring_lost if totals else 0) - self._lost_seen
        records = self._records
        if view.now_ns - self._loss_since_ns > LOSS_WINDOW_NS:
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
            useless_evictions=memory.effectiveness.ineffective,
            useless_ns=memory.effectiveness.ineffective_ns,
            node_problem=self._node_problem(),
        )

    # The guard opens once the source has answered since the resume.
    def _clock_jump_ns(self, synced_at_ns: int) -> int:
        jump_ns = self._clock.suspended_ns() - self._suspended_ns
        if abs(jump_ns) > self._config.guards.clock_jump_max_ns and not self._resumed_ns:
            log.warning("the machine was suspended for %d s: cgroups and pods are read again", abs(jump_ns) // NS_PER_S)
            self._watch.rescan()
            self._resumed_ns = self._clock.now_ns()
        elif self._resumed_ns and synced_at_ns > self._resumed_ns:
            self._suspended_ns, self._resumed_ns, jump_ns = self._clock.suspended_ns(), 0, 0
        return jump_ns


def _tick_settings(config: AgentConfig, *, kills_overdue: bool) -> TickSettings:
    return TickSettings(
        eviction=config.eviction,
        strategies=config.strategies,
        guards=config.guards,
        emergency=config.emergency,
        kill_after_ns=int(config.kill_after_s * NS_PER_S) if kills_overdue and config.kill_after_s else None,
    )


class RoundEnd(NamedTuple):
    """What a round saw, for the pace of the next one."""

    node: NodeMeasure
    is_above: bool


class Rounds:
    """Decides on full measurements, each from a frame that holds all it depends on, and carries the decisions out."""

    def __init__(self, config: AgentConfig, parts: AgentParts, pace: Pace) -> None:
        self.evictions = Evictions(config, parts, pace)
        self.guards = GuardWatch(config, parts.measuring.watch, parts.clock, lambda: parts.measuring.collector.problem)
        self.cpu_view: NodeView | None = None  # of the last round that strategies of the CPUs were asked in
        self._config = config
        self._parts = parts
        self._known = parts.measuring.known
        self._pace = pace
        self._settings = _tick_settings(config, kills_overdue=parts.overdue_kill is not None)
        self._started_ns = parts.clock.now_ns()
        self._is_count_due = False  # of the pods that may be evicted: it waits for a look at the CPUs

    def run(self, now_ns: int, measured: Measured) -> RoundEnd:
        """Decide on a full measurement and carry the decision out.

        Args:
            now_ns: begin of the tick.
            measured: the node.
        """
        tick, view = self._framed(now_ns, measured)
        tick, decision = self._decided(tick, view)
        ladder = self._parts.ladder
        if decision.carried:
            self._pace.round_began(
                for_cpu=not any(feature.verdict.is_for(MEMORY) for feature in decision.plan.features)
            )
            self.evictions.carry_out(view, decision.carried)
            if ladder and decision.ladder is not None:
                self._pace.round_ns = min(self._pace.round_ns, ladder.due_ns(now_ns) or self._pace.round_ns)
        if ladder and ladder.last_rung_ns == view.now_ns:
            self._parts.measuring.history.restart_stall_window()
        if self._parts.dead_man:
            above, clock = self._parts.measuring.watch.index.above, self._parts.clock
            self._parts.dead_man.choose(tick, view, decision.holding, above, clock.now_ns())
        if tick.has_cpu:
            self.cpu_view = view
        self._carry_out_strategies(view, decision)
        self._parts.sinks.publish(RoundEnded(tick, view, decision, signal_state(self._parts.measuring.watch)))
        self._report(view)
        return RoundEnd(view.measured.node, decision.is_short)

    def _carry_out_strategies(self, view: NodeView, decision: TickDecision) -> None:
        parts, memory = self._parts, self.evictions.memory
        for each in parts.runners:
            each.carry_out(decision.strategies, view)
        if parts.marking:
            parts.marking.observe(decision.plan, memory.pending, memory.late, view.now_ns, decision.strategies)

    # For people alone. Where the CPUs were not measured, as during a crossing, the pods are counted in a later round,
    # but for no longer than a period.
    def _report(self, view: NodeView) -> None:
        is_period_over = self._pace.poll_exempt(view.now_ns)
        if is_period_over:
            self._try_report("exempt memory", lambda: ExemptCounted(exempt_bytes(view, self._config.eviction)))
        lacks_cpu = view.cpu is None and self._parts.cpu is not None and are_on(view.feature_gates, CPU)
        if is_period_over and lacks_cpu and not self._is_count_due:
            self._is_count_due = True
        elif is_period_over or (self._is_count_due and not lacks_cpu):
            self._is_count_due = False
            self._try_report("eligible pods", lambda: self._eligibility(view))

    # None where plugins may ask for any pod.
    def _eligibility(self, view: NodeView) -> EligibilityCounted:
        found = None if may_choose_any(self._config.feature_gates) else eligibility(view, self._config.eviction)
        return EligibilityCounted(found, view.now_ns)

    def _try_report(self, name: str, made: Callable[[], Event]) -> None:
        event: Event
        try:
            event = made()
        except Exception as error:
            event = ReportFailed(name, error)
        self._parts.sinks.publish(event)

    # The round's frame and the view that it stands for. Pods whose memory is back are no longer counted on.
    def _framed(self, now_ns: int, measured: Measured) -> tuple[TickFrame, NodeView]:
        known, parts = self._known, self._parts
        frame = self._frame(measured)
        tick = TickFrame(
            frame=frame,
            settings=self._settings,
            guards=_NO_FACTS,
            is_round_due=self._pace.is_round_due(now_ns),
            has_cpu=parts.cpu is not None and measured.cpu is not None and known.is_whole,
            ladder=parts.ladder.memory if parts.ladder else None,
            states={name: state for each in parts.runners for name, state in each.states.items()},
        )
        view = self.evictions.settle(tick_view(tick, known.facts))
        source = parts.measuring.watch.source
        state = source.state() if source else None
        lost = parts.emergency.listed_cgroups(measured, state) if parts.emergency and state else None
        return replace(
            tick,
            frame=view.frame,
            guards=self.guards.facts(view, self.evictions.memory),
            evicted=self.evictions.overdue,
            listed_cgroups=lost,
        ), view

    def _frame(self, measured: Measured) -> Frame:
        known = self._known
        frame = frame_of(
            known.reported,
            measured,
            feature_gates=self._config.feature_gates,
            executor=self._config.executor,
            wall_s=self._parts.clock.wall_s(),
        )
        return replace(in_force(frame, known), ownPodUid=self._parts.own_pod_uid, startedNs=self._started_ns)

    # The decision, and the frame that it was made from: where a rung is not possible here, another step is decided on.
    def _decided(self, tick: TickFrame, view: NodeView) -> tuple[TickFrame, TickDecision]:
        decision = decide_tick(tick, view, self._known.facts)
        ladder = self._parts.ladder
        if ladder is None or decision.ladder is None:
            return tick, decision
        ladder.hold(view.now_ns)
        while decision.step and decision.ladder and not ladder.carry_out(decision.step, decision.ladder, view.now_ns):
            tick = replace(tick, ladder=ladder.memory)
            decision = decide_tick(tick, view, self._known.facts)
        return tick, decision
