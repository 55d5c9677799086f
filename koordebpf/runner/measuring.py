"""What an agent measures its node with. One that stands by keeps it when it takes over."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from koordebpf.collect.cluster_view import Known
from koordebpf.collect.history import NodeHistory
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kube.sources.base import Source
from koordebpf.report.beside import Beside
from koordebpf.state.pods.exemptions import asked_labels
from koordebpf.state.prediction import LatestPrediction
from koordebpf.state.series.node import NodeSeries, node_series


@dataclass(frozen=True, slots=True)
class Measuring:
    """What an agent measures its node with, and what it remembers of it.

    An agent that takes over starts from both: loading the BPF programs takes 0.15 s, on busy CPUs several seconds.

    Args:
        watch: kernel signals, the cgroup index and the source of pods.
        collector: measures memory.
        known: the pods and the NodeSLO in force.
        history: stalls, the ledger of who caused them, forecasts.
        series: what collectors measured over time.
        prediction: what was predicted of it last.
        beside: what jobs beside the ticks show.
    """

    watch: NodeWatch
    collector: MemoryCollector
    known: Known
    history: NodeHistory
    series: NodeSeries
    prediction: LatestPrediction = field(default_factory=LatestPrediction)
    beside: Beside = field(default_factory=Beside)

    @classmethod
    def of(cls, config: AgentConfig, watch: NodeWatch, collector: MemoryCollector) -> Measuring:
        """Return it for a node that is watched; nothing is known yet."""
        exemptions = config.eviction.exemptions
        max_age_ns = None if asked_labels(exemptions) is None else config.guards.pods_max_age_ns
        known = Known(strict=config.compat == "strict", labels_max_age_ns=max_age_ns)
        return cls(watch, collector, known, NodeHistory(watch, collector, exemptions), node_series(config.series))


def open_measuring(config: AgentConfig, scope: NodeScope, source: Source, stack: contextlib.ExitStack) -> Measuring:
    """Attach the BPF programs and return what the node is measured with; the stack detaches them.

    Raises:  SupportError: the backend that is asked for does not work here.
    """
    watch = stack.enter_context(NodeWatch(scope, source, config.min_stall_ns, backend=config.backend))
    collector = MemoryCollector(scope, watch.signals, watch.index)
    stack.callback(collector.close)
    return Measuring.of(config, watch, collector)
