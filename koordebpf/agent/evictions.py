"""Evictions of one agent: sends what a round decided, and remembers what became of it."""

from __future__ import annotations

from koordebpf.act.evict.actuator import Actuator
from koordebpf.agent.lifecycle.dead_man import DeadManNews
from koordebpf.agent.pace import Pace
from koordebpf.agent.parts import AgentParts
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.dead_man import dead_man_outcome, dead_man_plan
from koordebpf.decision.decide_tick import CarriedOut
from koordebpf.policy.evict.pending import EvictedPods
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
from koordebpf.policy.plan import Victim
from koordebpf.state.amount import CPU, USED
from koordebpf.state.build import with_memory
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView
from koordebpf.store.sink import (
    MemoryReleased,
    PlanDecided,
    PlanStarted,
    ReleaseOverdue,
)

_ACTING = frozenset({Result.SENT, Result.DONE})
_IN_VAIN = frozenset({Result.GONE, Result.FAILED})  # at once, before anything was sent


class Evictions:
    """The memory of an agent's decisions, and the one place where evictions are sent."""

    def __init__(self, config: AgentConfig, parts: AgentParts, pace: Pace) -> None:
        self.memory = DecisionMemory(budget=parts.kept.budget)
        self.overdue = EvictedPods()  # and those that may become so
        self._config = config
        self._parts = parts
        self._pace = pace

    def is_waiting(self, now_ns: int) -> bool:
        """Tell whether memory may come back at any moment."""
        return is_waiting(self.memory, now_ns)

    def listed(self, uids: frozenset[str]) -> None:
        """Take note of the pods that there are."""
        self._keep(after(self.memory, PodsListed(uids)))
        self._parts.executor.forget(uids)
        for executor in self._parts.killers.values():
            executor.forget(uids)

    def drain_outcomes(self) -> None:
        """Take note of what came of evictions since the last time."""
        for outcome in self._parts.outcomes.drain():
            self._record(outcome)

    def settle(self, view: NodeView) -> NodeView:
        """Return the view without the evicted pods that have released their memory: the decision counts on the rest."""
        max_ns, sinks = self._config.eviction.pending_max_ns, self._parts.sinks
        keeps_released = self._config.executor == "api"
        event = NodeMeasured(view, max_ns, keeps_released=keeps_released, populated=self._populated(view))
        news = settled(self.memory, event)
        self._keep(news.memory)
        for entry in news.released:
            sinks.publish(MemoryReleased(entry, view.now_ns))
        for entry in news.late:
            sinks.publish(ReleaseOverdue(entry, view.now_ns, max_ns))
        view = with_memory(view, self.memory)
        self.overdue = self.overdue.still_pending(view)
        return view

    def carry_out(self, view: NodeView, carried: CarriedOut) -> None:
        """Send what no guard holds back, and report all of it."""
        plan, executor, sinks, clock = carried.plan, self._executor_of(carried), self._parts.sinks, self._parts.clock
        decided_ns, cool_ns = clock.now_ns(), self._config.eviction.cool_time_ns
        if not plan.victims:
            self._pace.no_victim(decided_ns, is_waiting=self.is_waiting(decided_ns))
            sinks.publish(PlanDecided(plan, (), self._pace.crossed_ns, decided_ns, clock.wall_s()))
            return
        screening = carried.screening
        if screening.allowed and not executor.is_dry_run:
            sinks.publish(PlanStarted(plan, self._pace.crossed_ns, decided_ns, clock.wall_s()))
        outcomes = [self._killer_of(each, carried).submit(each, decided_ns) for each in screening.allowed]
        outcomes += [self._killer_of(each, carried).submit(each, decided_ns, guard) for each, guard in screening.held]
        results = {outcome.uid: outcome.result for outcome in outcomes}
        acting = {uid for uid, result in results.items() if result in _ACTING}
        for feature in plan.features:
            # Of a pod that is evicted for stalls the node's use says nothing: page cache is no part of it.
            is_for_use = feature.verdict.stall is None and USED in feature.verdict.amounts
            for_cpu = feature.verdict.is_for(CPU)
            for victim in feature.victims:
                pod = victim.candidate
                if pod.uid in acting:
                    if self._parts.overdue_kill and carried.by == "evict":
                        self.overdue = self.overdue.sent(feature.verdict.feature, victim, view, decided_ns)
                    event = EvictionSent(pod, decided_ns, view.known_used_bytes, is_for_use, for_cpu)
                    self._keep(after(self.memory, event))
                elif results[pod.uid] in _IN_VAIN:
                    self._keep(after(self.memory, EvictionFailed(pod, decided_ns)))
        is_held = bool(carried.guards)
        self._pace.carried_out(decided_ns, is_acting=bool(acting), is_held=is_held, cool_time_ns=cool_ns)
        sinks.publish(PlanDecided(plan, tuple(outcomes), self._pace.crossed_ns, decided_ns, clock.wall_s()))
        for outcome in outcomes:
            if outcome.result not in (Result.SENT, Result.DRY_RUN):
                self._record(outcome)

    def fired(self, news: DeadManNews) -> None:
        """Report what the dead man's switch did while this agent did not run, and count on it as on an eviction."""
        choice, now_ns = news.choice, self._parts.clock.now_ns()
        plan, outcome = dead_man_plan(choice, news.firing), dead_man_outcome(choice, news.firing, now_ns)
        if outcome.result is Result.DONE:
            pod, used = plan.victims[0].candidate, choice.threshold_bytes
            sent = EvictionSent(pod, outcome.decided_ns, used, for_use=True, for_cpu=False)
            self._keep(after(self.memory, sent))
        decided = PlanDecided(plan, (outcome,), None, outcome.decided_ns, self._parts.clock.wall_s())
        self._parts.sinks.publish(decided)
        if outcome.result is not Result.DRY_RUN:
            event = OutcomeArrived(outcome, now_ns)
            self._keep(after(self.memory, event))
            self._pace.want_full(0)
            self._parts.sinks.publish(event)

    def _record(self, outcome: Outcome) -> None:
        outcome = self._parts.executor.observe(outcome)
        self.overdue = self.overdue.answered(outcome)
        event = OutcomeArrived(outcome, self._parts.clock.now_ns())
        self._keep(after(self.memory, event))
        if frees_the_round(self.memory, outcome):
            # Another candidate may serve meanwhile; and what is back must be seen before it is used again.
            self._pace.want_round()
            self._pace.want_full(0)
        self._parts.sinks.publish(event)

    # Of the killed pods, those whose containers were started again.
    def _populated(self, view: NodeView) -> frozenset[str]:
        killed = {
            pod.cgroup_id: pod.uid for pod in view.pods if pod.uid in self.memory.killed and pod.cgroup_id is not None
        }
        return frozenset(killed[each] for each in self._parts.measuring.collector.populated(killed))

    def _killer_of(self, victim: Victim, carried: CarriedOut) -> Actuator:
        if carried.by == "evict" and victim.killer is not None:
            return self._parts.killers[victim.killer]
        return self._executor_of(carried)

    def _executor_of(self, carried: CarriedOut) -> Actuator:
        found = {
            "evict": self._parts.executor,
            "kill": self._parts.ladder.kill if self._parts.ladder else None,
            "overdue": self._parts.overdue_kill,
            "emergency": self._parts.emergency.executor if self._parts.emergency else None,
        }[carried.by]
        assert found is not None  # the frame has what such a decision is made of only where there is one
        return found

    def _keep(self, memory: DecisionMemory) -> None:
        if memory.budget != self.memory.budget:
            self._parts.kept.keep(memory.budget)
        self.memory = memory
