"""Katalyst's eviction manager in the agent: what is measured for it, and what is done for its decisions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from prometheus_client.core import Metric

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.policy.strategy import Decision, RequestNews
from koordebpf.report.job_pages import HealthCheck
from koordebpf.runner.context import Measuring, NodeContext
from koordebpf.runner.runner import Runner
from koordebpf.slo.katalyst import TAINT_PREFIX, cnr_taints_of, taints_of
from koordebpf.slo.katalyst_access import Validation
from koordebpf.state.measured import Measured
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import NodeView
from koordebpf.store.sink import NoticeEnded, StrategyActed
from koordebpf.strategies.katalyst.decide import KATALYST_EVICTION, KatalystDecision
from koordebpf.strategies.katalyst.measure import KatalystCollector, KatalystMemory
from koordebpf.strategies.katalyst.plugins.memory import RSS_OVERUSE, are_short, asks_pods, used_threshold_bytes
from koordebpf.strategies.katalyst.plugins.rootfs import ROOTFS_OVERUSE, ROOTFS_PRESSURE, is_short
from koordebpf.strategies.katalyst.registry import folder_problem, sockets_below
from koordebpf.strategies.katalyst.requests import ReportedRequests, request_news
from koordebpf.strategies.katalyst.rootfs import NodeContainers, RootfsCollector, WalkLimits
from koordebpf.strategies.katalyst.rounds import RemoteCall
from koordebpf.strategies.katalyst.settings import KatalystSettings, is_listed
from koordebpf.strategies.katalyst.sink import KatalystSink, PodNotifier
from koordebpf.strategies.katalyst.values import (
    REPORT_CNR_TAINT,
    REPORT_TAINT,
    KatalystFacts,
    KatalystMeasured,
    RemoteAnswers,
)
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.strategies.katalyst.outside import EvictionPlugins
    from koordebpf.strategies.katalyst.taints import CnrTainter, Tainter

    Tainters = tuple[Tainter, CnrTainter]  # of the Node and of the CustomNodeResource

_AHEAD_NS = NS_PER_S // 10  # Why: a measurement ends later than it begins, and may be that of a round by then


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
            for notice, problem in self._notifier.drain_ended():
                self._report(NoticeEnded(notice, problem, time.monotonic_ns(), time.time()))
        if self._tainters is not None:
            of_node = [each.condition for each in made.reported if each.condition.kind == "node"]
            of_cnr = [each.condition for each in made.reported if each.condition.kind == "cnr"]
            node, cnr = self._tainters
            node.wish(frozenset(taint for each in of_node for taint in taints_of(each.name, each.effects)))
            cnr.wish(frozenset(taint for each in of_cnr for taint in cnr_taints_of(each.name, each.effects)))

    @property
    def problems(self) -> dict[str, str | None]:
        """Why taints could not be set last, by what sets them; None: they are."""
        if self._tainters is None:
            return {}
        node, cnr = self._tainters
        return {REPORT_TAINT: node.problem, REPORT_CNR_TAINT: cnr.problem}


# Plugins outside, called from the first socket on: gRPC takes 3 MiB, and most nodes have no plugin.


class PluginSockets:
    """The directory where plugins put their sockets.

    Args:
        folder: that directory; it is looked for each time.
        opening: returns what calls plugins, once there is a socket.
    """

    def __init__(self, folder: Path, opening: Callable[[], EvictionPlugins]) -> None:
        self._folder = folder
        self._opening = opening
        self._plugins: EvictionPlugins | None = None
        self._problem: str | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Why sockets have no plugin that is registered, by their path; of the directory where it is none."""
        if self._plugins:
            return self._plugins.problems
        return {str(self._folder): self._problem} if self._problem else {}

    @property
    def validations(self) -> dict[Validation, int]:
        """How often plugins were judged so since the start."""
        return self._plugins.validations if self._plugins else {}

    def is_due(self) -> bool:
        """Tell whether a plugin came or left, or the answers of a call are there."""
        return self._plugins is not None and self._plugins.is_due()

    def poll(self) -> tuple[tuple[str, ...], RemoteAnswers | None]:
        """Return the names of those that are registered, and the answers of a call that has ended, once."""
        if self._plugins is None:
            self._problem = folder_problem(self._folder)
            if not sockets_below(self._folder):
                return (), None
            self._plugins = self._opening()
        return self._plugins.poll()

    def call(self, call: RemoteCall) -> None:
        """Begin a call; its answers are taken later."""
        if self._plugins is not None:
            self._plugins.call(call)


def open_plugin_sockets(
    config: AgentConfig,
    settings: KatalystSettings,
    watch: NodeWatch,
    wake: Callable[[], None],
    stack: contextlib.ExitStack,
) -> PluginSockets | None:
    """Return the directory of the settings; None where they have none. The stack ends what calls plugins."""
    if not settings.sockets:
        return None

    def opening() -> EvictionPlugins:
        from koordebpf.strategies.katalyst.outside import open_eviction_plugins

        return open_eviction_plugins(config, settings, watch, wake, stack)

    return PluginSockets(Path(settings.sockets), opening)


# The runner.


class Katalyst(Runner):
    """Measures for the manager, and carries out what its decisions say beside evictions.

    Args:
        settings: of the manager.
        collector: of what it decides from.
        effects: what is done for its decisions on the node and in the cluster.
        sink: counts and shows what became of each round.
        outside: plugins outside the process; None: they are not looked for.
        publish: gets the requests of a round that are not carried out.
    """

    def __init__(
        self,
        settings: KatalystSettings,
        collector: KatalystCollector,
        effects: KatalystEffects,
        sink: KatalystSink,
        outside: PluginSockets | None = None,
        publish: Callable[[StrategyActed], None] = lambda _: None,
    ) -> None:
        super().__init__("Katalyst's eviction manager")
        self._settings = settings
        self._collector = collector
        self._effects = effects
        self.sink: KatalystSink = sink
        self._outside = outside
        self._publish = publish
        self._measured: KatalystMeasured | None = None
        self._due_ns = 0  # of the next round, which needs all
        self._unmet = ReportedRequests()

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `Runner.measure`; also while memory is short, which plugins judge."""
        found = self._collector.measure(measured.node, is_round=measured.now_ns >= self._due_ns)
        if self._outside is not None:
            names, answers = self._outside.poll()
            found = replace(found, remote_plugins=names, remote=answers)
        self._measured = found
        return measured.with_part(KATALYST_EVICTION.part, found)

    def shmem_uids(self, facts: Sequence[PodFacts], now_ns: int) -> Iterable[str]:
        """As `Runner.shmem_uids`, for a plugin."""
        settings = self._settings
        is_on = settings.inner.rssOveruse.is_on and is_listed(RSS_OVERUSE.name, settings.plugins)
        if not is_on or now_ns < self._due_ns - _AHEAD_NS:
            return []
        return [each.uid for each in facts if each.terms.native_memory_request_bytes is not None]

    def poll_due(self, now_ns: int) -> bool:
        """Tell whether plugins outside have answered."""
        return self._outside is not None and self._outside.is_due()

    def threshold_bytes(self) -> int | None:
        """As `Runner.threshold_bytes`; None: not known, or each round waits."""
        system = self._measured.system if self._measured else None
        return used_threshold_bytes(system, self._settings.inner.systemMemory) if system else None

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Call plugins, notify pods, set the taints that the decision reports, and note when the next round is due."""
        news = self._carried_out(decisions, view)
        now_ns = time.monotonic_ns()
        if news:
            self._publish(StrategyActed(KATALYST_EVICTION.name, news, now_ns, time.time()))
        self.sink.acted(self.facts, now_ns)

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self.sink.families()

    def checks(self) -> Sequence[HealthCheck]:
        """As `Runner.checks`."""
        return self.sink.checks()

    # The requests that are not carried out, each once.
    def _carried_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> tuple[RequestNews, ...]:
        made = decisions.get(KATALYST_EVICTION.name)
        if not isinstance(made, KatalystDecision):
            return ()
        if made.wake_at_ns is not None:
            self._due_ns = made.wake_at_ns
        if self._outside is not None and made.call is not None:
            self._outside.call(made.call)
        self._effects.carry_out(made)
        if made.requests is None:
            return ()
        plugins = {each.plugin for each in made.answers}
        news, self._unmet = request_news(self._unmet, made.requests, plugins, view.pods, view.now_ns)
        return news

    @property
    def facts(self) -> KatalystFacts:
        """What became of conditions, and of plugins that ask to be registered."""
        problems, outside = self._effects.problems, self._outside
        if outside is None:
            return KatalystFacts(problems)
        return KatalystFacts(problems, outside.validations, outside.problems)


def open_runner(node: NodeContext) -> Katalyst:
    """Return it. Of a frame of one moment plugins outside are no part."""
    config, stack = node.config, node.stack
    settings = node.settings_of(KATALYST_EVICTION)
    collector = open_collector(settings, node.measuring, stack)
    notifier, tainters = _open_notifier(config, settings, stack), open_tainters(config, settings, stack)
    outside = None
    if not node.is_one_frame:
        outside = open_plugin_sockets(config, settings, node.measuring.watch, node.loop.wake, stack)
    sink = KatalystSink(settings, dry_run=node.metrics.decision.is_dry_run)
    return Katalyst(settings, collector, KatalystEffects(notifier, tainters, node.publish), sink, outside, node.publish)


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
    from koordebpf.kube.clients.cnr_taints import CnrTaints
    from koordebpf.kube.http.transport import open_cluster
    from koordebpf.strategies.katalyst.taints import CnrTainter, KatalystTaints, Tainter

    tainter = Tainter(
        KatalystTaints(open_cluster(config.kubeconfig, config.kube_context), config.node_name, TAINT_PREFIX)
    )
    stack.callback(tainter.close)
    cnr_tainter = CnrTainter(
        CnrTaints(open_cluster(config.kubeconfig, config.kube_context), config.node_name, TAINT_PREFIX)
    )
    stack.callback(cnr_tainter.close)
    return tainter, cnr_tainter
