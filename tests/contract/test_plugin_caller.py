"""Plugins outside the process are called side by side, and none of them holds a round up."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from koordebpf.strategies.katalyst.outside import PluginCaller
from koordebpf.strategies.katalyst.values import (
    Condition,
    EvictAsked,
    EvictionRecord,
    PastBucket,
    PluginAnswer,
    Threshold,
    TopAsk,
    TopPods,
)
from tests.contract.apiserver import until
from tests.contract.eviction_plugin import Plugin, pod
from tests.support.patience import patience

DEADLINE_S = 0.8
PODS = {"a": pod("a", b"\x9a\x06\x03abc"), "b": pod("b")}  # the first has a field 99


class Called:
    """A caller and what wakes its loop."""

    def __init__(self, deadline_s: float) -> None:
        self.woken = threading.Event()
        self.caller = PluginCaller(self.woken.set, deadline_s)
        self._number = 0

    def answers(self, ask: Callable[[int], None]) -> dict[str, PluginAnswer]:
        """Ask, and wait for the answers by name."""
        self.woken.clear()
        self._number += 1
        ask(self._number)
        assert self.woken.wait(patience(10))
        found = self.caller.poll()
        assert found is not None
        assert found.call == self._number
        return {each.plugin: each for each in found.answers}

    def thresholds(self) -> dict[str, PluginAnswer]:
        return self.answers(lambda number: self.caller.ask_thresholds(number, PODS))


@pytest.fixture
def called(request: pytest.FixtureRequest) -> Iterator[Called]:
    made = Called(getattr(request, "param", DEADLINE_S))
    yield made
    made.caller.close()


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Callable[[str], Plugin]]:
    made: list[Plugin] = []

    def make(name: str) -> Plugin:
        made.append(Plugin(tmp_path / f"{name}.sock"))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def is_late(answer: PluginAnswer) -> bool:
    """Whether a call met its deadline: by our clock, or by that of a plugin that watches it, too."""
    return any(said in (answer.problem or "") for said in ("no answer in time", "Deadline Exceeded"))


def registered(called: Called, plugin: Callable[[str], Plugin], name: str) -> Plugin:
    made = plugin(name)
    called.caller.register(name, made.socket)
    return made


def test_all_that_a_plugin_says_arrives(called: Called, plugin: Callable[[str], Plugin]) -> None:
    one = registered(called, plugin, "one")
    condition = {"condition_type": 1, "condition_name": "Disk", "effects": ["reclaimed_cores/NoExecute"]}
    one.met = {
        "met_type": 2, "threshold_value": 0.5, "observed_value": 2e9, "threshold_operator": 1,
        "eviction_scope": "disk", "grace_period_seconds": 30, "candidate_pods": [PODS["b"]],
        "condition": {**condition, "met_condition": True},
    }  # fmt: skip
    one.evict = [
        {"pod": PODS["a"], "reason": "because", "force_evict": True, "deletion_options": {"grace_period_seconds": 0}},
        {"pod": PODS["b"], "reason": "softly"},
        {"reason": "no pod"},
    ]
    reported = Condition("Disk", "cnr", ("reclaimed_cores/NoExecute",))
    assert called.thresholds()["one"] == PluginAnswer(
        "one",
        Threshold("hard", "disk", 0.5, 2e9, "greater_than", 30, reported, ("b",)),
        (EvictAsked("a", "because", is_forced=True, grace_s=0), EvictAsked("b", "softly")),
    )
    record = EvictionRecord("b", True, (PastBucket(1_700_000_000, 600, 3),), 1, 4, 3, 5)
    asks = [TopAsk("one", "disk", 1, ("b", "gone"), (record, EvictionRecord("gone")))]
    top = called.answers(lambda number: called.caller.ask_tops(number, asks, PODS))["one"]
    assert top == PluginAnswer("one", top=TopPods(("b",)))
    (asked,) = one.asked["GetTopEvictionPods"]
    assert (asked.topN, asked.eviction_scope) == (1, "disk")
    known, unknown = asked.candidate_eviction_records
    (bucket,) = known.buckets.list
    assert (known.uid, known.has_pdb, bucket.time, bucket.duration, bucket.count) == ("b", True, 1_700_000_000, 600, 3)
    numbers = (known.disruptions_allowed, known.current_healthy, known.desired_healthy, known.expected_pods)
    assert numbers == (1, 4, 3, 5)
    assert (unknown.uid, unknown.has_pdb, unknown.HasField("buckets")) == ("gone", False, False)


def test_pods_are_passed_on_byte_for_byte(called: Called, plugin: Callable[[str], Plugin]) -> None:
    one = registered(called, plugin, "one")
    called.thresholds()
    assert list(one.asked["ThresholdMet"][0].active_pods) == list(PODS.values())
    assert list(one.asked["GetEvictPods"][0].active_pods) == list(PODS.values())


@pytest.mark.slow  # it waits for two deadlines
def test_each_call_has_its_deadline_and_pods_come_before_thresholds(
    plugin: Callable[[str], Plugin], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    deadline_s = patience(0.8)
    called = Called(deadline_s)
    try:
        slow, late = registered(called, plugin, "slow"), registered(called, plugin, "late")
        for each in (slow, late):
            each.met = {"met_type": 1, "eviction_scope": "s"}
            each.evict = [{"pod": PODS["a"], "reason": "because", "force_evict": True}]
        slow.takes_s = dict.fromkeys(("GetEvictPods", "ThresholdMet"), 0.6 * deadline_s)
        late.takes_s = {"ThresholdMet": 1.5 * deadline_s}
        found = called.thresholds()
        assert found["slow"] == PluginAnswer(
            "slow", Threshold("soft", "s", 0, 0), (EvictAsked("a", "because", is_forced=True),)
        )
        # ALSO what a late one said before counts
        assert found["late"].threshold is None
        assert found["late"].evict == found["slow"].evict
        assert is_late(found["late"])
        assert list(slow.asked) == ["GetEvictPods", "ThresholdMet"]
        # AND the log says once that it fails, and once that it answers again
        until(lambda: called.thresholds()["late"].problem is not None, "it fails still")
        late.takes_s = {}
        until(lambda: called.thresholds()["late"].problem is None, "it answers again")
        said = [each.getMessage() for each in caplog.records if "plugin late" in each.getMessage()]
        assert [text.partition(": ")[0] for text in said] == [
            "plugin late fails, and counts as one without an answer",
            "plugin late answers again",
        ]
    finally:
        called.caller.close()


@pytest.mark.slow
def test_with_one_that_hangs_and_one_that_answers_garbage_the_others_count(
    called: Called, plugin: Callable[[str], Plugin]
) -> None:
    plugins = [registered(called, plugin, f"plugin-{number}") for number in range(8)]
    for each in plugins:
        each.met = {"met_type": 1, "eviction_scope": "s"}
    plugins[0].hold.clear()
    plugins[1].raw = os.urandom(4 << 20)
    took_s = []
    for _ in range(5):
        began_s = time.monotonic()
        answers = called.thresholds()
        took_s.append(time.monotonic() - began_s)
        assert is_late(answers["plugin-0"])
        assert answers["plugin-1"].problem
        assert [answers[f"plugin-{number}"].threshold for number in range(2, 8)] == [Threshold("soft", "s", 0, 0)] * 6
    print("ms a round:", [round(each * 1000) for each in took_s])
    assert max(took_s) < patience(4)
    # AND when it continues, its answers count again
    plugins[0].hold.set()
    time.sleep(0.2)
    assert called.thresholds()["plugin-0"].problem is None


@pytest.mark.parametrize(
    ("met", "problem"),
    [
        ({"met_type": 7}, "met_type 7"),
        ({"met_type": 2, "observed_value": float("nan")}, "observed_value nan"),
        ({"met_type": 2, "threshold_operator": 5}, "threshold_operator 5"),
        ({"met_type": 2, "candidate_pods": [b"\x0a\x00"]}, "without a metadata.uid"),
        ({"met_type": 2, "candidate_pods": [b"\x0a\x7f"]}, "ends after"),
    ],
)
def test_what_cannot_be_used_is_a_problem(
    called: Called, plugin: Callable[[str], Plugin], met: dict[str, object], problem: str
) -> None:
    one = registered(called, plugin, "one")
    one.met = met
    found = called.thresholds()["one"]
    assert found.threshold is None
    assert problem in (found.problem or "")


def test_one_that_is_gone_says_so_and_one_of_its_name_takes_its_place(
    called: Called, plugin: Callable[[str], Plugin]
) -> None:
    first = registered(called, plugin, "one")
    first.stop()
    assert called.thresholds()["one"].problem
    second = plugin("second")
    called.caller.register("one", second.socket)
    assert called.thresholds()["one"].problem is None
    called.caller.deregister("one")
    assert called.thresholds() == {}
    assert called.caller.names == ()


def test_registering_and_leaving_costs_no_thread_and_no_descriptor(
    called: Called, plugin: Callable[[str], Plugin]
) -> None:
    one = registered(called, plugin, "one")

    # The server has threads of its own in this process.
    def held() -> tuple[int, int]:
        threads = [each for each in threading.enumerate() if each.name.startswith("plugin ")]
        return len(threads), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of procfs

    for _ in range(5):
        called.thresholds()
    before = held()
    for _ in range(50):
        called.caller.register("one", one.socket)
        called.thresholds()
    until(lambda: held() <= before, lambda: f"threads and descriptors {before}, but {held()}")


SEPARATE = """
import sys, threading
from pathlib import Path
from tests.contract.eviction_plugin import Plugin
plugin = Plugin(Path(sys.argv[1]))
plugin.met = {"met_type": 1, "eviction_scope": "s"}
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def separate(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A plugin in a process of its own."""
    socket = tmp_path / "separate.sock"
    with subprocess.Popen([sys.executable, "-c", SEPARATE, socket], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process, socket
        process.kill()


@pytest.mark.slow
def test_a_plugin_that_is_stopped_mid_call_holds_up_no_other_and_counts_again_when_it_continues(
    called: Called, plugin: Callable[[str], Plugin], separate: tuple[subprocess.Popen[str], Path]
) -> None:
    process, socket = separate
    other = registered(called, plugin, "other")
    other.met = {"met_type": 1, "eviction_scope": "s"}
    called.caller.register("separate", socket)
    assert called.thresholds()["separate"].threshold == Threshold("soft", "s", 0, 0)
    process.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
    try:
        for _ in range(3):
            began_s = time.monotonic()
            answers = called.thresholds()
            assert time.monotonic() - began_s < patience(10)
            assert is_late(answers["separate"])
            assert answers["other"].threshold == Threshold("soft", "s", 0, 0)
    finally:
        process.send_signal(signal.SIGCONT)
    until(lambda: called.thresholds()["separate"].threshold is not None, "it answers again")
    # AND one that is killed is named, and costs no time
    process.kill()
    process.wait()
    assert "UNAVAILABLE" in (called.thresholds()["separate"].problem or "")


@pytest.mark.slow
def test_a_socket_that_is_removed_mid_call_still_brings_its_answer(
    called: Called, plugin: Callable[[str], Plugin]
) -> None:
    one = registered(called, plugin, "one")
    one.met = {"met_type": 1, "eviction_scope": "s"}
    one.hold.clear()
    called.woken.clear()
    called.caller.ask_thresholds(1, PODS)
    until(lambda: one.asked.get("ThresholdMet"), "the call is open")
    one.socket.unlink()
    one.hold.set()
    assert called.woken.wait(patience(5))
    found = called.caller.poll()
    assert found is not None
    assert [each.threshold for each in found.answers] == [Threshold("soft", "s", 0, 0)]


@pytest.mark.slow
def test_a_plugin_that_is_replaced_mid_call_ends_that_call_alone(
    called: Called, plugin: Callable[[str], Plugin]
) -> None:
    one = registered(called, plugin, "one")
    one.hold.clear()
    called.woken.clear()
    called.caller.ask_thresholds(1, PODS)
    until(lambda: one.asked.get("ThresholdMet"), "the call is open")
    second = plugin("second")
    second.met = {"met_type": 2, "eviction_scope": "t"}
    called.caller.register("one", second.socket)
    assert called.woken.wait(patience(5))
    found = called.caller.poll()
    assert found is not None
    assert found.answers[0].problem
    assert called.thresholds()["one"].threshold == Threshold("hard", "t", 0, 0)


def test_a_negative_grace_period_arrives_as_it_is(called: Called, plugin: Callable[[str], Plugin]) -> None:
    one = registered(called, plugin, "one")
    one.evict = [{"pod": PODS["a"], "reason": "r", "deletion_options": {"grace_period_seconds": -5}}]
    one.top = lambda request: {
        "target_pods": list(request.active_pods), "deletion_options": {"grace_period_seconds": -1},
    }  # fmt: skip
    assert called.thresholds()["one"].evict == (EvictAsked("a", "r", grace_s=-5),)
    asks = [TopAsk("one", "s", 1, ("a",))]
    top = called.answers(lambda number: called.caller.ask_tops(number, asks, PODS))["one"]
    assert top.top == TopPods(("a",), -1)


@pytest.mark.parametrize("called", [10.0], ids=["patient"], indirect=True)  # 3 MB, however busy this machine is
def test_pods_that_do_not_fit_into_one_window_arrive(called: Called, plugin: Callable[[str], Plugin]) -> None:
    one = registered(called, plugin, "one")
    pods = {f"u{number}": pod(f"u{number}", b"\x9a\x06\x82\x80\x01" + bytes(0x4002)) for number in range(200)}
    called.answers(lambda number: called.caller.ask_thresholds(number, pods))
    assert list(one.asked["ThresholdMet"][0].active_pods) == list(pods.values())
