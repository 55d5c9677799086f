"""The processes of a demo's pods: what each prints, that it is paced, and how it ends."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from koordebpf.demo import workers
from koordebpf.demo.story import Child
from tests.contract.apiserver import until
from tests.support.patience import patience

MODULE = workers.__name__

Start = Callable[..., "Worker"]


class Worker:
    """A worker that runs; `said` are its lines so far."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.procs = folder / "cgroup.procs"
        texts = ["--procs", self.procs, "--directory", folder, *arguments]
        self.child = Child(MODULE, *map(str, texts), end_signal=signal.SIGTERM)
        self.said: list[dict[str, Any]] = []

    def events(self) -> list[str]:
        self.said += map(json.loads, self.child.out.read())
        return [each["event"] for each in self.said]

    def has_said(self, event: str) -> dict[str, Any]:
        until(lambda: event in self.events(), lambda: f"{event}: {self.said} {self.child.err.read()}")
        return next(each for each in self.said if each["event"] == event)

    def ends(self) -> list[str]:
        """Wait for it to end by itself; return all that it said."""
        assert self.child.wait(patience(20)) == 0
        return self.events()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Worker] = []

    def _start(kind: str, *arguments: object) -> Worker:
        started.append(Worker(tmp_path, kind, *arguments))
        return started[-1]

    yield _start
    for each in started:
        each.child.close()


def test_a_hog_grows_at_its_pace_says_each_100_mib_and_holds_until_it_is_ended(start: Start) -> None:
    hog = start("hog", "--mib", 101, "--mib-per-s", 500, "--wait-s", 0.05)
    full = hog.has_said("full")
    assert hog.events() == ["ready", "begins", "grown", "full"]
    ready, begins, grown = hog.said[:3]
    assert (ready["mib"], begins["mib_per_s"], grown["mib"], full["mib"]) == (0, 500.0, 100, 101)
    assert begins["at_ns"] - ready["at_ns"] >= 50e6
    assert grown["at_ns"] - begins["at_ns"] >= 99 / 500 * 1e9
    assert full["at_ns"] - begins["at_ns"] >= 101 / 500 * 1e9
    assert hog.procs.read_text() == str(hog.child.pid)
    assert hog.child.exit_code is None
    hog.child.stop()
    assert hog.ends()[-1] == "end"


def test_a_latency_sensitive_pod_says_how_long_each_round_took_in_lines_of_a_quarter_of_a_second(start: Start) -> None:
    pod = start("ls", "--mib", 2, "--seconds", 0.6)
    events = pod.ends()
    assert (events[0], events[-1]) == ("ready", "end")
    assert pod.said[0]["mib"] == 2
    lines = [each["rounds_ns"] for each in pod.said if each["event"] == "rounds"]
    assert len(events) == 2 + len(lines) and 2 <= len(lines) <= 3
    for begin_ns, *_ in (line[0] for line in lines[:-1]):
        assert begin_ns >= pod.said[0]["at_ns"]
    assert all(line[-1][0] - pod.said[0]["at_ns"] >= 250e6 * (number + 1) for number, line in enumerate(lines[:-1]))
    rounds = [each for line in lines for each in line]
    assert all(took_ns > 0 for _, took_ns in rounds)
    # Between two it rests for 2 ms.
    assert all(later - (begin + took) >= 2e6 for (begin, took), (later, _) in itertools.pairwise(rounds))


@pytest.mark.parametrize(("kind", "count"), [("page-cache", "mib"), ("own-limit", "walks")])
def test_readers_wait_read_over_and_over_and_leave_no_file(kind: str, count: str, start: Start, tmp_path: Path) -> None:
    reader = start(kind, "--mib", 2, "--wait-s", 0.05, "--seconds", 0.2)
    assert reader.ends() == ["ready", "begins", "end"]
    ready, begins, end = reader.said
    assert ready["mib"] == 0
    assert begins["at_ns"] - ready["at_ns"] >= 50e6
    assert end["at_ns"] - begins["at_ns"] >= 200e6
    assert end[count] >= 3
    assert list(tmp_path.iterdir()) == [reader.procs]


@pytest.mark.parametrize("kind", ["ls", "page-cache", "own-limit"])
def test_each_ends_at_once_when_it_is_asked_to(kind: str, start: Start) -> None:
    worker = start(kind, "--mib", 2, "--seconds", 600)
    worker.has_said("ready" if kind == "ls" else "begins")
    worker.child.stop()
    assert worker.ends()[-1] == "end"


def test_ctrl_c_is_the_demos_to_handle(start: Start) -> None:
    hog = start("hog", "--mib", 1)
    hog.has_said("full")
    os.kill(hog.child.pid, signal.SIGINT)
    hog.child.stop()
    assert hog.ends()[-1] == "end"


def test_a_child_that_is_stopped_is_resumed_and_one_that_runs_is_ended(start: Start) -> None:
    hog = start("hog", "--mib", 1)
    hog.has_said("full")
    begin = time.monotonic()
    assert hog.child.wait(-1) is None
    assert time.monotonic() - begin < patience(10)
    os.kill(hog.child.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(hog.child.pid).status() == psutil.STATUS_STOPPED, "a stop")
    hog.child.resume()
    until(lambda: psutil.Process(hog.child.pid).status() != psutil.STATUS_STOPPED, "that it runs again")
    hog.child.close()
    assert hog.child.exit_code == 0


def test_a_childs_last_line_needs_no_end_and_what_it_complains_of_is_apart(start: Start) -> None:
    worker = start("none")
    assert worker.child.wait(patience(20)) == 2
    complaint: list[bytes] = []
    until(lambda: complaint.extend(worker.child.err.read()) or not worker.child.err.is_open, "the end")
    assert b"invalid choice" in b"\n".join(complaint)
    assert (worker.child.out.read(), worker.child.out.is_open) == ([], False)


def test_settings_of_the_users_agent_are_not_the_childs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOORDEBPF_BACKEND", "files")
    monkeypatch.setenv("OF_THE_USER", "1")
    hog = start("hog", "--mib", 1)
    hog.has_said("full")
    environment = psutil.Process(hog.child.pid).environ()
    assert environment["OF_THE_USER"] == "1" and "KOORDEBPF_BACKEND" not in environment
    assert Path(environment["PYTHONPATH"], "koordebpf/demo/workers.py").is_file()
