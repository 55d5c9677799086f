"""What a manager does with plugins outside the process, for tests: finds them and calls them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from koordebpf.strategies.katalyst.outside import PluginCaller
from koordebpf.strategies.katalyst.registry import PluginAccess, PluginRegistry
from koordebpf.strategies.katalyst.values import PluginAnswer, TopAsk
from tests.contract.apiserver import until
from tests.support.patience import patience


class OutsidePlugins:
    """A registry and a caller, joined as the agent joins them."""

    def __init__(
        self, folder: Path, taken: Collection[str] = (), access: PluginAccess | None = None, deadline_s: float = 0.8
    ) -> None:
        self.woken = threading.Event()
        self.caller = PluginCaller(self.woken.set, patience(deadline_s))
        self.registry = PluginRegistry(folder, taken, lambda: None, access, look_s=0.02)
        self._number = 0

    def poll(self) -> tuple[str, ...]:
        """Join what the registry found; return the names of all that are registered."""
        for change in self.registry.poll():
            if change.socket is None:
                self.caller.deregister(change.name)
            else:
                self.caller.register(change.name, change.socket)
        return self.caller.names

    def has(self, *names: str) -> None:
        """Wait until these are registered and no other."""
        until(lambda: self.poll() == names, lambda: f"{names}, but {self.poll()} and {self.registry.problems}")

    def thresholds(self, pods: Mapping[str, bytes]) -> dict[str, PluginAnswer]:
        """Return what each says of its threshold."""
        self._number += 1
        self.woken.clear()
        self.caller.ask_thresholds(self._number, pods)
        return self._answers()

    def top(self, ask: TopAsk, pods: Mapping[str, bytes]) -> PluginAnswer:
        """Return which pods one of them chooses."""
        self._number += 1
        self.woken.clear()
        self.caller.ask_tops(self._number, [ask], pods)
        return self._answers()[ask.plugin]

    def _answers(self) -> dict[str, PluginAnswer]:
        assert self.woken.wait(patience(20))
        found = self.caller.poll()
        assert found is not None
        return {each.plugin: each for each in found.answers}

    def close(self) -> None:
        self.registry.close()
        self.caller.close()
