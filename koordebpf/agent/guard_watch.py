"""What the guards look at, gathered: lost records, the age of the list of pods, suspends."""

from __future__ import annotations

import logging

from koordebpf.clock import Clock
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.guard_facts import LOSS_WINDOW_NS, GuardFacts
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)


class GuardWatch:
    """Counts records and suspends between two looks. After a suspend cgroups and pods are read again."""

    def __init__(self, config: AgentConfig, watch: NodeWatch, clock: Clock) -> None:
        self._config = config
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
