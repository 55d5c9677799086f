"""Katalyst's eviction manager in the agent: what is measured for it, and what is done for its decisions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from koordebpf.act.notify import PodNotifier
from koordebpf.agent.katalyst.sockets import PluginSockets
from koordebpf.collect.katalyst.collector import KatalystCollector
from koordebpf.policy.katalyst.manager import KATALYST_EVICTION, KatalystDecision
from koordebpf.policy.katalyst.news import ReportedRequests, request_news
from koordebpf.policy.katalyst.plugins.rss_overuse import RSS_OVERUSE
from koordebpf.policy.katalyst.plugins.system_memory import used_threshold_bytes
from koordebpf.policy.katalyst.settings import KatalystSettings, is_listed
from koordebpf.policy.requests import RequestNews
from koordebpf.policy.strategy import Decision
from koordebpf.runner.runner import Runner
from koordebpf.slo.katalyst.taints import cnr_taints_of, taints_of
from koordebpf.state.katalyst.measured import REPORT_CNR_TAINT, REPORT_TAINT, KatalystFacts, KatalystMeasured
from koordebpf.state.measured import Measured
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import NodeView
from koordebpf.store.sink import NoticeEnded, StrategyActed
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.act.taint import CnrTainter, Tainter

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
            for notice, problem in self._notifier.take_ended():
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


class Katalyst(Runner):
    """Measures for the manager, and carries out what its decisions say beside evictions.

    Args:
        settings: of the manager.
        collector: of what it decides from.
        effects: what is done for its decisions on the node and in the cluster.
        outside: plugins outside the process; None: they are not looked for.
        publish: gets what became of each round.
    """

    def __init__(
        self,
        settings: KatalystSettings,
        collector: KatalystCollector,
        effects: KatalystEffects,
        outside: PluginSockets | None = None,
        publish: Callable[[StrategyActed], None] = lambda _: None,
    ) -> None:
        super().__init__("Katalyst's eviction manager")
        self._settings = settings
        self._collector = collector
        self._effects = effects
        self._outside = outside
        self._publish = publish
        self._measured: KatalystMeasured | None = None
        self._due_ns = 0  # of the next round, which needs all
        self._unmet = ReportedRequests()

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `Runner.measure`; also while memory is short, which plugins judge."""
        found = self._collector.measure(measured.node, is_round=measured.now_ns >= self._due_ns)
        if self._outside is not None:
            names, answers = self._outside.take()
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

    def take_due(self, now_ns: int) -> bool:
        """Tell whether plugins outside have answered."""
        return self._outside is not None and self._outside.is_due()

    def threshold_bytes(self) -> int | None:
        """As `Runner.threshold_bytes`; None: not known, or each round waits."""
        system = self._measured.system if self._measured else None
        return used_threshold_bytes(system, self._settings.inner.systemMemory) if system else None

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Call plugins, notify pods, set the taints that the decision reports, and note when the next round is due."""
        news = self._carried_out(decisions, view)
        self._publish(StrategyActed(KATALYST_EVICTION.name, self.facts, news, time.monotonic_ns(), time.time()))

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
