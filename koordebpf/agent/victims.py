"""Which pods an agent may ever evict: of their namespaces alone PodDisruptionBudgets are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import may_choose_any
from koordebpf.policy.evict.candidates.protection import ALWAYS_PROTECTED_NAMESPACES
from koordebpf.slo.pods.eviction import may_be_evicted
from koordebpf.state.pods.exemptions import may_replace_label

if TYPE_CHECKING:
    from koordebpf.kube.cache.objects import Pod


def may_be_victim(config: AgentConfig) -> Callable[[Pod], bool]:
    """Return a function that tells whether a pod may ever be evicted.

    Features of Koordinator choose pods by their labels and priority; plugins may ask for any pod.
    """
    exemptions, is_any = config.eviction.exemptions, may_choose_any(config.feature_gates)

    def may_be(pod: Pod) -> bool:
        if is_any and pod.metadata.namespace not in ALWAYS_PROTECTED_NAMESPACES:
            return True
        return may_be_evicted(pod.metadata.labels) or may_replace_label(exemptions, pod.spec.priority)

    return may_be
