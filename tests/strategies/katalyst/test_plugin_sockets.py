"""Katalyst's plugins outside the process: nothing is loaded for them before the first socket is there."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from koordebpf.slo.katalyst_access import Validation
from koordebpf.strategies.katalyst.run import Katalyst, PluginSockets
from koordebpf.strategies.katalyst.values import KatalystFacts

if TYPE_CHECKING:
    from koordebpf.strategies.katalyst.outside import EvictionPlugins
    from koordebpf.strategies.katalyst.rounds import RemoteCall

CALL = cast("RemoteCall", "a call")
JUDGED = Validation("p", False, "no_permission", "someone")


class Plugins:
    """What calls plugins, with one that is registered."""

    def __init__(self) -> None:
        self.problems = {"p.sock": "no answer"}
        self.validations = {JUDGED: 2}
        self.calls: list[Any] = []

    def is_due(self) -> bool:
        return True

    def poll(self) -> tuple[tuple[str, ...], None]:
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
    assert (sockets.poll(), sockets.is_due(), sockets.problems, opened) == (((), None), False, {}, [])
    sockets.call(CALL)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "plugins" / "p.sock"))
        assert [sockets.poll() for _ in range(2)] == [(("p",), None)] * 2
    assert (len(opened), sockets.is_due(), sockets.problems) == (1, True, {"p.sock": "no answer"})
    sockets.call(CALL)
    assert opened[0].calls == [CALL]


def test_how_plugins_were_judged_is_reported(tmp_path: Path) -> None:
    class Effects:
        problems: ClassVar[dict[str, None]] = {"taint": None}

    sockets = PluginSockets(tmp_path, lambda: cast("EvictionPlugins", Plugins()))
    manager, none = (
        Katalyst(cast("Any", None), cast("Any", None), cast("Any", Effects()), cast("Any", None), each)
        for each in (sockets, None)
    )
    assert manager.facts == none.facts == KatalystFacts({"taint": None})
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "p.sock"))
        sockets.poll()
    assert manager.facts == KatalystFacts({"taint": None}, {JUDGED: 2}, {"p.sock": "no answer"})
