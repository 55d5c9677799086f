"""Katalyst's eviction manager in the agent: what is measured for it, and what is done beside evictions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from koordebpf.agent.config.settings import AgentConfig
from koordebpf.collect.katalyst import KatalystCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.policy.katalyst.manager import GATE, KATALYST_EVICTION, KatalystDecision
from koordebpf.policy.katalyst.plugins.system_memory import used_threshold_bytes
from koordebpf.policy.katalyst.settings import KatalystSettings
from koordebpf.policy.strategies import settings_of
from koordebpf.policy.strategy import Decision
from koordebpf.state.katalyst.measured import KatalystMeasured
from koordebpf.state.view import Measured

log = logging.getLogger(__name__)


class Katalyst:
    """Measures for the manager, and carries out what its decisions say beside evictions."""

    def __init__(self, settings: KatalystSettings, collector: KatalystCollector) -> None:
        self._settings = settings
        self._collector = collector
        self._measured: KatalystMeasured | None = None
        self._due_ns = 0  # of the next round, which needs all

    def measure(self, measured: Measured) -> KatalystMeasured:
        """Return what the manager decides from beside what was measured of node and pods."""
        self._measured = self._collector.measure(measured.node, with_numa=measured.now_ns >= self._due_ns)
        return self._measured

    def threshold_bytes(self) -> int | None:
        """Return the use of memory from which no round waits for its time; None: not known, or each one waits."""
        system = self._measured.system if self._measured else None
        return used_threshold_bytes(system, self._settings.inner.systemMemory) if system else None

    def carry_out(self, decisions: Mapping[str, Decision[Any]]) -> None:
        """Note when the next round is due."""
        made = decisions.get(KATALYST_EVICTION.name)
        if isinstance(made, KatalystDecision) and made.wake_at_ns is not None:
            self._due_ns = made.wake_at_ns


def open_katalyst(config: AgentConfig, watch: NodeWatch, stack: contextlib.ExitStack) -> Katalyst | None:
    """Return it where the feature gate is on; the stack closes what it reads."""
    if not config.feature_gates.get(GATE):
        return None
    collector = stack.enter_context(KatalystCollector(watch))
    return Katalyst(settings_of(KATALYST_EVICTION, config), collector)
