"""Opens Katalyst's eviction manager where its feature gate is on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from koordebpf.act.notify import PodNotifier
from koordebpf.agent.katalyst.manager import Katalyst, KatalystEffects
from koordebpf.agent.katalyst.sockets import open_plugin_sockets
from koordebpf.collect.katalyst.collector import KatalystCollector
from koordebpf.collect.katalyst.memory import KatalystMemory
from koordebpf.collect.katalyst.rootfs import NodeContainers, RootfsCollector, WalkLimits
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import settings_of
from koordebpf.policy.katalyst.manager import GATE, KATALYST_EVICTION
from koordebpf.policy.katalyst.plugins.numa_memory import are_short
from koordebpf.policy.katalyst.plugins.rootfs_overuse import ROOTFS_OVERUSE
from koordebpf.policy.katalyst.plugins.rootfs_pressure import ROOTFS_PRESSURE, is_short
from koordebpf.policy.katalyst.plugins.system_memory import asks_pods
from koordebpf.policy.katalyst.settings import KatalystSettings, is_listed
from koordebpf.runner.measuring import Measuring
from koordebpf.slo.katalyst.taints import TAINT_PREFIX

if TYPE_CHECKING:
    from koordebpf.agent.katalyst.manager import Tainters
    from koordebpf.report.http.routes import Health
    from koordebpf.report.katalyst.sink import KatalystSink
    from koordebpf.report.prom.metrics import AgentMetrics
    from koordebpf.runner.context import NodeContext
    from koordebpf.store.open_plans import OpenPlans


def needs_cnr(config: AgentConfig) -> bool:
    """Tell whether this node's CustomNodeResource is to be read: a watch, and a right, that no other feature needs."""
    return config.feature_gates.get(GATE, False)


def open_katalyst(node: NodeContext) -> Katalyst | None:
    """Return it; None: its feature gate is off. Of a frame of one moment plugins outside are no part."""
    config, stack, publish = node.config, node.stack, node.publish
    if not config.feature_gates.get(GATE):
        return None
    settings = settings_of(KATALYST_EVICTION, config)
    collector = open_collector(settings, node.measuring, stack)
    effects = KatalystEffects(_open_notifier(config, settings, stack), open_tainters(config, settings, stack), publish)
    outside = None
    if not node.is_one_frame:
        outside = open_plugin_sockets(config, settings, node.measuring.watch, node.loop.wake, stack)
    return Katalyst(settings, collector, effects, outside, publish)


def open_collector(settings: KatalystSettings, measuring: Measuring, stack: contextlib.ExitStack) -> KatalystCollector:
    """Return what measures for the manager; the stack closes it."""
    inner = settings.inner
    memory = KatalystMemory(
        measuring.watch,
        measuring.collector.pressure,
        lambda numa: are_short(numa, inner.numaMemory),
        lambda percent: asks_pods(percent, inner.systemMemory),
        counts_steals=inner.systemMemory.kswapd_pages is not None,
    )
    stack.callback(memory.close)
    rootfs = open_rootfs(settings, measuring.watch, stack)
    return KatalystCollector(memory, measuring.known, rootfs, with_links=inner.network.is_on)


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


def open_tainters(config: AgentConfig, settings: KatalystSettings, stack: contextlib.ExitStack) -> Tainters | None:
    """Return what taints Node and CustomNodeResource; None in a dry run, and where the agent asks no API server.

    The stack ends both, which takes their taints away. urllib3 is imported only where they are.
    """
    if not settings.taints or not config.enforce or config.source == "file" or config.node_name is None:
        return None
    from koordebpf.act.taint import CnrTainter, Tainter
    from koordebpf.kube.clients.cnr_taints import CnrTaints
    from koordebpf.kube.clients.katalyst_taints import KatalystTaints
    from koordebpf.kube.http.transport import open_cluster

    tainter = Tainter(
        KatalystTaints(open_cluster(config.kubeconfig, config.kube_context), config.node_name, TAINT_PREFIX)
    )
    stack.callback(tainter.close)
    cnr_tainter = CnrTainter(
        CnrTaints(open_cluster(config.kubeconfig, config.kube_context), config.node_name, TAINT_PREFIX)
    )
    stack.callback(cnr_tainter.close)
    return tainter, cnr_tainter


def open_katalyst_sink(
    config: AgentConfig, metrics: AgentMetrics, health: Health, plans: OpenPlans
) -> KatalystSink | None:
    """Return what watches the manager's health and counts, where the feature gate is on."""
    if not config.feature_gates.get(GATE):
        return None
    from koordebpf.report.katalyst.sink import KatalystSink

    return KatalystSink(settings_of(KATALYST_EVICTION, config), metrics, health, plans)
