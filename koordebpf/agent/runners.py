"""The runners of strategies: of those whose feature gate is on, the module `run` of their folder.

What is off is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from koordebpf.decision.strategies import STRATEGIES
from koordebpf.policy.strategy import Strategy
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import Runner

Open = Callable[[NodeContext], Runner | None]

_MONITOR_GATE: Final = "ResctrlCollector"


def openers(node: NodeContext) -> Iterator[Open]:
    """Yield what opens each runner that this node is to have; it returns None where the node lacks what it needs."""
    modules = dict.fromkeys(each.run_module for each in STRATEGIES if _has_runner(each, node))
    for module in modules:
        if find_spec(module):
            yield import_module(module).open_runner
    if node.config.feature_gates.get(_MONITOR_GATE):
        from koordebpf.strategies.resctrl.monitor import open_resctrl_monitor

        yield open_resctrl_monitor


# What an agent before this one has left is put back with the gate off, too.
def _has_runner(strategy: Strategy[Any, Any, Any], node: NodeContext) -> bool:
    has_left = node.folder is not None and strategy.record is not None and (node.folder / strategy.record).exists()
    return has_left or node.config.feature_gates.get(strategy.gate, False)


def open_runners(node: NodeContext) -> tuple[Runner, ...]:
    """Open those whose feature gates are on."""
    return tuple(runner for each in openers(node) if (runner := each(node)) is not None)
