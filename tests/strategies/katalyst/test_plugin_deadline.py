"""A call of plugins ends with its deadline, also where a connection forgets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from koordebpf.strategies.katalyst import outside as module
from koordebpf.strategies.katalyst.outside import PluginCaller
from tests.support.patience import patience


class Hanging:
    """A connection that answers nothing before it is closed."""

    def __init__(self, socket: Path) -> None:
        self._is_closed = threading.Event()

    def call(self, method: str, messages: Sequence[bytes], timeout_s: float) -> tuple[Exception]:
        self._is_closed.wait()
        return (ConnectionError("closed"),)

    def close(self) -> None:
        self._is_closed.set()


class Called:
    def __init__(self, deadline_s: float) -> None:
        self.woken = threading.Event()
        self.caller = PluginCaller(self.woken.set, deadline_s)
        self.caller.register("hangs", Path("/nowhere"))
        self.caller.ask_thresholds(1, {})


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Called]]:
    monkeypatch.setattr(module, "GrpcSocket", Hanging)
    made = [Called(deadline_s) for deadline_s in (0.9, 0.05)]
    yield made
    for each in made:
        each.caller.close()


def test_a_call_ends_at_its_own_deadline_however_short_while_a_plugin_hangs(called: list[Called]) -> None:
    long, short = called
    assert short.woken.wait(patience(10))
    assert not long.woken.is_set()
    found = short.caller.poll()
    assert found is not None
    assert [(each.plugin, each.problem) for each in found.answers] == [("hangs", "no answer in time")]
    assert long.caller.poll() is None
