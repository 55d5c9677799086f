"""The queue in front of pipes and files, and the log that goes through it."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.errors import ConfigError
from koordebpf.report.log_formats import JsonFormatter, QueuedHandler, log_sink, set_up_logging, write_last
from koordebpf.store.audit import open_audit
from koordebpf.store.line_sink import LineSink, write_whole
from tests.contract.apiserver import until
from tests.support.hung import FullPipe
from tests.support.patience import patience


class Gate:
    """What takes lines once it is open."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.taken: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.is_open.wait()
        self.taken.append(line)


def lines(numbers: range) -> list[bytes]:
    return [b"%d\n" % number for number in numbers]


def sink(write: Callable[[bytes], None], **more: object) -> LineSink:
    made = LineSink(write, "test", **more)  # type: ignore[arg-type]
    made.start()
    return made


def test_lines_are_written_in_their_order_and_none_is_lost() -> None:
    gate = Gate()
    gate.is_open.set()
    made = sink(gate.write)
    for line in lines(range(3000)):
        assert made.put(line)
    assert made.close(5)
    assert (gate.taken, made.written, made.waiting, made.dropped) == (lines(range(3000)), 3000, 0, 0)


def test_nothing_waits_for_who_takes_no_line_and_what_does_not_fit_is_counted() -> None:
    gate, recovered = Gate(), list[int]()
    made = sink(gate.write, max_lines=10, recovered=recovered.append)
    made.put(b"held\n")
    until(lambda: not made._lines, "the writer has the first")
    started = time.monotonic()
    for line in lines(range(100)):
        made.put(line)
    assert time.monotonic() - started < patience(10)
    assert (made.waiting, made.dropped, made.written) == (11, 90, 0)
    assert not made.flush(0.05)
    assert recovered == []
    gate.is_open.set()
    assert made.flush(5)
    until(lambda: recovered, "it says what was lost")
    assert gate.taken == [b"held\n", *lines(range(90, 100))]
    made.put(b"later\n")
    assert made.close(5)
    assert recovered == [90]


def test_many_bytes_are_too_many_too() -> None:
    made = LineSink(refuse, "test")
    for _ in range(9):
        made.put(bytes(1 << 20))
    assert (made.waiting, made.dropped) == (4, 5)
    big = LineSink(refuse, "test")
    big.put(bytes(9 << 20))
    assert (big.waiting, big.dropped) == (1, 0)


def refuse(_line: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_a_writer_that_hangs_is_a_problem_after_its_time_and_is_left_behind_at_the_end() -> None:
    gate = Gate()
    made = sink(gate.write, stuck_s=0.3)
    assert made.put(b"one\n")
    assert made.problem is None
    until(lambda: made.problem, "a problem")
    assert str(made.problem).startswith("a line has been on its way for ")
    assert not made.put(b"two\n")
    started = time.monotonic()
    assert not made.close(0.1)
    assert time.monotonic() - started < patience(10)
    gate.is_open.set()


def test_what_is_refused_is_tried_again_and_written_once() -> None:
    answers, taken = [OSError(28, "No space left on device")] * 2, list[bytes]()

    def write(line: bytes) -> None:
        if answers:
            raise answers.pop()
        taken.append(line)

    made = sink(write, retry_s=0.05)
    made.put(b"one\n")
    made.put(b"two\n")
    until(lambda: made.problem == "No space left on device", "a problem")
    assert made.flush(10)
    assert (taken, made.problem, made.last_error) == ([b"one\n", b"two\n"], None, "No space left on device")
    assert made.close(1)


def test_many_threads_put_whole_lines() -> None:
    reading, writing = os.pipe()
    made = sink(lambda line: write_whole(writing, line))
    os.set_blocking(writing, False)  # as another process on the pipe may set it
    found = bytearray()

    def read() -> None:
        while part := os.read(reading, 4096):
            found.extend(part)

    def put(number: int) -> None:
        for each in range(500):
            made.put(b"%d %d\n" % (number, each))

    reader = threading.Thread(target=read)
    reader.start()
    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.close(10)
    os.close(writing)
    reader.join()
    os.close(reading)
    by_thread: dict[bytes, list[int]] = {}
    for line in bytes(found).splitlines():
        number, each = line.split()
        by_thread.setdefault(number, []).append(int(each))
    assert by_thread == {b"%d" % number: list(range(500)) for number in range(4)}


@pytest.fixture
def handler() -> Iterator[QueuedHandler]:
    made = QueuedHandler(LineSink(lambda line: TAKEN.append(line), "log"))
    TAKEN.clear()
    yield made


TAKEN: list[bytes] = []


def test_a_line_that_cannot_be_formatted_is_said_so_and_prints_nothing(
    handler: QueuedHandler, capfd: pytest.CaptureFixture[str]
) -> None:
    handler.handle(logging.LogRecord("koordebpf", logging.INFO, "", 0, "%d pods", ("many",), None))
    (line,) = TAKEN
    assert line.startswith(b"a log line of koordebpf cannot be formatted: TypeError(")
    assert capfd.readouterr().err == ""


def test_what_is_not_unicode_does_not_end_the_writer(handler: QueuedHandler) -> None:
    handler.handle(logging.LogRecord("koordebpf", logging.INFO, "", 0, "comm \udcff", (), None))
    assert TAKEN == [b"comm \\udcff\n"]


def test_a_traceback_keeps_its_own_field(handler: QueuedHandler) -> None:
    handler.setFormatter(JsonFormatter())
    try:
        raise ValueError("seven")
    except ValueError:
        handler.handle(logging.LogRecord("koordebpf", logging.ERROR, "", 0, "it ended", (), sys.exc_info()))
    found = json.loads(TAKEN[0])
    assert (found["message"], found["traceback"].splitlines()[-1]) == ("it ended", "ValueError: seven")


@pytest.mark.usefixtures("logged")
def test_whatever_python_prints_about_errors_goes_through_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(json=True)

    def fail() -> None:
        raise LookupError("no such pod")

    thread = threading.Thread(target=fail, name="worker-7")
    thread.start()
    thread.join()
    assert write_last("koordebpf: the end")
    *said, last = capfd.readouterr().err.splitlines()
    found = [json.loads(line) for line in said]
    assert last == "koordebpf: the end"
    assert [line["message"] for line in found] == ["thread worker-7 ended unexpectedly"]
    assert found[0]["traceback"].endswith("LookupError: no such pod")


def test_nothing_is_said_last_where_logging_is_not_set_up() -> None:
    assert log_sink() is None
    assert not write_last("koordebpf: the end")


def test_an_audit_file_is_tried_out_first(tmp_path: Path) -> None:
    assert open_audit(None) is None
    with pytest.raises(ConfigError, match="must be a file that can be written: Is a directory"):
        open_audit(tmp_path)
    made = open_audit(tmp_path / "audit.jsonl")
    assert made is not None and made.close(1)


def test_a_full_pipe_takes_no_line_and_blocks_no_writer() -> None:
    pipe = FullPipe(free_bytes=8)
    try:
        made = sink(lambda line: write_whole(pipe.writing, line))
        made.put(b"longer than what is free\n")
        assert not made.flush(0.1)
        found = os.read(pipe.reading, 4096)  # makes room
        assert made.flush(5)
        assert os.read(pipe.reading, 4096) == b"longer than what is free\n"
        assert found.endswith(b"x\n")
        assert made.close(1)
    finally:
        pipe.close()


def test_a_line_that_comes_back_to_a_full_queue_is_counted() -> None:
    def write(line: bytes) -> None:
        if line == b"first":
            sink.put(b"second")  # meanwhile
        raise OSError(errno.ENOSPC, "full")

    sink = LineSink(write, "audit", max_lines=1)
    sink.put(b"first")
    assert (sink.waiting, sink.dropped) == (1, 1)
