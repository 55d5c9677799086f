"""Runtime hooks in the agent: measures for them, and reports what of their input cannot be used.

What they want of cgroup files is written as any other strategy's is, by `OwnStrategies`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from koordebpf.agent.config.settings import AgentConfig
from koordebpf.agent.measuring import Measuring
from koordebpf.collect.hooks.collector import HookCollector
from koordebpf.errors import KoordebpfError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.hooks.strategy import RUNTIME_HOOKS, HookDecision
from koordebpf.policy.strategy import Decision
from koordebpf.report.log.problems import ProblemLog
from koordebpf.state.hooks.measured import HooksMeasured

log = logging.getLogger(__name__)


class RuntimeHooks:
    """Asks the collector, and carries out what a decision wants beside cgroup files."""

    def __init__(self, collector: HookCollector) -> None:
        self._collector = collector
        self._problems = ProblemLog()
        self._failed = ""

    def measure(self, now_ns: int) -> HooksMeasured | None:
        """Return what hooks decide from; None: no hook is due, or it could not be read."""
        try:
            measured = self._collector.measure(now_ns)
        except KoordebpfError as error:
            if str(error) != self._failed:
                log.warning("runtime hooks were not measured for: %s", error)
            self._failed = str(error)
            return None
        self._failed = ""
        return measured

    def carry_out(self, decisions: Mapping[str, Decision[Any]], now_ns: int) -> None:
        """Report what cannot be used; where a round was skipped all stays."""
        for each in RUNTIME_HOOKS:
            made = decisions.get(each.name)
            if isinstance(made, HookDecision) and made.skipped is None:
                self._problems.report({"runtime hooks": made.problems}, now_ns)
                break
        self._problems.flush(now_ns)

    def close(self) -> None:
        """Close what is read."""
        self._collector.close()


def open_runtime_hooks(config: AgentConfig, measuring: Measuring, stack: contextlib.ExitStack) -> RuntimeHooks | None:
    """Return them, closed by the stack; None: the gate of each hook is off.

    Raises:  SupportError: no sysfs.
    """
    if not any(config.feature_gates.get(each.gate) for each in RUNTIME_HOOKS):
        return None
    watch = measuring.watch
    cpu = find_controllers().get("cpu")
    hooks = RuntimeHooks(HookCollector(watch.index, measuring.known, cpu, watch.scope.node_path))
    stack.callback(hooks.close)
    return hooks
