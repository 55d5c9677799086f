"""The runners of strategies: one module each, and one line in `RUNNERS`."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.agent.katalyst.open import open_katalyst
from koordebpf.agent.strategies.hooks import open_runtime_hooks
from koordebpf.agent.strategies.qos.block_io import open_block_io
from koordebpf.agent.strategies.qos.cpu_burst import open_cpu_burst
from koordebpf.agent.strategies.qos.memory_qos import open_memory_qos
from koordebpf.agent.strategies.qos.page_cache import open_page_cache
from koordebpf.agent.strategies.qos.proactive_reclaim import open_proactive_reclaim
from koordebpf.agent.strategies.qos.rdt_resctrl import open_rdt_resctrl
from koordebpf.agent.strategies.qos.resctrl_monitor import open_resctrl_monitor
from koordebpf.agent.strategies.qos.system_config import open_system_config
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import Runner

# Each returns None where its feature gate is off, and loads nothing then.
RUNNERS: tuple[Callable[[NodeContext], Runner | None], ...] = (
    open_runtime_hooks,
    open_block_io,
    open_proactive_reclaim,
    open_system_config,
    open_rdt_resctrl,
    open_resctrl_monitor,
    open_cpu_burst,
    open_memory_qos,
    open_page_cache,
    open_katalyst,
)


def open_runners(node: NodeContext) -> tuple[Runner, ...]:
    """Open those whose feature gates are on."""
    return tuple(runner for each in RUNNERS if (runner := each(node)) is not None)
