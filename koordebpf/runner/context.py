"""What the runner of a strategy, or another job of an agent, is opened with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.clock import Due
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import settings_of
from koordebpf.kernel.io.loop import Loop
from koordebpf.policy.strategy import Strategy
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.runner.measuring import Measuring
from koordebpf.store.sink import Event

C = TypeVar("C", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeContext:
    """The node of one agent.

    Args:
        config: the agent's.
        measuring: the node, the cluster as it is known, and the series.
        cpu: measures the CPUs; None: nothing does.
        loop: what is opened may watch an fd, or wake it from another thread.
        stack: closes what was opened.
        writer: of cgroup files.
        metrics: of the agent.
        folder: of the one agent that acts on the node, and may write to the API server; None: it does not act.
        report: gets each change that is no write to a cgroup file.
        publish: gets each event, for all that records or reports.
        want_round: makes a full measurement due; from the loop's thread.
        other_folder: for a frame of one moment, the folder of the agent that may act on the node: each
            collector is due and measures all pods, and nothing is carried out. None: this is an agent.
    """

    config: AgentConfig
    measuring: Measuring
    loop: Loop
    stack: contextlib.ExitStack
    writer: CgroupWriter
    metrics: AgentMetrics
    folder: Path | None
    report: Callable[[FileChange], None]
    publish: Callable[[Event], None]
    want_round: Callable[[], None] = lambda: None
    other_folder: Path | None = None
    cpu: CpuSampler | None = None

    @property
    def acts(self) -> bool:
        """Whether this agent acts on the node, and no other does."""
        return self.folder is not None

    @property
    def is_one_frame(self) -> bool:
        """Whether nothing but a frame is made of what is measured."""
        return self.other_folder is not None

    def settings_of(self, strategy: Strategy[Any, Any, C]) -> C:
        """Return a strategy's section of the configuration."""
        settings: C = settings_of(strategy, self.config)
        return settings

    def due(self, period_ns: int) -> Due:
        """Return when a collector of this period measures: for a frame of one moment whenever it is asked."""
        return Due(0 if self.is_one_frame else period_ns)
