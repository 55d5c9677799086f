"""Opens the killers that the configuration names for pods of Katalyst's plugins, beside the agent's own executor."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, assert_never

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.act.evict.api import ApiExecutor
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.lifecycle.kill_support import known_containers
from koordebpf.configuration.killers import named_killers
from koordebpf.configuration.settings import AgentConfig
from koordebpf.policy.katalyst.asked.killers import EXECUTORS
from koordebpf.state.view import KillerName

if TYPE_CHECKING:
    from koordebpf.attribution.index import CgroupIndex
    from koordebpf.kube.clients.evictions import KubeActions

log = logging.getLogger("koordebpf")

_STOPS = 10  # Why: Katalyst's workers; each may wait for a pod's grace period


def open_killers(
    config: AgentConfig,
    executor: Actuator,
    by_cgroup: Callable[[], CgroupExecutor],
    outcomes: OutcomeQueue,
    actions: KubeActions | None,
    index: CgroupIndex,
    stack: contextlib.ExitStack,
) -> Mapping[KillerName, Actuator]:
    """Return each killer that is named, by its executor's name, and the agent's own executor; the stack closes them.

    Raises:  ConfigError: no container runtime listens. SupportError: the extra for it is not installed.
    """
    found: dict[KillerName, Actuator] = {config.executor: executor}
    for place, each in named_killers(config).items():
        name = EXECUTORS[each]
        if name != "api" and config.enforce:
            log.info("%s: %s passes over PodDisruptionBudgets", place, each)
        if name not in found:
            found[name] = _opened(name, config, by_cgroup, outcomes, actions, index)
            stack.callback(found[name].close)
    return found


def _opened(
    name: KillerName,
    config: AgentConfig,
    by_cgroup: Callable[[], CgroupExecutor],
    outcomes: OutcomeQueue,
    actions: KubeActions | None,
    index: CgroupIndex,
) -> Actuator:
    match name:
        case "api":
            assert actions is not None  # open_actions has them for it
            return ApiExecutor(actions, outcomes, enforce=config.enforce)
        case "delete":
            from koordebpf.act.evict.deletion import DeletionExecutor
            from koordebpf.kube.clients.deletions import PodDeletions
            from koordebpf.kube.http.transport import open_cluster

            return DeletionExecutor(
                PodDeletions(open_cluster(config.kubeconfig, config.kube_context)), outcomes, enforce=config.enforce
            )
        case "cri":
            from koordebpf.act.evict.cri import CriExecutor, CriLimits
            from koordebpf.kube.clients.cri import Cri

            known, limits = functools.partial(known_containers, index), CriLimits(workers=_STOPS)
            return CriExecutor(Cri(config.cri_socket), outcomes, known=known, limits=limits, enforce=config.enforce)
        case "cgroup":
            return by_cgroup()
    assert_never(name)
