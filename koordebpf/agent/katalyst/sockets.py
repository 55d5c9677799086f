"""Plugins outside the process, called from the first socket on: gRPC takes 3 MiB, and most nodes have no plugin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.plugins.sockets import sockets_below
from koordebpf.configuration.settings import AgentConfig
from koordebpf.policy.katalyst.settings import KatalystSettings
from koordebpf.policy.katalyst.state import RemoteCall
from koordebpf.slo.katalyst.access import Validation
from koordebpf.state.katalyst.measured import RemoteAnswers

if TYPE_CHECKING:
    from koordebpf.agent.katalyst.plugins import EvictionPlugins


class PluginSockets:
    """The directory where plugins put their sockets.

    Args:
        folder: that directory; it is looked for each time.
        opening: returns what calls plugins, once there is a socket.
    """

    def __init__(self, folder: Path, opening: Callable[[], EvictionPlugins]) -> None:
        self._folder = folder
        self._opening = opening
        self._plugins: EvictionPlugins | None = None

    @property
    def problems(self) -> dict[str, str]:
        """Why sockets have no plugin that is registered, by their path."""
        return self._plugins.problems if self._plugins else {}

    @property
    def validations(self) -> dict[Validation, int]:
        """How often plugins were judged so since the start."""
        return self._plugins.validations if self._plugins else {}

    def is_due(self) -> bool:
        """Tell whether a plugin came or left, or the answers of a call are there."""
        return self._plugins is not None and self._plugins.is_due()

    def take(self) -> tuple[tuple[str, ...], RemoteAnswers | None]:
        """Return the names of those that are registered, and the answers of a call that has ended, once."""
        if self._plugins is None:
            if not sockets_below(self._folder):
                return (), None
            self._plugins = self._opening()
        return self._plugins.take()

    def call(self, call: RemoteCall) -> None:
        """Begin a call; its answers are taken later."""
        if self._plugins is not None:
            self._plugins.call(call)


def open_plugin_sockets(
    config: AgentConfig,
    settings: KatalystSettings,
    watch: NodeWatch,
    wake: Callable[[], None],
    stack: contextlib.ExitStack,
) -> PluginSockets | None:
    """Return the directory of the settings; None where they have none. The stack ends what calls plugins."""
    if not settings.sockets:
        return None

    def opening() -> EvictionPlugins:
        from koordebpf.agent.katalyst.plugins import open_eviction_plugins

        return open_eviction_plugins(config, settings, watch, wake, stack)

    return PluginSockets(Path(settings.sockets), opening)
