"""Opens what answers container runtimes where it is configured, and loads nothing of it where it is not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from koordebpf.decision.strategies import HOOK_GATES

if TYPE_CHECKING:
    from koordebpf.collect.collector import Collector
    from koordebpf.configuration.settings import AgentConfig
    from koordebpf.runner.context import NodeContext

log = logging.getLogger("koordebpf")


def open_nri_plugin(node: NodeContext) -> Collector | None:
    """Return the plugin of the container runtime's NRI. None: it is not enabled, or has nothing to adjust."""
    if not (node.config.nri.enabled and _has_hooks("nri.enabled", node.config)):
        return None
    from koordebpf.jobs.nri.plugin import open_nri

    return open_nri(node)


def open_runtime_proxy_hooks(node: NodeContext) -> Collector | None:
    """Return what koord-runtime-proxy asks. None: it is not enabled, or has nothing to adjust."""
    if not (node.config.runtime_proxy.enabled and node.acts):
        return None
    if not _has_hooks("runtimeProxy.enabled", node.config):
        return None
    from koordebpf.jobs.nri.proxy import open_runtime_proxy

    return open_runtime_proxy(node)


def _has_hooks(setting: str, config: AgentConfig) -> bool:
    if any(config.feature_gates.get(gate) for gate in HOOK_GATES):
        return True
    log.warning("%s: no runtime hook's feature gate is on, so that no container would be adjusted", setting)
    return False
