"""The runners of strategies: of those whose feature gate is on, the module `run` of their folder.

What is off is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from koordebpf.agent.katalyst.open import open_katalyst
from koordebpf.agent.strategies.hooks import open_runtime_hooks
from koordebpf.decision.strategies import STRATEGIES
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import Runner

Open = Callable[[NodeContext], Runner | None]

_MONITOR_GATE: Final = "ResctrlCollector"


def openers(node: NodeContext) -> Iterator[Open]:
    """Yield what opens each runner that this node is to have; it returns None where the node lacks what it needs."""
    yield open_runtime_hooks
    for each in STRATEGIES:
        is_on = node.config.feature_gates.get(each.gate, each.is_on)
        has_left = node.folder is not None and each.record is not None and (node.folder / each.record).exists()
        if (is_on or has_left) and find_spec(each.run_module):
            yield import_module(each.run_module).open_runner
    if node.config.feature_gates.get(_MONITOR_GATE):
        from koordebpf.strategies.resctrl.monitor import open_resctrl_monitor

        yield open_resctrl_monitor
    yield open_katalyst


def open_runners(node: NodeContext) -> tuple[Runner, ...]:
    """Open those whose feature gates are on."""
    return tuple(runner for each in openers(node) if (runner := each(node)) is not None)
