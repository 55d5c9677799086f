"""Opens what evicts: the API server, the container runtime or the cgroup itself, as configured.

urllib3, and with a kubeconfig the kubernetes package, is imported only where something talks to an API server.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, assert_never

from koordebpf.act.evict.actuator import Actuator, LastResort, OutcomeQueue
from koordebpf.act.evict.api import ApiExecutor, ApiLimits, DeletionExecutor
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.lifecycle.kill_support import known_containers
from koordebpf.configuration.settings import AgentConfig, asks_the_server, named_executors
from koordebpf.policy.ladder_settings import Rung
from koordebpf.state.view import KillerName

if TYPE_CHECKING:
    from koordebpf.attribution.index import CgroupIndex
    from koordebpf.kube.clients.evictions import KubeActions

log = logging.getLogger("koordebpf")
_STOPS = 10  # Why: Katalyst's workers; each may wait for a pod's grace period
_MIN_TIMEOUT_S = 0.5  # of an eviction, however short --kill-after-s is


def open_killers(
    config: AgentConfig,
    executor: Actuator,
    by_cgroup: Callable[[], CgroupExecutor],
    outcomes: OutcomeQueue,
    actions: KubeActions | None,
    index: CgroupIndex,
    stack: contextlib.ExitStack,
) -> Mapping[KillerName, Actuator]:
    """Return each executor that is named, and the agent's own, by name; the stack closes the others.

    Raises:  ConfigError: no container runtime listens. SupportError: the extra for it is not installed.
    """
    found: dict[KillerName, Actuator] = {config.executor: executor}
    for place, value, name in named_executors(config):
        if name != "api" and config.enforce:
            log.info("%s: %s passes over PodDisruptionBudgets", place, value)
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


def open_actions(config: AgentConfig, stack: contextlib.ExitStack) -> KubeActions | None:
    """Return what evicts by the API server and posts Events there; None: it is not asked."""
    # The others need no API server; Events of theirs are posted where one is read anyway.
    needs_none = config.executor != "api" and not asks_the_server(config)
    if needs_none and (config.executor != "cri" or config.source != "api"):
        return None
    from koordebpf.kube.clients.evictions import KubeActions
    from koordebpf.kube.http.transport import open_cluster

    actions = KubeActions(open_cluster(config.kubeconfig, config.kube_context), config.node_name or "")
    stack.callback(actions.close)
    return actions


def open_executor(
    config: AgentConfig,
    by_cgroup: Callable[[], CgroupExecutor],
    outcomes: OutcomeQueue,
    actions: KubeActions | None,
    index: CgroupIndex,
) -> Actuator:
    """Return what evicts. `by_cgroup` makes one that kills by the cgroup itself."""
    if config.executor == "cri":
        from koordebpf.act.evict.cri import CriExecutor
        from koordebpf.kube.clients.cri import Cri

        known = functools.partial(known_containers, index)
        return CriExecutor(Cri(config.cri_socket), outcomes, known=known, enforce=config.enforce)
    if config.executor == "cgroup" or actions is None:
        return by_cgroup()
    limits = ApiLimits()
    if config.kill_after_s is None:
        return LastResort(ApiExecutor(actions, outcomes, limits=limits, enforce=config.enforce), None)
    # An API server that hangs must have failed by the time at which the cgroup is to be killed.
    limits = ApiLimits(timeout_s=max(min(limits.timeout_s, config.kill_after_s), _MIN_TIMEOUT_S), unknown_tries=1)
    return LastResort(
        ApiExecutor(actions, outcomes, limits=limits, enforce=config.enforce),
        by_cgroup(),
        kill_after_s=config.kill_after_s,
    )


def open_kill(
    config: AgentConfig, executor: Actuator, by_cgroup: Callable[[], CgroupExecutor], stack: contextlib.ExitStack
) -> Actuator:
    """Return what carries out the ladder's last rung."""
    if config.executor == "cgroup" or Rung.KILL not in config.eviction.ladder.rungs:
        return executor
    kill = by_cgroup()
    stack.callback(kill.close)
    return kill


def open_overdue_kill(config: AgentConfig, executor: Actuator) -> Actuator | None:
    """Return what kills pods that are overdue; None where executor.killAfter is not configured."""
    return executor.kill if isinstance(executor, LastResort) and config.kill_after_s is not None else None
