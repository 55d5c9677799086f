"""The wait of the event loop, on real fds."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import threading
import time

from koordebpf.kernel.io.loop import Loop

FOR_EVER_NS = time.monotonic_ns() + 36_000_000_000_000  # since tests are collected, which may be an hour ago


def test_a_deadline_ends_the_wait_and_is_never_early() -> None:
    with Loop() as loop:
        due_ns = time.monotonic_ns() + 3_000_000
        assert loop.wait(due_ns) is False
        assert time.monotonic_ns() >= due_ns


def test_a_deadline_in_the_past_does_not_wait() -> None:
    with Loop() as loop:
        assert loop.wait(0) is False


def test_another_thread_wakes_it() -> None:
    with Loop() as loop:
        thread = threading.Thread(target=loop.wake)
        thread.start()
        assert loop.wait(FOR_EVER_NS) is True
        thread.join()
        assert loop.wait(0) is False  # the wake was taken


def test_a_ready_fd_runs_its_callback_until_it_is_unwatched() -> None:
    seen: list[bytes] = []
    reader, writer = os.pipe()
    with Loop() as loop:
        loop.watch(reader, lambda: seen.append(os.read(reader, 10)))
        os.write(writer, b"a")
        assert loop.wait(FOR_EVER_NS) is True
        loop.unwatch(reader)
        os.write(writer, b"b")
        assert loop.wait(0) is False
        loop.unwatch(reader)
    os.close(reader)
    os.close(writer)
    assert seen == [b"a"]


def test_an_fd_that_rests_is_reported_again_after_its_rest_and_keeps_nothing_else_waiting() -> None:
    calls_ns: list[int] = []
    reader, writer = os.pipe()
    with Loop() as loop:
        loop.watch(reader, lambda: calls_ns.append(time.monotonic_ns()), rest_ns=20_000_000)
        os.write(writer, b"a")  # never taken: it stays ready
        assert loop.wait(FOR_EVER_NS) is True
        assert loop.wait(0) is False
        loop.wake()
        assert loop.wait(FOR_EVER_NS) is True
        assert len(calls_ns) == 1
        assert loop.wait(FOR_EVER_NS) is True
        assert calls_ns[1] >= calls_ns[0] + 20_000_000
        loop.unwatch(reader)
        assert loop.wait(time.monotonic_ns() + 1_000_000) is False
    os.close(reader)
    os.close(writer)


def test_an_fd_rests_as_long_as_it_is_asked_to_and_is_then_waited_for_as_before() -> None:
    calls: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver, Loop() as loop:
            loop.watch(receiver.fileno(), lambda: calls.append("called"), priority=True)
            loop.rest(receiver.fileno(), FOR_EVER_NS)
            sender.send(b"a")
            sender.send(b"!", socket.MSG_OOB)
            urgent = select.poll()
            urgent.register(receiver, select.POLLPRI)
            assert urgent.poll(60_000)
            assert loop.wait(0) is False
            # WHEN the rest is over THEN what came meanwhile is seen
            loop.rest(receiver.fileno(), 0)
            assert loop.wait(FOR_EVER_NS) is True
            # AND what can only be read, as any PSI trigger always can, is not
            receiver.recv(1, socket.MSG_OOB)
            assert loop.wait(0) is False
            loop.unwatch(receiver.fileno())
            loop.rest(receiver.fileno(), 0)
            assert loop.wait(0) is False
    assert calls == ["called"]


def test_an_fd_in_error_is_reported_once() -> None:
    # The write end of a pipe without a reader is EPOLLERR for ever, as a PSI trigger whose cgroup is gone.
    seen: list[int] = []
    reader, writer = os.pipe()
    os.close(reader)
    with Loop() as loop:
        loop.watch(writer, lambda: seen.append(1), priority=True)
        assert loop.wait(FOR_EVER_NS) is True
        assert loop.wait(0) is False
    os.close(writer)
    assert seen == [1]


def test_signals_stop_it_and_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Loop() as loop:
        loop.stop_on_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        assert loop.wait(FOR_EVER_NS) is True
        assert loop.stopping
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_look_is_made_again_when_it_says() -> None:
    looks_ns: list[int] = []

    def look(now_ns: int) -> int:
        looks_ns.append(now_ns)
        if len(looks_ns) == 4:
            loop.wake()
        return now_ns + 5_000_000

    with Loop() as loop:
        loop.set_timer(look)
        assert loop.wait(FOR_EVER_NS) is True
        assert len(looks_ns) == 4
        assert all(later - sooner >= 5_000_000 for sooner, later in itertools.pairwise(looks_ns))
        loop.stop_timer(look)
        assert loop.wait(time.monotonic_ns() + 20_000_000) is False
        assert len(looks_ns) == 4


def test_a_look_does_not_end_the_wait() -> None:
    with Loop() as loop:
        loop.set_timer(lambda now_ns: now_ns + 5_000_000)
        until_ns = time.monotonic_ns() + 50_000_000
        assert loop.wait(until_ns) is False
        assert time.monotonic_ns() >= until_ns


def test_a_look_that_found_something_ends_the_wait() -> None:
    with Loop() as loop:

        def look(now_ns: int) -> int:
            loop.wake()
            return FOR_EVER_NS

        loop.set_timer(look)
        assert loop.wait(FOR_EVER_NS) is True
        assert loop.wait(0) is False
