"""Calls of hooks: each hook by itself, bounded, counted, and its failures named once in an outage."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from koordebpf.act.eviction_hook_settings import WebhookHook
from koordebpf.act.eviction_hooks import CLOSE_S, QUEUED, EvictionHooks, Hook, Ran
from koordebpf.state.outcome import HookResult
from tests.support.patience import patience


class Answers:
    """Answers each call with the next of these; an error is raised."""

    def __init__(self, *answers: Ran | Exception) -> None:
        self._answers = list(answers)
        self.payloads: list[bytes] = []

    def call(self, payload: bytes) -> Ran:
        self.payloads.append(payload)
        answer = self._answers.pop(0) if self._answers else Ran("done")
        if isinstance(answer, Exception):
            raise answer
        return answer


class Hangs:
    """Hangs until it is let go; `is_called` once it does."""

    def __init__(self) -> None:
        self.over, self.is_called = threading.Event(), threading.Event()

    def call(self, payload: bytes) -> Ran:
        del payload
        self.is_called.set()
        self.over.wait()
        return Ran("timed_out", "no answer within 1 s")


# An agent that ends waits for a second; what is tested here is what comes of each call, on a busy machine too.
def calling(*hooks: tuple[WebhookHook, Hook], close_s: float = patience(30)) -> EvictionHooks:
    return EvictionHooks(hooks, rest_s=0.0, close_s=close_s)


def hook(name: str, **more: object) -> WebhookHook:
    return WebhookHook(name=name, url="https://chat.example/", **more)  # type: ignore[arg-type]


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + patience(10)
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.0005)


def of(counts: dict[tuple[str, str], int] | object, name: str) -> dict[str, int]:
    return {outcome: number for (hook_name, outcome), number in dict(counts).items() if hook_name == name and number}  # type: ignore[call-overload]


def test_calls_come_in_their_order_each_with_the_hooks_name() -> None:
    answers = Answers()
    hooks = calling((hook("a"), answers))
    for number in range(5):
        hooks.call("before", lambda name, number=number: f"{name}{number}".encode(), dry_run=False)
    hooks.close()
    assert answers.payloads == [b"a0", b"a1", b"a2", b"a3", b"a4"]
    assert of(hooks.counts(), "a") == {"done": 5}
    assert hooks.problem() is None


def test_a_hook_that_hangs_keeps_neither_the_caller_nor_another_hook(caplog: pytest.LogCaptureFixture) -> None:
    hangs, answers = Hangs(), Answers()
    hooks = calling((hook("hangs"), hangs), (hook("works"), answers), close_s=CLOSE_S)
    try:
        calls, longest_ns = 10 * QUEUED, 0
        for number in range(calls):
            since_ns = time.monotonic_ns()
            hooks.call("before", lambda _: b"{}", dry_run=False)
            longest_ns = max(longest_ns, time.monotonic_ns() - since_ns)
            if number == 0:
                assert hangs.is_called.wait(patience(10))
            wait_for(lambda number=number: of(hooks.counts(), "works") == {"done": number + 1})  # type: ignore[misc]
        # THEN it has one call in progress and as many as fit, and what did not fit is counted
        assert of(hooks.counts(), "hangs") == {"dropped": calls - 1 - QUEUED}
        assert of(hooks.counts(), "works") == {"done": calls}
        assert caplog.text.count("hook hangs is behind") == 1
        print(f"the longest call took {longest_ns / 1000:.0f} µs")
    finally:
        threading.Timer(0.05, hangs.over.set).start()
        hooks.close()


def test_an_end_does_not_wait_for_a_hook_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    hangs = Hangs()
    hooks = calling((hook("hangs"), hangs), close_s=0.05)
    for _ in range(3):
        hooks.call("before", lambda _: b"{}", dry_run=False)
    assert hangs.is_called.wait(patience(10))
    since_s = time.monotonic()
    hooks.close()
    ended_s = time.monotonic() - since_s
    hangs.over.set()
    wait_for(lambda: hooks.counts()["hangs", "timed_out"] == 1)
    assert ended_s < patience(5)
    assert "hooks have not ended: hangs" in caplog.text
    assert of(hooks.counts(), "hangs")["dropped"] == 2


def test_an_end_with_a_full_queue_waits_no_longer_than_the_calls_take() -> None:
    slow = Hangs()
    hooks = calling((hook("slow"), slow))
    for _ in range(2 * QUEUED):
        hooks.call("before", lambda _: b"{}", dry_run=False)
    assert slow.is_called.wait(patience(10))
    let_go = threading.Timer(0.05, slow.over.set)
    let_go.start()
    since_s = time.monotonic()
    hooks.close()
    assert time.monotonic() - since_s < patience(30) / 3
    let_go.join()
    assert of(hooks.counts(), "slow")["timed_out"] >= QUEUED


def test_an_outage_is_named_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    failed = Ran("failed", "answered 500", "no \x1b[31mroute\n")
    answers = Answers(failed, failed, Ran("timed_out", "no answer within 2 s"), Ran("done", "", "sent"), failed)
    hooks = calling((hook("a"), answers))
    for _ in range(5):
        hooks.call("after", lambda _: b"{}", dry_run=False)
    wait_for(lambda: sum(hooks.counts().values()) == 5)
    assert hooks.problem() == r"a: answered 500: no \x1b[31mroute"
    hooks.close()
    assert of(hooks.counts(), "a") == {"failed": 3, "timed_out": 1, "done": 1}
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == [r"hook a failed: answered 500: no \x1b[31mroute; more of its failures are only counted"] * 2
    assert caplog.text.count("hook a works again, after 3 calls that failed") == 1
    debug = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    assert debug == [r"hook a said: no \x1b[31mroute"] * 2 + ["hook a said: sent", r"hook a said: no \x1b[31mroute"]


def test_a_defect_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    hooks = calling((hook("a"), Answers(ZeroDivisionError("x"), Ran("done"))))

    def broken(_name: str) -> bytes:
        raise TypeError("no JSON")

    hooks.call("after", lambda _: b"{}", dry_run=False)
    hooks.call("after", broken, dry_run=False)
    hooks.call("after", lambda _: b"{}", dry_run=False)
    hooks.close()
    assert of(hooks.counts(), "a") == {"failed": 2, "done": 1}
    assert "ZeroDivisionError" in caplog.text


def test_hooks_are_asked_by_moment_and_mode() -> None:
    hooks = calling((hook("a", when=("before",)), Answers()), (hook("b", when=("after",), dry_run=True), Answers()))
    assert hooks.wants("before", dry_run=False)
    assert not hooks.wants("before", dry_run=True)
    assert hooks.wants("after", dry_run=True)
    hooks.call("after", lambda _: b"{}", dry_run=False)
    hooks.close()
    assert of(hooks.counts(), "a") == {}
    assert of(hooks.counts(), "b") == {"done": 1}


def test_what_became_of_each_call_is_known_by_its_decision() -> None:
    answers = Answers(Ran("done"), Ran("failed", "answered \x1b 500"), Ran("timed_out", "no answer within 2 s"))
    hooks = calling((hook("a"), answers), (hook("b", when=("after",)), Answers()))
    for when, decision in (("before", "1"), ("after", "1"), ("after", "2")):
        hooks.call(when, lambda _: b"{}", dry_run=False, decision=decision)  # type: ignore[arg-type]
    hooks.close()
    ended = {decision: [replace(each, took_ns=0) for each in of] for decision, of in hooks.ended().items()}
    assert ended == {
        "1": [
            HookResult("a", "before", "done", 0),
            HookResult("a", "after", "failed", 0, r"answered \x1b 500"),
            HookResult("b", "after", "done", 0),
        ],
        "2": [HookResult("a", "after", "timed_out", 0, "no answer within 2 s"), HookResult("b", "after", "done", 0)],
    }


def test_how_long_a_call_takes_is_known_and_that_it_was_dropped() -> None:
    hangs = Hangs()
    hooks = calling((hook("hangs"), hangs))
    hooks.call("before", lambda _: b"{}", dry_run=False, decision="0")
    assert hangs.is_called.wait(patience(10))
    for number in range(QUEUED + 1):
        hooks.call("after", lambda _: b"{}", dry_run=False, decision=str(number + 1))
    time.sleep(0.02)
    hangs.over.set()
    wait_for(lambda: hooks.counts()["hangs", "timed_out"] == QUEUED + 1)
    ended = hooks.ended()
    hooks.close()
    assert ended["0"][0].took_ns >= 20_000_000
    assert hooks.spent_s()["hangs"] * 1e9 == pytest.approx(sum(each.took_ns for (each,) in ended.values()))
    assert list(ended[str(QUEUED + 1)]) == [HookResult("hangs", "after", "dropped", 0)]


def test_only_the_last_calls_are_remembered() -> None:
    hooks = calling((hook("a"), Answers()))
    for number in range(150):
        hooks.call("after", lambda _: b"{}", dry_run=False, decision=str(number))
        wait_for(lambda number=number: hooks.counts()["a", "done"] == number + 1)  # type: ignore[misc]
    hooks.close()
    assert list(hooks.ended()) == [str(number) for number in range(50, 150)]
