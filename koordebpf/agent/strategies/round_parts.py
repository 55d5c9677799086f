"""What strategies need in each round beside their decision: one module a strategy, and one line in `ROUND_PARTS`.

A part measures what its strategies decide from, and carries out what is no cgroup file: those `OwnStrategies` writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.agent.measuring import Measuring
from koordebpf.agent.strategies.hooks import open_runtime_hooks
from koordebpf.agent.strategies.qos.block_io import open_block_io
from koordebpf.agent.strategies.qos.cpu_burst import open_cpu_burst
from koordebpf.agent.strategies.qos.memory_qos import open_memory_qos
from koordebpf.agent.strategies.qos.page_cache import open_page_cache
from koordebpf.agent.strategies.qos.proactive_reclaim import open_proactive_reclaim
from koordebpf.agent.strategies.qos.rdt_resctrl import open_rdt_resctrl
from koordebpf.agent.strategies.qos.resctrl_monitor import open_resctrl_monitor
from koordebpf.agent.strategies.qos.system_config import open_system_config
from koordebpf.clock import Due
from koordebpf.kernel.io.loop import Loop
from koordebpf.policy.strategy import Decision
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.measured import Measured
from koordebpf.state.view import NodeView


class RoundPart(Protocol):
    """One of them. Nothing of it waits.

    `needs_cpu`: it decides from a measurement of the CPUs, too.
    """

    needs_cpu: bool

    def take_due(self, now_ns: int) -> bool:
        """Tell whether a round is to be made before its time; once for each reason."""

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """Return the measurement with this part's own; as it is where that could not be made.

        `is_sample`: memory is short, and a round has no time for anything else.
        """

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Act on the decisions of a round, by strategy; what skipped the round keeps what it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenWith:
    """What a part is opened with.

    Args:
        config: the agent's.
        measuring: the node, and the cluster as it is known.
        writer: of cgroup files.
        loop: a part may watch an fd, or wake it from another thread.
        folder: of the one agent that acts on the node; None: a dry run.
        report: gets each change that is made beside cgroup files.
        metrics: of the agent.
        stack: closes parts.
        beside: for a frame of one moment, the folder of the agent that may act on the node: each look is due and takes
            in all pods, and nothing is carried out. None: this is an agent.
    """

    config: AgentConfig
    measuring: Measuring
    writer: CgroupWriter
    loop: Loop
    folder: Path | None
    report: Callable[[FileChange], None]
    metrics: AgentMetrics
    stack: contextlib.ExitStack
    beside: Path | None = None

    @property
    def is_one_frame(self) -> bool:
        """Whether nothing but a frame is made of what is measured."""
        return self.beside is not None

    def due(self, period_ns: int) -> Due:
        """Return when a collector of this period looks: for a frame of one moment whenever it is asked."""
        return Due(0 if self.is_one_frame else period_ns)


# Each returns None where its feature gate is off, and loads nothing then.
ROUND_PARTS: tuple[Callable[[OpenWith], RoundPart | None], ...] = (
    open_runtime_hooks,
    open_block_io,
    open_proactive_reclaim,
    open_system_config,
    open_rdt_resctrl,
    open_resctrl_monitor,
    open_cpu_burst,
    open_memory_qos,
    open_page_cache,
)


def open_round_parts(given: OpenWith) -> tuple[RoundPart, ...]:
    """Open those whose feature gates are on."""
    return tuple(part for each in ROUND_PARTS if (part := each(given)) is not None)
