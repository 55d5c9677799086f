"""What one agent consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.emergency import Emergency
from koordebpf.agent.ladder import Ladder
from koordebpf.agent.lifecycle.dead_man import DeadManSwitch
from koordebpf.agent.taint import NodeMarking
from koordebpf.clock import Clock, SystemClock
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.runner.context import Measuring
from koordebpf.runner.runner import Runner
from koordebpf.state.view import KillerName
from koordebpf.store.budget import KeptBudget
from koordebpf.store.sink import Sink


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentParts:
    """Everything that an agent measures with, acts by and reports to; what is None is not configured.

    Args:
        measuring: measures the node.
        executor: evicts.
        killers: how pods of Katalyst's plugins are evicted, by the executor's name.
        outcomes: what its worker threads answer.
        sinks: everything that records or reports.
        writer: of cgroup files.
        own_pod_uid: of the agent's pod; None: it runs in none.
        kept: the budget, where the next agent finds it.
        emergency: an API server that is lost.
        cpu: measures the CPUs.
        ladder: milder rungs before an eviction.
        runners: of strategies, asked in each round, in this order.
        marking: taints the node.
        overdue_kill: kills evicted pods that keep their memory.
        dead_man: kills one while the agent does not run.
        clock: of the tick.
    """

    measuring: Measuring
    executor: Actuator
    outcomes: OutcomeQueue
    sinks: Sink
    killers: Mapping[KillerName, Actuator] = field(default_factory=dict)
    writer: CgroupWriter | None = None
    own_pod_uid: str | None = None
    kept: KeptBudget = field(default_factory=lambda: KeptBudget(None))
    emergency: Emergency | None = None
    cpu: CpuSampler | None = None
    ladder: Ladder | None = None
    runners: Sequence[Runner] = ()
    marking: NodeMarking | None = None
    overdue_kill: Actuator | None = None
    dead_man: DeadManSwitch | None = None
    clock: Clock = field(default_factory=SystemClock)
