"""Opens the hooks around evictions and the warnings before them, and loads nothing of hooks where none is set."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from koordebpf.configuration.settings import AgentConfig
from koordebpf.report.events import EventPoster
from koordebpf.report.foresight import ForesightSink
from koordebpf.report.health_check import HealthCheck
from koordebpf.report.job_pages import JobPages
from koordebpf.store.open_plans import OpenPlans
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.report.eviction_hooks import EvictionHookSink

CHECK = "eviction-hooks"


def open_eviction_hooks(config: AgentConfig, plans: OpenPlans, beside: JobPages) -> EvictionHookSink | None:
    """Return the sink that has hooks called, and show in /readyz which of them fail; None: none is set.

    A hook that cannot be called is logged and does not keep the agent from its start.
    """
    if not config.eviction_hooks.webhooks:
        return None
    from koordebpf.act.eviction_hooks.runner import open_hooks
    from koordebpf.report.eviction_hooks import EvictionHookSink

    hooks = open_hooks(config.eviction_hooks)
    beside.checks[CHECK] = lambda: HealthCheck(CHECK, hooks.problem(), time.monotonic_ns(), NS_PER_S)
    return EvictionHookSink(hooks, plans)


def open_foresight(config: AgentConfig, plans: OpenPlans, events: EventPoster | None) -> ForesightSink | None:
    """Return the sink that warns of evictions ahead; None: it never would."""
    if not config.eviction_warning.ahead_ns:
        return None
    post = events.post if events else None
    return ForesightSink(config.eviction_warning, plans.node, post, dry_run=plans.dry_run)
