"""When the node is marked, and what the thread that marks it does with a server that says no."""

from __future__ import annotations

import logging
import threading
from collections import deque
from datetime import datetime

import pytest

from koordebpf.act import taint
from koordebpf.act.taint import NodeMarker
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError
from koordebpf.kube.clients.taints import Mark
from koordebpf.policy.detect.verdict import Need, UseEvidence, Verdict
from koordebpf.policy.taint import MarkTiming, is_memory_short
from koordebpf.state.amount import MEMORY, USED, dimension
from koordebpf.strategies.katalyst.taints import Tainter, Taints
from tests.contract.apiserver import until
from tests.support.patience import patience
from tests.support.played_waits import PlayedCondition

CALM_NS = 60


def look(timing: MarkTiming, now_ns: int, *, evicted: bool = False, short: bool = False, awaits: bool = False):
    return timing.after(evicted=evicted, is_short=short, awaits=awaits, now_ns=now_ns, calm_ns=CALM_NS)


class TestTiming:
    ON = MarkTiming(is_on=True)

    @pytest.mark.parametrize("short", [False, True])
    @pytest.mark.parametrize("awaits", [False, True])
    def test_nothing_but_an_eviction_puts_it_on(self, short: bool, awaits: bool) -> None:
        assert not look(MarkTiming(), 1, short=short, awaits=awaits).is_on
        assert look(MarkTiming(), 1, evicted=True, short=short, awaits=awaits) == self.ON

    @pytest.mark.parametrize("reason", ["short", "awaits"])
    def test_it_stays_however_long_there_is_a_reason(self, reason: str) -> None:
        timing = self.ON
        for now_ns in range(0, 100 * CALM_NS, CALM_NS):
            timing = look(timing, now_ns, short=reason == "short", awaits=reason == "awaits")
            assert timing.is_on

    def test_it_is_removed_when_it_was_calm_for_so_long(self) -> None:
        timing = look(self.ON, 1000)
        assert timing == MarkTiming(is_on=True, calm_since_ns=1000)
        assert look(timing, 1000 + CALM_NS - 1).is_on
        assert look(timing, 1000 + CALM_NS) == MarkTiming()

    @pytest.mark.parametrize("reason", ["short", "awaits", "evicted"])
    def test_the_calm_restarts(self, reason: str) -> None:
        timing = look(look(self.ON, 1000), 1050, **{reason: True})
        assert timing == self.ON
        timing = look(timing, 1060)
        assert look(timing, 1060 + CALM_NS - 1).is_on
        assert not look(timing, 1060 + CALM_NS).is_on

    def test_without_calm_it_is_removed_at_once(self) -> None:
        assert not self.ON.after(evicted=False, is_short=False, awaits=False, now_ns=5, calm_ns=0).is_on


def by_use(used_bytes: int, *, fires: bool = False) -> Verdict:
    evidence = UseEvidence(MEMORY, of=100, used=used_bytes, used_percent=used_bytes, lower=75)
    return Verdict("BEMemoryEvict", fires, "", evidence=evidence)


class TestShort:
    def test_above_the_lower_mark_it_is_and_on_it_not(self) -> None:
        assert not is_memory_short([by_use(75)])
        assert is_memory_short([by_use(76)])

    def test_what_was_not_judged_is_no_reason(self) -> None:
        assert not is_memory_short([Verdict("BEMemoryEvict", False, "off", skipped="disabled")])

    def test_requests_are_while_their_feature_fires(self) -> None:
        need = Need(dimension("kubernetes.io/batch-memory"), 1, 11, 10)
        assert is_memory_short([Verdict("MemoryAllocatableEvict", True, "", needs=(need,))])
        assert not is_memory_short([Verdict("MemoryAllocatableEvict", False, "")])

    def test_cpu_is_another_matter(self) -> None:
        assert not is_memory_short([Verdict("CPUEvict", True, "")])

    def test_one_feature_is_enough(self) -> None:
        assert is_memory_short([by_use(10), Verdict("MemoryEvict", True, "", needs=(Need(USED, 1, 1, 1),))])


class Node:
    """A Node behind the two calls; `errors` are raised before anything is done, the first one first."""

    node_name = "n1"

    def __init__(self, *, is_marked: bool = False) -> None:
        self.is_marked = is_marked
        self.errors: deque[Exception] = deque()
        self.asked: list[str] = []
        self.is_closed = False
        self.let_through = threading.Event()
        self.let_through.set()

    def put(self, mark: Mark, *, at: datetime, timeout_s: float) -> bool:
        return self._make(mark, is_marked=True)

    def remove(self, *, timeout_s: float) -> bool:
        return self._make("remove", is_marked=False)

    def close(self) -> None:
        self.is_closed = True
        self.let_through.set()

    def _make(self, what: str, *, is_marked: bool) -> bool:
        self.asked.append(what)
        self.let_through.wait()
        if self.is_closed:
            raise KubeError("closed")
        if self.errors:
            raise self.errors.popleft()
        has_changed, self.is_marked = self.is_marked is not is_marked, is_marked
        return has_changed


class TestMarker:
    def test_a_predecessors_mark_is_removed_at_once(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        node = Node(is_marked=True)
        marker = NodeMarker(node, "taint")
        until(lambda: not node.is_marked, "removed")
        marker.close()
        assert node.asked == ["remove"]
        assert caplog.messages == ["node n1 is without the mark that was left on it"]

    def test_a_mark_that_is_made_before_a_predecessors_could_be_removed_is_said_to_be_one(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        node = Node()
        node.let_through.clear()
        node.errors.append(KubeConflict("409"))
        marker = NodeMarker(node, "taint")
        until(lambda: node.asked == ["remove"], "on its way")
        marker.wish(True)
        node.let_through.set()
        until(lambda: node.is_marked, "marked")
        marker.close()
        assert caplog.messages == ["node n1 is marked by a taint", "node n1 is without its taint"]

    def test_one_request_for_each_change_of_mind(self) -> None:
        node = Node()
        marker = NodeMarker(node, "condition")
        until(lambda: node.asked == ["remove"], "looked")
        for _ in range(100):
            marker.wish(True)
        until(lambda: node.is_marked, "marked")
        for _ in range(100):
            marker.wish(False)
        until(lambda: not node.is_marked, "removed")
        marker.close()
        assert node.asked == ["remove", "condition", "remove"]

    def test_the_end_takes_it_away(self) -> None:
        node = Node()
        marker = NodeMarker(node, "taint")
        marker.wish(True)
        until(lambda: node.is_marked, "marked")
        until(lambda: marker.problem is None, "without a problem, once it is so")
        marker.close()
        assert not node.is_marked
        assert node.is_closed

    def test_conflicts_and_failures_are_tried_again(self) -> None:
        node = Node()
        node.errors += [KubeConflict("409"), KubeError("500"), KubeConflict("409")]
        marker = NodeMarker(node, "taint")
        marker.wish(True)
        until(lambda: node.is_marked, "marked")
        marker.close()
        assert not node.is_marked

    @pytest.mark.parametrize(
        ("error", "bounds_s"),
        [
            (KubeBusy("429", 7.0), [(7.0, 7.0)] * 3),  # as long as it asks for
            (KubeBusy("429", None), [(0.1, 0.2), (0.2, 0.4), (0.4, 0.8)]),
            (KubeConflict("409"), [(0.1, 0.2), (0.2, 0.4), (0.4, 0.8)]),
            (KubeError("500", retry=True), [(0.1, 0.2), (0.2, 0.4), (0.4, 0.8)]),
            (KubeError("422", retry=False), [(5.0, 10.0), (10.0, 20.0), (20.0, 40.0)]),
            (KubeDenied("403", "patch", "nodes"), [(5.0, 10.0), (10.0, 20.0), (20.0, 40.0)]),
        ],
    )
    def test_before_the_next_try_it_waits_as_asked_else_for_ever_longer_and_most_where_no_retry_helps(
        self, error: KubeError, bounds_s: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits = PlayedCondition()
        waits.play_in(monkeypatch, taint)
        node = Node()
        node.errors += [error] * 3
        marker = NodeMarker(node, "taint")
        until(lambda: node.asked == ["remove"] * 4, "made at last")
        until(lambda: marker.problem is None, "without a problem")
        node.errors += [error]
        marker.wish(True)
        until(lambda: node.is_marked, "marked")
        marker.close()
        for waited_s, (least_s, most_s) in zip(waits.seconds, [*bounds_s, bounds_s[0]], strict=True):
            assert waited_s is not None and least_s <= waited_s <= most_s

    def test_a_change_of_mind_is_asked_for_at_once_however_long_the_server_asked_to_wait(self) -> None:
        node = Node()
        node.errors.append(KubeBusy("429", 3600.0))
        marker = NodeMarker(node, "taint")
        until(lambda: marker.problem, "put off")
        marker.wish(True)
        until(lambda: node.is_marked, "marked")
        marker.close()
        assert node.asked == ["remove", "taint", "remove"]

    def test_after_a_request_without_answer_it_looks_again(self) -> None:
        node = Node()
        marker = NodeMarker(node, "taint")
        until(lambda: node.asked == ["remove"], "looked")
        node.let_through.clear()
        marker.wish(True)
        until(lambda: node.asked[-1] == "taint", "on its way")
        marker.wish(False)
        node.errors.append(KubeError("no answer in time, the outcome is unknown"))
        node.is_marked = True  # it was carried out all the same
        node.let_through.set()
        until(lambda: not node.is_marked, "removed")
        marker.close()

    def test_a_refusal_is_said_once_and_the_end_does_not_wait(self, caplog: pytest.LogCaptureFixture) -> None:
        node = Node()
        node.errors += [KubeDenied("patch nodes: 403 Forbidden", "patch", "nodes") for _ in range(100)]
        marker = NodeMarker(node, "taint")
        marker.wish(True)
        until(lambda: "taint" in node.asked, "asked")
        marker.wish(False)
        until(lambda: len(node.asked) >= 3, "asked again after a change of mind")
        assert marker.problem == "patch nodes: 403 Forbidden: allow patch on nodes"
        marker.close()
        assert len(node.asked) <= 4
        (said,) = caplog.messages
        assert said.endswith("patch nodes: 403 Forbidden: allow patch on nodes")

    @pytest.mark.parametrize("is_wished", [False, True])
    def test_the_end_does_not_wait_for_a_server_that_refuses(
        self, is_wished: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(NodeMarker, "close_s", 3600.0)
        node = Node()
        node.errors += [KubeDenied("403", "patch", "nodes") for _ in range(100)]
        marker = NodeMarker(node, "taint")
        until(lambda: marker.problem, "refused")
        marker.wish(is_wished)
        closing = threading.Thread(target=marker.close, daemon=True)
        closing.start()
        closing.join(patience(4))  # shorter than any wait after a refusal
        assert not closing.is_alive()

    def test_a_server_that_hangs_delays_no_other(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(NodeMarker, "close_s", 0.05)
        node = Node()
        node.let_through.clear()
        marker = NodeMarker(node, "taint")
        until(lambda: node.asked, "asked")
        marker.wish(True)  # returns
        marker.close()  # cuts the connection
        assert node.is_closed
        assert caplog.messages[-1] == "node n1 may keep a taint until an agent starts there"


class TaintedNode:
    node_name = "n1"

    def __init__(self) -> None:
        self.there: Taints = frozenset({("left", "NoSchedule")})

    def set_to(self, wanted: Taints, *, timeout_s: float) -> bool:
        has_changed, self.there = self.there != wanted, wanted
        return has_changed

    def close(self) -> None:
        """Nothing waits."""


def test_each_change_of_the_nodes_taints_is_said_by_their_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node, both = TaintedNode(), frozenset({("b", "NoExecute"), ("a", "NoSchedule")})
    tainter = Tainter(node)
    until(lambda: not node.there, "what was left is gone")
    tainter.wish(both)
    until(lambda: node.there == both, "both taints")
    tainter.close()
    of = "of Katalyst's conditions"
    assert caplog.messages == [
        f"node n1 has the taints (none) {of}",
        f"node n1 has the taints a:NoSchedule, b:NoExecute {of}",
        f"node n1 has the taints (none) {of}",
    ]
