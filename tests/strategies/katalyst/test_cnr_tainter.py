"""What the thread does that keeps taints on the CustomNodeResource: what others remove, and what a server refuses."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime

import pytest

from koordebpf.act.taint import CLOSE_S
from koordebpf.errors import KubeError, KubeGone
from koordebpf.strategies.katalyst.taints import CnrTainter, Taints
from tests.contract.apiserver import until

DISK = frozenset({("node.katalyst.kubewharf.io/Disk", "NoSchedule", "reclaimed_cores")})
NOTHING: Taints = frozenset()


class Server:
    """Keeps a set of taints; each of `refusals` is the answer to one call."""

    node_name = "n1"

    def __init__(self, *refusals: KubeError) -> None:
        self.there: Taints = NOTHING
        self.calls: list[Taints] = []
        self.refusals = deque(refusals)
        self._lock = threading.Lock()

    def set_to(self, wanted: Taints, *, at: datetime, timeout_s: float) -> bool:
        with self._lock:
            self.calls.append(wanted)
            if self.refusals:
                raise self.refusals.popleft()
            changed, self.there = self.there != wanted, wanted
            return changed

    def close(self) -> None:
        """Nothing waits."""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CnrTainter]:
    def _start(server: Server, again_s: float, close_s: float = CLOSE_S) -> CnrTainter:
        monkeypatch.setattr(CnrTainter, "again_s", again_s)
        monkeypatch.setattr(CnrTainter, "close_s", close_s)
        return CnrTainter(server)

    return _start


def test_what_another_component_removes_is_added_again_and_nothing_is_asked_without_taints(
    start: Callable[..., CnrTainter], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = Server()
    tainter = start(server, again_s=0.02)
    try:
        until(lambda: server.calls == [NOTHING], "what a predecessor may have left")
        tainter.wish(DISK)
        until(lambda: server.there == DISK, "the taint")
        server.there = NOTHING
        until(lambda: server.there == DISK, "the taint again")
        until(lambda: len(server.calls) > 10, "looks that change nothing")
        tainter.wish(NOTHING)
        until(lambda: server.calls[-1] == NOTHING, "its removal")
        calls = len(server.calls)
        assert not threading.Event().wait(0.2)
        assert len(server.calls) == calls
    finally:
        tainter.close()
    named = "node.katalyst.kubewharf.io/Disk:NoSchedule for reclaimed_cores"
    assert caplog.messages.count(f"CustomNodeResource n1 has the taints {named} of Katalyst's conditions") == 2
    assert "CustomNodeResource n1 has the taints (none) of Katalyst's conditions" in caplog.messages


def test_a_refusal_is_reported_once_however_often_it_comes(
    start: Callable[..., CnrTainter], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("koordebpf.act.taint._DENIED_FIRST_S", 0.01)
    monkeypatch.setattr("koordebpf.act.taint._DENIED_CAP_S", 0.01)
    server = Server(*[KubeGone("patch customnoderesources: 404 Not Found", 404) for _ in range(5)])
    tainter = start(server, again_s=60)
    tainter.wish(DISK)
    try:
        until(lambda: server.there == DISK, "the taint")
        assert caplog.text.count("404 Not Found") <= 2  # the wish may have changed after the first one
    finally:
        tainter.close()
    assert server.there == NOTHING
    assert "may keep taints" not in caplog.text


def test_what_may_stay_is_reported_at_the_end(
    start: Callable[..., CnrTainter], caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    tainter = start(server, again_s=60, close_s=0.1)
    tainter.wish(DISK)
    until(lambda: server.there == DISK, "the taint")
    server.refusals.extend(KubeError("patch customnoderesources: 500") for _ in range(50))
    tainter.close()
    assert "CustomNodeResource n1 may keep taints until an agent starts there" in caplog.messages
