"""One tick: take in what the kernel and the cluster reported, measure the node, decide, act.

Policy is elsewhere: `decide` chooses, `policy.guards` forbids, `agent.pace` sets the pace. This owns the order,
and what has to be remembered from one tick to the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from koordebpf.agent.lifecycle.dead_man import DeadManSwitch
from koordebpf.agent.pace import Pace
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.rounds import Rounds
from koordebpf.configuration.settings import AgentConfig
from koordebpf.events.records import OomKill
from koordebpf.policy.detect import be_memory_evict, memory_evict
from koordebpf.policy.evict.all_features import are_on
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.amount import CPU
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.store.sink import (
    NodeSampled,
    OomKilled,
    ProblemsSeen,
    StallsCharged,
    TickEnded,
)

_BY_USE = (be_memory_evict.FEATURE, memory_evict.FEATURE)  # what a crossing of the threshold concerns


class Agent:
    """One node's agent: measures when it is time, and lets a round decide."""

    def __init__(self, config: AgentConfig, parts: AgentParts) -> None:
        self._config = config
        self._parts = parts
        self._known = parts.measuring.known
        self._learned_version = 0  # of the cluster's state; what an agent before this one learned is learned again
        self._pace = Pace(
            floor_ns=config.sample_floor_ns, cap_ns=config.sample_cap_ns, act_ahead_ns=config.eviction.act_ahead_ns
        )
        self._rounds = Rounds(config, parts, self._pace)
        self._evicts_for_cpu = are_on(config.feature_gates, CPU)
        self._wants_cpu = False  # the CPUs are measured before their time
        self._cpus = os.cpu_count() or 1  # as of the last full measurement: it is a file of sysfs
        self._threshold: int | None = None  # as of the last tick: how exactly the next sample has to look
        self._name_problems: tuple[str, ...] = ()

    def tick(self) -> int:
        """Run once; return when the next tick is due at the latest (CLOCK_MONOTONIC ns)."""
        now_ns = self._parts.clock.now_ns()
        if self._parts.ladder:
            self._parts.ladder.thaw_overdue(now_ns)
        if self._parts.writer:
            self._parts.writer.correct(now_ns)
        if self._parts.dead_man and (news := self._parts.dead_man.poll_news(now_ns)):
            self._rounds.evictions.fired(news)
        self._drain_signals()
        self._drain_wakes(now_ns)
        measured = self._measure(now_ns) if self._pace.is_full_due(now_ns) else None
        node = measured.node if measured else self._sample()
        self._threshold = threshold = self._threshold_of(node)
        is_above = self._pace.sampled(node, threshold, now_ns, self._parts.clock.now_ns())
        if measured or (is_above and self._pace.is_round_due(now_ns)):
            node, is_above = self._rounds.run(now_ns, measured or self._measure(now_ns, node))
        self._parts.sinks.publish(TickEnded(self._parts.clock.now_ns()))
        then_ns = self._parts.clock.now_ns()
        waits = self._rounds.evictions.is_waiting(then_ns)
        due_ns = self._pace.due_ns(
            now_ns, then_ns, node, threshold, is_above=is_above, is_waiting=waits, cpus=self._cpus
        )
        for each in self._parts.runners:
            due_ns = min(due_ns, each.due_ns(now_ns) or due_ns)
        return min(due_ns, self._parts.ladder.due_ns(now_ns) or due_ns) if self._parts.ladder else due_ns

    @property
    def dead_man(self) -> DeadManSwitch | None:
        """Its dead man's switch; None: there is none."""
        return self._parts.dead_man

    def drain_outcomes(self) -> None:
        """Take note of what came of evictions since the last time; each tick does."""
        self._rounds.evictions.drain_outcomes()

    def want_round(self) -> None:
        """Make a full measurement, and a round with it, due now."""
        self._pace.want_full(self._parts.clock.now_ns())

    def _threshold_of(self, node: NodeMeasure) -> int | None:
        found = []
        if any(self._config.feature_gates.get(name) for name in _BY_USE):
            found.append(threshold_bytes(self._known.strategy, self._known.capacity_bytes(node)))
        found += [each.threshold_bytes() for each in self._parts.runners]
        return min((each for each in found if each is not None), default=None)

    # Rounds that are due before their time.
    def _drain_wakes(self, now_ns: int) -> None:
        due = [each for each in self._parts.runners if each.poll_due(now_ns)]
        if due:
            self._pace.want_full(now_ns)
        self._wants_cpu = any(each.needs_cpu for each in due)

    def _drain_signals(self) -> None:
        # What happened since the last tick: kernel records, answers of executors, changes of the cluster.
        records = 0
        watch = self._parts.measuring.watch
        for record, owner in watch.drain():
            records += 1
            if isinstance(record, OomKill):
                self._parts.sinks.publish(OomKilled(record, owner, self._parts.clock.now_ns()))
        self._rounds.guards.count(records)
        self.drain_outcomes()
        state, _ = watch.cluster()
        if state and state.version != self._learned_version:
            self._learned_version = state.version
            spec = self._known.spec
            self._known.learn(state)
            if self._known.spec is not spec:
                self._pace.want_full(self._parts.clock.now_ns())
            watch.know_host_applications(self._known.host_applications)
            self._report_problems(self._known.problems_by_reason)
            self._rounds.evictions.listed(self._known.uids)
            self._pace.want_round()
        if state and self._known.refresh_namespaces(state, self._parts.clock.now_ns()):
            self._report_problems(self._known.problems_by_reason)
        problems = watch.index.problems
        if problems != self._name_problems:
            self._name_problems = problems
            self._report_problems({"cgroup names": problems})

    def _report_problems(self, by_reason: Mapping[str, Sequence[str]]) -> None:
        self._parts.sinks.publish(ProblemsSeen(by_reason, self._parts.clock.now_ns()))

    def _measure(self, now_ns: int, sampled: NodeMeasure | None = None) -> Measured:
        waits = self._rounds.evictions.is_waiting(now_ns)
        self._pace.measured(now_ns, is_waiting=waits)
        facts = self._known.facts
        shmem = [each.uid for each in facts if each.keeps_tmpfs(self._config.executor)]
        shmem += [uid for each in self._parts.runners for uid in each.shmem_uids(facts, now_ns)]
        measured = self._parts.measuring.history.measure(now_ns, self._known, shmem, sampled)
        # A round during a crossing has no time for the CPUs, and those that wait for memory to come back need none.
        if self._parts.cpu and sampled is None and (self._pace.poll_cpu(now_ns, is_waiting=waits) or self._wants_cpu):
            cpu = self._parts.cpu.measure(
                measured.now_ns, self._known, self._rounds.cpu_view, each_pod=self._evicts_for_cpu
            )
            measured = replace(measured, cpu=cpu)
        for each in self._parts.runners:
            measured = each.measure(measured, is_sample=sampled is not None)
        self._cpus = len(measured.cpu.topology.online) if measured.cpu else os.cpu_count() or 1
        self._parts.sinks.publish(StallsCharged(self._parts.measuring.history.news, self._known.facts))
        if self._known.check_capacity(measured.node):
            self._report_problems(self._known.problems_by_reason)
        return measured

    def _sample(self) -> NodeMeasure:
        node = self._parts.measuring.collector.node(self._threshold)
        now_ns = self._parts.clock.now_ns()
        self._parts.measuring.history.record(now_ns, node)
        self._parts.sinks.publish(NodeSampled(now_ns, node))
        return node
