"""`koordebpf demo` as a user calls it: each story comes out as it should, and nothing is left, however it ends."""

from __future__ import annotations

import functools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordebpf.demo import story
from koordebpf.demo.story import NEEDS_BYTES, STORIES
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.units import GIB
from tests.support.patience import patience
from tests.support.transcript import Transcript, of_demo_page, transcript

pytestmark = pytest.mark.usefixtures("require_root")

PAGE_IS_OLD = "the transcript in docs/demo.md is of an older program: run `make demo` and copy what it prints"


@pytest.fixture(autouse=True, scope="module")
def enough_for_one() -> None:
    skip_below(NEEDS_BYTES)


@pytest.fixture
def enough_for_two() -> None:
    skip_below(2 * NEEDS_BYTES)


def skip_below(needed_bytes: int) -> None:
    with Meminfo() as meminfo:
        if meminfo.read().mem_available_bytes < needed_bytes:
            pytest.skip(f"not this kind of machine: needs {needed_bytes // GIB} GiB of free memory")


class Demo:
    """One `koordebpf demo` that runs."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "koordebpf", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.name = f"koordebpf-demo-{self.process.pid}"

    def wait_for(self, event: str, text: str, pod: str | None) -> None:
        """Read JSON lines until one says so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if (said["event"], said.get("text"), said.get("pod")) == (event, text, pod):
                return
        pytest.fail(f"{event} {text} was never said: {self.process.communicate()[1]}")

    def end(self) -> tuple[int, str, str]:
        """Return exit code, output and errors."""
        out, err = self.process.communicate(timeout=patience(90))
        return self.process.returncode, out, err

    def processes(self) -> list[int]:
        """Return its agent and workers, which carry its name in their arguments."""
        return [pid for pid in pids() if self.name.encode() in arguments_of(pid)]

    def agent(self) -> int:
        (pid,) = [pid for pid in self.processes() if b"\0--node-cgroup\0" in arguments_of(pid)]
        return pid

    def left(self) -> list[str]:
        """Return what is still there of it."""
        places = [
            find_memory_hierarchy().mount_point,
            Path(tempfile.gettempdir()),
            Path("/run"),
            Path("/run/koordebpf"),
        ]
        paths = [path for place in places for path in place.glob(f"{self.name}*")]
        return [*map(str, paths), *map(str, self.processes())]


def pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def arguments_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@contextmanager
def demo(*arguments: str) -> Iterator[Demo]:
    running = Demo(*arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGCONT)  # in case it was stopped
            running.process.terminate()
            running.process.communicate()
        for pipe in (running.process.stdout, running.process.stderr):
            assert pipe is not None
            pipe.close()


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def verdict(out: str) -> dict[str, Any]:
    return lines(out)[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("enough_for_two")
def test_two_at_once_do_not_disturb_each_other() -> None:
    with demo("--json") as hog, demo("--json", "--story", "own-limit") as own_limit:
        hog_ended, own_limit_ended = hog.end(), own_limit.end()
    for code, out, err in (hog_ended, own_limit_ended):
        assert (code, err) == (0, ""), json.dumps(lines(out)[-1:], indent=1)  # pytest shortens all but text

    hog_facts = verdict(hog_ended[1])["facts"]
    assert [eviction["pod"] for eviction in hog_facts["evictions"]] == ["hog"]
    assert {pod["name"]: pod["is_alive"] for pod in hog_facts["pods"]} == {"web": True, "train": True, "hog": False}
    assert hog_facts["oom_kills"] == 0
    eviction = hog_facts["evictions"][0]
    assert (
        hog_facts["began_ns"]
        < hog_facts["crossed_ns"]
        < eviction["seen_ns"]
        <= eviction["decided_ns"]
        <= eviction["sent_ns"]
    )
    assert eviction["sent_ns"] < eviction["freed_ns"]
    assert hog_facts["quiet"]["count"] > 0

    own_facts = verdict(own_limit_ended[1])["facts"]
    assert own_facts["evictions"] == []
    stalls = {pod["name"]: pod["stalls"] for pod in own_facts["pods"]}
    assert stalls["thrash"]["limit_count"] > 0
    assert sum(each["node_count"] for each in stalls.values()) == 0
    assert (stalls["web"]["limit_count"], stalls["train"]["limit_count"]) == (0, 0)
    assert hog.left() == own_limit.left() == []


@pytest.mark.story
def test_a_hog_is_evicted_before_the_eyes_of_the_user() -> None:
    with demo() as running:
        code, out, err = running.end()
    assert (code, err) == (0, ""), out
    assert "verdict: as it should be\n" in out
    assert "evicting default/hog (priority 5000" in out
    steps = [line.split()[2] for line in out.splitlines() if line.split()[1:2] == ["ms"]]
    assert steps == ["crossed", "seen", "decided", "killed", "back"]
    assert max(map(len, out.splitlines())) <= 80
    assert running.left() == []
    machine, expected = of_demo_page()
    printed = transcript(out)
    assert (printed.head, printed.frame) == (expected.head, expected.frame), PAGE_IS_OLD
    # What the agent says depends on the kernel, the cgroup version and what root may do here.
    release = ".".join(platform.release().split(".")[:2])
    if f"Linux {release} and cgroup v{find_memory_hierarchy().version}:" in machine:
        assert set(in_time(printed)) <= set(expected.sentences), PAGE_IS_OLD
        assert after_the_threshold(printed) == after_the_threshold(expected), PAGE_IS_OLD


# On a busy machine a round falls between the kill and the end of the processes, and says so; and the agent has not said
# all of its start when the story begins.
_BUSY = ("has not released its memory yet", "the kubelet's cgroup root is")


def in_time(printed: Transcript) -> list[str]:
    return [each for each in printed.sentences if not any(words in each for words in _BUSY)]


def after_the_threshold(printed: Transcript) -> set[str]:
    sentences = in_time(printed)
    return set(sentences[[sentence.split()[1] for sentence in sentences].index("evicting") :])


@pytest.mark.slow
def test_no_pod_is_evicted_for_page_cache() -> None:
    with demo("--story", "page-cache", "--json") as running:
        code, out, err = running.end()
    assert (code, err) == (0, ""), out
    facts = verdict(out)["facts"]
    assert facts["evictions"] == []
    assert facts["peak_usage_bytes"] >= 0.99 * facts["limit_bytes"]
    assert facts["peak_used_bytes"] < facts["threshold_bytes"]
    assert all(pod["is_alive"] for pod in facts["pods"])
    assert running.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing(number: signal.Signals) -> None:
    with demo("--json") as running:
        running.wait_for("worker", "ready", "hog")
        assert len(running.left()) == 7  # its cgroup, two directories, the agent and three workers
        running.process.send_signal(number)
        code, _, err = running.end()
    assert (code, running.left()) == (128 + number, [])
    assert err == f"koordebpf: interrupted by {number.name}: the demo's pods and cgroups are removed\n"


@pytest.mark.slow
@pytest.mark.usefixtures("enough_for_two")
def test_what_a_killed_demo_left_is_removed_at_the_next_start() -> None:
    with demo("--json") as killed, demo("--json", "--story", "own-limit") as bystander:
        killed.wait_for("worker", "ready", "hog")
        bystander.wait_for("worker", "ready", "thrash")
        # Its story stands still while others start, however long that takes here.
        bystander.process.send_signal(signal.SIGSTOP)
        killed.process.kill()
        killed.process.wait()
        deadline = time.monotonic() + patience(10)
        while killed.processes() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert killed.processes() == []  # they end with it
        assert len(killed.left()) == 3
        with demo("--json") as following:
            following.wait_for("worker", "ready", "hog")
            assert killed.left() == []
            assert len(bystander.left()) == 7


@pytest.mark.slow
def test_an_agent_that_dies_is_a_bad_verdict() -> None:
    with demo("--json") as running:
        running.wait_for("worker", "ready", "hog")
        os.kill(running.agent(), signal.SIGKILL)
        code, out, _ = running.end()
    assert (code, running.left()) == (1, [])
    bad = {line["name"]: line["text"] for line in verdict(out)["lines"] if line["ok"] is False}
    assert bad["agent"] == "ended with exit code -9"


def test_what_an_agent_says_that_does_not_start_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # The real agent, given an option that it must refuse.
    refused = functools.partial(story.Child, "koordebpf", "run", "--evictions-per-minute", "0")
    monkeypatch.setattr(story, "Child", lambda *_, end_signal: refused(end_signal=end_signal))
    with pytest.raises(SupportError, match="--evictions-per-minute"):
        story.run_story(STORIES["hog"], lambda _: None)
    assert not list(find_memory_hierarchy().mount_point.glob(f"koordebpf-demo-{os.getpid()}"))


@pytest.mark.slow
def test_a_closed_pipe_ends_it_cleanly() -> None:
    with demo("--json") as running:
        running.wait_for("worker", "ready", "hog")
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.process.wait(patience(60)) == 141
        assert running.left() == []
