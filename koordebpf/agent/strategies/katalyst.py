"""Katalyst's eviction manager in the agent: what is measured for it, and what is done beside evictions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koordebpf.act.notify.notifier import PodNotifier
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.agent.measuring import Measuring
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.katalyst.cnr import links_of
from koordebpf.collect.katalyst.memory import KatalystCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.policy.katalyst.inner import INNER
from koordebpf.policy.katalyst.manager import GATE, KATALYST_EVICTION, KatalystDecision
from koordebpf.policy.katalyst.plugins.numa_memory import are_short
from koordebpf.policy.katalyst.plugins.system_memory import used_threshold_bytes
from koordebpf.policy.katalyst.settings import KatalystSettings
from koordebpf.policy.strategies import settings_of
from koordebpf.policy.strategy import Decision
from koordebpf.slo.katalyst.taints import TAINT_PREFIX, cnr_taints_of, taints_of
from koordebpf.state.katalyst.measured import KatalystMeasured
from koordebpf.state.view import Measured
from koordebpf.store.sink import NoticeEnded

if TYPE_CHECKING:
    from koordebpf.act.taint.cnr import CnrTainter
    from koordebpf.act.taint.worker import Tainter
    from koordebpf.agent.strategies.eviction_plugins import EvictionPlugins

    Tainters = tuple[Tainter, CnrTainter]  # of the Node and of the CustomNodeResource


class Katalyst:
    """Measures for the manager, and carries out what its decisions say beside evictions."""

    def __init__(
        self,
        settings: KatalystSettings,
        collector: KatalystCollector,
        known: Known,
        tainters: Tainters | None,
        notifier: PodNotifier | None,
        outside: EvictionPlugins | None = None,
        report: Callable[[NoticeEnded], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._collector = collector
        self._known = known
        self._tainters = tainters
        self._notifier = notifier
        self._outside = outside
        self._report = report
        self._measured: KatalystMeasured | None = None
        self._due_ns = 0  # of the next round, which needs all

    def measure(self, measured: Measured) -> KatalystMeasured:
        """Return what the manager decides from beside what was measured of node and pods."""
        found = self._collector.measure(measured.node, is_round=measured.now_ns >= self._due_ns)
        cnr = self._known.cnr
        links = links_of(cnr) if cnr is not None and self._settings.inner.network.is_on else {}
        found = replace(found, cnr=cnr, links=links)
        if self._outside is not None:
            names, answers = self._outside.take()
            found = replace(found, remote_plugins=names, remote=answers)
        self._measured = found
        return found

    def is_due(self) -> bool:
        """Tell whether a round is due before its time, for what plugins outside have answered."""
        return self._outside is not None and self._outside.is_due()

    def threshold_bytes(self) -> int | None:
        """Return the use of memory from which no round waits for its time; None: not known, or each one waits."""
        system = self._measured.system if self._measured else None
        return used_threshold_bytes(system, self._settings.inner.systemMemory) if system else None

    def carry_out(self, decisions: Mapping[str, Decision[Any]]) -> None:
        """Notify pods, set the taints that the decision reports, and note when the next round is due."""
        made = decisions.get(KATALYST_EVICTION.name)
        if not isinstance(made, KatalystDecision):
            return
        if made.wake_at_ns is not None:
            self._due_ns = made.wake_at_ns
        if self._outside is not None and made.call is not None:
            self._outside.call(made.call)
        if self._notifier is not None:
            self._notifier.keep(made.listening)
            for notice in made.notices:
                self._notifier.notify(notice)
            for notice, problem in self._notifier.take_ended():
                self._report(NoticeEnded(notice, problem, time.monotonic_ns(), time.time()))
        if self._tainters is not None:
            of_node = [each.condition for each in made.reported if each.condition.kind == "node"]
            of_cnr = [each.condition for each in made.reported if each.condition.kind == "cnr"]
            node, cnr = self._tainters
            node.wish(frozenset(taint for each in of_node for taint in taints_of(each.name, each.effects)))
            cnr.wish(frozenset(taint for each in of_cnr for taint in cnr_taints_of(each.name, each.effects)))


def needs_cnr(config: AgentConfig) -> bool:
    """Tell whether this node's CustomNodeResource is to be read: a watch, and a right, that no other feature needs."""
    return config.feature_gates.get(GATE, False)


def open_katalyst(
    config: AgentConfig,
    measuring: Measuring,
    wake: Callable[[], None],
    report: Callable[[NoticeEnded], None],
    stack: contextlib.ExitStack,
) -> Katalyst | None:
    """Return it where the feature gate is on; the stack closes what it reads.

    `wake` is called for plugins outside, and `report` takes what became of notices.
    """
    if not config.feature_gates.get(GATE):
        return None
    settings = settings_of(KATALYST_EVICTION, config)
    inner = settings.inner
    collector = stack.enter_context(
        KatalystCollector(
            measuring.watch,
            lambda numa: are_short(numa, inner.numaMemory),
            counts_steals=inner.systemMemory.kswapd_pages is not None,
        )
    )
    notifier = None
    if config.enforce and settings.notices:
        notifier = PodNotifier(Path(settings.notices))
        stack.callback(notifier.close)
    outside = _open_outside(config, settings, measuring.watch, wake, stack)
    tainters = open_tainters(config, settings, stack)
    return Katalyst(settings, collector, measuring.known, tainters, notifier, outside, report)


# gRPC is imported only where plugins outside are looked for.
def _open_outside(
    config: AgentConfig,
    settings: KatalystSettings,
    watch: NodeWatch,
    wake: Callable[[], None],
    stack: contextlib.ExitStack,
) -> EvictionPlugins | None:
    if not settings.sockets:
        return None
    from koordebpf.agent.strategies.eviction_plugins import open_eviction_plugins

    taken = [each.name for each in INNER.values()]
    return open_eviction_plugins(config, settings.sockets, taken, watch, wake, stack)


def open_tainters(config: AgentConfig, settings: KatalystSettings, stack: contextlib.ExitStack) -> Tainters | None:
    """Return what taints Node and CustomNodeResource; None in a dry run, and where the agent asks no API server.

    The stack ends both, which takes their taints away. urllib3 is imported only where they are.
    """
    if not settings.taints or not config.enforce or config.source == "file" or config.node_name is None:
        return None
    from koordebpf.act.taint.cnr import CnrTainter
    from koordebpf.act.taint.worker import Tainter
    from koordebpf.kube.clients.cnr_taints import CnrTaints
    from koordebpf.kube.clients.katalyst_taints import KatalystTaints
    from koordebpf.kube.http.transport import open_cluster

    tainter = Tainter(KatalystTaints(open_cluster(config.kubeconfig), config.node_name, TAINT_PREFIX))
    stack.callback(tainter.close)
    cnr_tainter = CnrTainter(CnrTaints(open_cluster(config.kubeconfig), config.node_name, TAINT_PREFIX))
    stack.callback(cnr_tainter.close)
    return tainter, cnr_tainter
