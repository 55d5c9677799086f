"""Katalyst's plugins outside the process: nothing is loaded for them before the first socket is there."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from koordebpf.agent.katalyst.sockets import PluginSockets

if TYPE_CHECKING:
    from koordebpf.agent.katalyst.plugins import EvictionPlugins
    from koordebpf.policy.katalyst.state import RemoteCall

CALL = cast("RemoteCall", "a call")


class Plugins:
    """What calls plugins, with one that is registered."""

    def __init__(self) -> None:
        self.problems = {"p.sock": "no answer"}
        self.calls: list[Any] = []

    def is_due(self) -> bool:
        return True

    def take(self) -> tuple[tuple[str, ...], None]:
        return ("p",), None

    def call(self, call: Any) -> None:
        self.calls.append(call)


def test_they_are_called_from_the_first_socket_on(tmp_path: Path) -> None:
    opened: list[Plugins] = []

    def opening() -> EvictionPlugins:
        opened.append(Plugins())
        return cast("EvictionPlugins", opened[-1])

    sockets = PluginSockets(tmp_path / "plugins", opening)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "no.sock").write_text("")
    assert (sockets.take(), sockets.is_due(), sockets.problems, opened) == (((), None), False, {}, [])
    sockets.call(CALL)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "plugins" / "p.sock"))
        assert [sockets.take() for _ in range(2)] == [(("p",), None)] * 2
    assert (len(opened), sockets.is_due(), sockets.problems) == (1, True, {"p.sock": "no answer"})
    sockets.call(CALL)
    assert opened[0].calls == [CALL]
