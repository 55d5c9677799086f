"""What the runner of a strategy, or another job of an agent, is opened with, and what a node is measured with.

An agent that stands by keeps the latter when it takes over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.collect.history import NodeHistory
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import settings_of
from koordebpf.kernel.io.loop import Loop
from koordebpf.kube.sources.base import Source
from koordebpf.policy.strategy import Strategy
from koordebpf.report.job_pages import JobPages
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.pods.namespaces import asked_labels
from koordebpf.state.prediction import LatestPrediction
from koordebpf.state.series.store import NodeSeries, node_series
from koordebpf.store.sink import Event

if TYPE_CHECKING:
    from koordebpf.kube.http.transport import Transport

C = TypeVar("C", bound=msgspec.Struct)


def open_own_kubelet(config: AgentConfig, url: str) -> Transport:
    """Return a transport to the kubelet at that address, with the credentials that the settings name.

    Raises:  as `koordebpf.kube.http.transport.open_kubelet`.
    """
    from koordebpf.kube.http.transport import SERVICE_ACCOUNT, open_kubelet

    return open_kubelet(
        url,
        config.kubelet_token_file or SERVICE_ACCOUNT / "token",
        config.kubelet_ca_file,
        insecure=config.kubelet_insecure,
    )


@dataclass(frozen=True, slots=True)
class Measuring:
    """What an agent measures its node with, and what it remembers of it.

    An agent that takes over starts from both: loading the BPF programs takes 0.15 s, on busy CPUs several seconds.

    Args:
        watch: kernel signals, the cgroup index and the source of pods.
        collector: measures memory.
        known: the pods and the effective NodeSLO.
        history: stalls, the ledger of who caused them, forecasts.
        series: what collectors measured over time.
        prediction: what was predicted of it last.
        beside: what jobs beside the ticks show.
    """

    watch: NodeWatch
    collector: MemoryCollector
    known: ClusterView
    history: NodeHistory
    series: NodeSeries
    prediction: LatestPrediction = field(default_factory=LatestPrediction)
    beside: JobPages = field(default_factory=JobPages)

    @classmethod
    def of(cls, config: AgentConfig, watch: NodeWatch, collector: MemoryCollector) -> Measuring:
        """Return it for a node that is watched; nothing is known yet."""
        exemptions = config.eviction.exemptions
        max_age_ns = None if asked_labels(exemptions) is None else config.guards.pods_max_age_ns
        known = ClusterView(strict=config.compat == "strict", labels_max_age_ns=max_age_ns)
        return cls(watch, collector, known, NodeHistory(watch, collector, exemptions), node_series(config.series))


def open_measuring(config: AgentConfig, scope: NodeScope, source: Source, stack: contextlib.ExitStack) -> Measuring:
    """Attach the BPF programs and return what the node is measured with; the stack detaches them.

    Raises:  SupportError: the backend that is asked for does not work here.
    """
    watch = stack.enter_context(NodeWatch(scope, source, config.min_stall_ns, backend=config.backend))
    collector = MemoryCollector(scope, watch.signals, watch.index)
    stack.callback(collector.close)
    return Measuring.of(config, watch, collector)


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
