"""Eviction plugins outside the process in the agent: those that are registered are called as decisions ask for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.plugins.access import PluginAccess
from koordebpf.collect.plugins.caller import PluginCaller
from koordebpf.collect.plugins.registry import PluginRegistry
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kube.plugins.pod_messages import PodMessages
from koordebpf.policy.katalyst.inner import INNER
from koordebpf.policy.katalyst.settings import KatalystSettings
from koordebpf.policy.katalyst.state import RemoteCall
from koordebpf.slo.katalyst.access import Validation
from koordebpf.state.katalyst.measured import RemoteAnswers
from koordebpf.units import NS_PER_S


class EvictionPlugins:
    """The plugins whose sockets are in a directory. Nothing here waits for one.

    Args:
        registry: takes what wakes the loop, and returns who is registered.
        pods: as messages.
        watch: of the node, for its pods.
        wake: lets the loop look at what has come.
        deadline_s: of one call of one plugin.
    """

    def __init__(
        self,
        registry: Callable[[Callable[[], None]], PluginRegistry],
        pods: PodMessages,
        watch: NodeWatch,
        wake: Callable[[], None],
        deadline_s: float,
    ) -> None:
        self._pods = pods
        self._watch = watch
        self._wake_loop = wake
        self._has_news = threading.Event()
        self._caller = PluginCaller(self._wake, deadline_s)
        self._registry = registry(self._wake)

    @property
    def problems(self) -> dict[str, str]:
        """Why sockets have no plugin that is registered, by their path."""
        return self._registry.problems

    @property
    def validations(self) -> dict[Validation, int]:
        """How often plugins were judged so since the start."""
        return self._registry.validations

    def is_due(self) -> bool:
        """Tell whether a plugin came or left, or the answers of a call are there."""
        return self._has_news.is_set()

    def take(self) -> tuple[tuple[str, ...], RemoteAnswers | None]:
        """Return the names of those that are registered, and the answers of a call that has ended, once."""
        self._has_news.clear()
        for change in self._registry.take():
            if change.socket is None:
                self._caller.deregister(change.name)
            else:
                self._caller.register(change.name, change.socket)
        return self._caller.names, self._caller.take()

    def call(self, call: RemoteCall) -> None:
        """Begin a call; its answers are taken later."""
        state, _ = self._watch.cluster()
        wanted = {*call.candidates, *(uid for ask in call.asks or () for uid in ask.candidates)}
        found = [pod for pod in state.pods if pod.uid in wanted] if state else []
        messages = self._pods.of(found, state.version if state else 0)
        if call.asks is None:
            self._caller.ask_thresholds(call.number, messages)
        else:
            self._caller.ask_tops(call.number, call.asks, messages)

    def close(self) -> None:
        """Call and register no plugin any more."""
        self._registry.close()
        self._caller.close()
        self._pods.close()

    def _wake(self) -> None:
        self._has_news.set()
        self._wake_loop()


def open_eviction_plugins(
    config: AgentConfig,
    settings: KatalystSettings,
    watch: NodeWatch,
    wake: Callable[[], None],
    stack: contextlib.ExitStack,
) -> EvictionPlugins:
    """Return those whose sockets are in the directory of the settings."""
    folder, taken = Path(settings.sockets), [each.name for each in INNER.values()]

    def registry(wake: Callable[[], None]) -> PluginRegistry:
        return PluginRegistry(folder, taken, wake, PluginAccess(settings.access))

    made = EvictionPlugins(registry, _open_messages(config), watch, wake, settings.deadline_ns / NS_PER_S)
    stack.callback(made.close)
    return made


# urllib3 is imported only where something talks to an API server.
def _open_messages(config: AgentConfig) -> PodMessages:
    if config.source != "api" or config.node_name is None:
        return PodMessages(None, "")
    from koordebpf.kube.http.transport import open_cluster

    return PodMessages(open_cluster(config.kubeconfig, config.kube_context), config.node_name)
