"""Opens what answers container runtimes where it is configured, and loads nothing of it where it is not."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from koordebpf.policy.strategies import HOOK_GATES

if TYPE_CHECKING:
    from koordebpf.agent.colocation.jobs import ColocationParts
    from koordebpf.agent.config.settings import AgentConfig
    from koordebpf.collect.collector import Collector

log = logging.getLogger("koordebpf")


def open_nri_plugin(parts: ColocationParts, stack: contextlib.ExitStack) -> Collector | None:
    """Return the plugin of the container runtime's NRI. None: it is not enabled, or has nothing to adjust."""
    if not (parts.config.nri.enabled and _has_hooks("nri.enabled", parts.config)):
        return None
    from koordebpf.agent.colocation.nri import open_nri

    return open_nri(parts, stack)


def open_runtime_proxy_hooks(parts: ColocationParts, stack: contextlib.ExitStack) -> Collector | None:
    """Return what koord-runtime-proxy asks. None: it is not enabled, or has nothing to adjust."""
    if not (parts.config.runtime_proxy.enabled and parts.acts):
        return None
    if not _has_hooks("runtimeProxy.enabled", parts.config):
        return None
    from koordebpf.agent.colocation.runtime_proxy import open_runtime_proxy

    return open_runtime_proxy(parts, stack)


def _has_hooks(setting: str, config: AgentConfig) -> bool:
    if any(config.feature_gates.get(gate) for gate in HOOK_GATES):
        return True
    log.warning("%s: no runtime hook's feature gate is on, so that no container would be adjusted", setting)
    return False
