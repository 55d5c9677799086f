"""Katalyst's heartbeats: the manager's rounds, what reports its conditions, and each plugin.

Source: katalyst-core pkg/util/general/healthz.go, heartbeat mode; the names of pkg/agent/evictionmanager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from koordebpf.policy.katalyst.inner import INSIDE, problem_text
from koordebpf.report.health_check import HealthCheck
from koordebpf.state.katalyst.measured import NOTIFY, KatalystFacts, PluginAnswer
from koordebpf.units import NS_PER_S

SYNC = "eviction_manager_sync"

_REPORT_NS = 15 * NS_PER_S  # Why: Katalyst's
_PLUGIN_NS = 60 * NS_PER_S  # Why: Katalyst's
_ROUNDS = 3  # that may be missed. Why: Katalyst's
_MOST_SOCKETS = 20  # Why: a page that people read


class PluginState(msgspec.Struct, frozen=True):
    """What one plugin answered last. `at_ns` None: nothing yet."""

    problem: str | None = None
    at_ns: int | None = None


class CheckedParts(msgspec.Struct, frozen=True):
    """All checks, by what they are of: the manager's own parts, plugins by name, sockets without a plugin."""

    manager: tuple[HealthCheck, ...]
    plugins: Mapping[str, HealthCheck] = {}
    sockets: tuple[HealthCheck, ...] = ()

    @property
    def every(self) -> tuple[HealthCheck, ...]:
        """All of them."""
        return (*self.manager, *self.plugins.values(), *self.sockets)


class KatalystChecks:
    """The checks as of the last round. The loop writes, the server's threads read: `now` is replaced as one object.

    Args:
        sync_ns: from one round to the next.
    """

    def __init__(self, sync_ns: int) -> None:
        self._sync_ns = sync_ns
        self._synced_ns: int | None = None
        self._facts: tuple[KatalystFacts, int] | None = None
        self._of_notices: tuple[str | None, ...] = ()  # the last one's problem; none: there was no notice
        self._plugins: dict[str, PluginState] = {}
        self.now = self._checked()

    def round_ended(self, answers: Iterable[PluginAnswer], registered: Collection[str], now_ns: int) -> None:
        """Take the answers of plugins whose round ended; one that is not registered any more is no check."""
        answered = {each.plugin: PluginState(each.problem, now_ns) for each in answers}
        if answered:
            self._synced_ns = now_ns
        if answered or self._plugins.keys() - INSIDE != set(registered):
            awaited = dict.fromkeys(registered, PluginState())
            kept = {name: state for name, state in self._plugins.items() if name in INSIDE or name in awaited}
            self._plugins = {**awaited, **kept, **answered}
            self.now = self._checked()

    def acted(self, facts: KatalystFacts, now_ns: int) -> None:
        """Take what became of conditions and notices."""
        self._facts = facts, now_ns
        self.now = self._checked()

    def notified(self, problem: str | None) -> None:
        """Take what became of the last notice."""
        self._of_notices = (problem,)
        self.now = self._checked()

    def _checked(self) -> CheckedParts:
        rounds_ns = _ROUNDS * self._sync_ns
        manager = [HealthCheck(SYNC, None, self._synced_ns, rounds_ns)]
        sockets: list[HealthCheck] = []
        if self._facts is not None:
            facts, at_ns = self._facts
            reporters = [*sorted(facts.reporters.items()), *((NOTIFY, why) for why in self._of_notices)]
            manager += [HealthCheck(name, why, at_ns, _REPORT_NS) for name, why in reporters]
            refused = sorted(facts.sockets.items())[:_MOST_SOCKETS]
            sockets = [HealthCheck(f"socket {path}", f"no plugin: {why}", at_ns, _REPORT_NS) for path, why in refused]
        plugins = {}
        for name, state in sorted(self._plugins.items()):
            problem = problem_text(name, state.problem)
            plugins[name] = HealthCheck(f"plugin {name}", problem, state.at_ns, max(_PLUGIN_NS, rounds_ns))
        return CheckedParts(tuple(manager), plugins, tuple(sockets))
