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
from koordebpf.collect.katalyst.collector import KatalystCollector
from koordebpf.collect.katalyst.memory import KatalystMemory
from koordebpf.collect.katalyst.rootfs import NodeContainers, RootfsCollector, WalkLimits
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.policy.katalyst.inner import INNER
from koordebpf.policy.katalyst.manager import GATE, KATALYST_EVICTION, KatalystDecision
from koordebpf.policy.katalyst.plugins.numa_memory import are_short
from koordebpf.policy.katalyst.plugins.rootfs_overuse import ROOTFS_OVERUSE
from koordebpf.policy.katalyst.plugins.rootfs_pressure import ROOTFS_PRESSURE, is_short
from koordebpf.policy.katalyst.plugins.system_memory import used_threshold_bytes
from koordebpf.policy.katalyst.settings import KatalystSettings, is_listed
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
    """Measures for the manager, and carries out what its decisions say beside evictions.

    Args:
        settings: of the manager.
        collector: of what it decides from.
        effects: what is done for its decisions on the node and in the cluster.
        outside: plugins outside the process; None: they are not looked for.
    """

    def __init__(
        self,
        settings: KatalystSettings,
        collector: KatalystCollector,
        effects: KatalystEffects,
        outside: EvictionPlugins | None = None,
    ) -> None:
        self._settings = settings
        self._collector = collector
        self._effects = effects
        self._outside = outside
        self._measured: KatalystMeasured | None = None
        self._due_ns = 0  # of the next round, which needs all

    def measure(self, measured: Measured) -> KatalystMeasured:
        """Return what the manager decides from beside what was measured of node and pods."""
        found = self._collector.measure(measured.node, is_round=measured.now_ns >= self._due_ns)
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
        """Call plugins, notify pods, set the taints that the decision reports, and note when the next round is due."""
        made = decisions.get(KATALYST_EVICTION.name)
        if not isinstance(made, KatalystDecision):
            return
        if made.wake_at_ns is not None:
            self._due_ns = made.wake_at_ns
        if self._outside is not None and made.call is not None:
            self._outside.call(made.call)
        self._effects.carry_out(made)


class KatalystEffects:
    """Notices in pods' directories, and taints of the Node and its CustomNodeResource; of what is None, none.

    `report` takes what became of notices.
    """

    def __init__(
        self, notifier: PodNotifier | None, tainters: Tainters | None, report: Callable[[NoticeEnded], None]
    ) -> None:
        self._notifier = notifier
        self._tainters = tainters
        self._report = report

    def carry_out(self, made: KatalystDecision) -> None:
        """Notify and taint as the decision says. Does not wait."""
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
    memory = KatalystMemory(
        measuring.watch,
        lambda numa: are_short(numa, inner.numaMemory),
        counts_steals=inner.systemMemory.kswapd_pages is not None,
    )
    stack.callback(memory.close)
    rootfs = open_rootfs(settings, measuring.watch, stack)
    collector = KatalystCollector(memory, measuring.known, rootfs, with_links=inner.network.is_on)
    effects = KatalystEffects(_open_notifier(config, settings, stack), open_tainters(config, settings, stack), report)
    return Katalyst(settings, collector, effects, _open_outside(config, settings, measuring.watch, wake, stack))


def _open_notifier(config: AgentConfig, settings: KatalystSettings, stack: contextlib.ExitStack) -> PodNotifier | None:
    if not config.enforce or not settings.notices:
        return None
    notifier = PodNotifier(Path(settings.notices))
    stack.callback(notifier.close)
    return notifier


def open_rootfs(settings: KatalystSettings, watch: NodeWatch, stack: contextlib.ExitStack) -> RootfsCollector | None:
    """Return what looks at pods' layers, where a plugin decides from it; else nothing is walked."""
    pressure, overuse = settings.inner.rootfsPressure, settings.inner.rootfsOveruse
    names = ((ROOTFS_PRESSURE.name, pressure.is_on), (ROOTFS_OVERUSE.name, overuse.is_on))
    wanted = [each for each in names if each[1] and is_listed(each[0], settings.plugins)]
    if not wanted:
        return None
    collector = RootfsCollector(
        NodeContainers(watch.index, watch.scope.hierarchy.mount_point),
        Path(pressure.image_fs) if pressure.image_fs else None,
        lambda image_fs: is_short(image_fs, pressure),
        asks_quotas=pressure.project_quotas,
        # A shortage is judged by a pass of its own.
        limits=WalkLimits() if names[1] in wanted else WalkLimits(rest_ns=None),
    )
    return stack.enter_context(collector)


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
