"""What plugins outside the process answer, valid, odd and too much; and what a plugin of ours answers, read back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kube.clients.grpc import GrpcError
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.plugins.messages import (
    GREATER_THAN,
    HARD_MET,
    LESS_THAN,
    NODE_CONDITION,
    PLUGIN_MESSAGES,
    PLUGIN_TYPE,
    REGISTRATION_MESSAGES,
    SOFT_MET,
    VERSION,
)  # fmt: skip
from koordebpf.strategies.katalyst.outside import thresholds_answer, top_answer
from koordebpf.strategies.katalyst.registry import PluginAccess, Refusal, qualified, sockets_below, try_plugin
from koordebpf.strategies.katalyst.serve import by_uid, plugin_info, threshold_message, top_message
from koordebpf.strategies.katalyst.values import Condition, EvictAsked, Threshold, TopPods

MET = {
    "threshold_value": 0.8, "observed_value": 0.9, "threshold_operator": GREATER_THAN, "met_type": HARD_MET,
    "eviction_scope": "memory", "grace_period_seconds": 5,
}  # fmt: skip
NO_PODS = encode(PLUGIN_MESSAGES, "GetEvictPodsResponse", {})


def met(**changed: Any) -> bytes:
    return encode(PLUGIN_MESSAGES, "ThresholdMetResponse", {**MET, **changed})


def pod(uid: str) -> bytes:
    """Return a v1.Pod with metadata.uid: fields 1 and 5 of protobuf."""
    body = b"\x2a" + bytes([len(uid)]) + uid.encode()
    return b"\x0a" + bytes([len(body)]) + body


def evict(*pods: dict[str, Any], **more: Any) -> bytes:
    return encode(PLUGIN_MESSAGES, "GetEvictPodsResponse", {"evict_pods": list(pods), **more})


def test_a_threshold_that_is_met_is_a_value():
    condition = {"condition_type": NODE_CONDITION, "effects": ["NoSchedule"], "condition_name": "Full"}
    condition["met_condition"] = True
    answer = thresholds_answer("p", met(condition=condition, candidate_pods=[pod("a"), pod("b"), pod("a")]), NO_PODS)
    assert answer.problem is None
    assert answer.threshold == Threshold(
        "hard", "memory", 0.8, 0.9, "greater_than", 5, Condition("Full", "node", ("NoSchedule",)), ("a", "b")
    )
    soft = thresholds_answer("p", met(met_type=SOFT_MET, threshold_operator=LESS_THAN), NO_PODS).threshold
    assert soft is not None
    assert (soft.met, soft.operator, soft.condition, soft.candidates) == ("soft", "less_than", None, ())


def test_what_is_not_met_has_no_threshold_and_a_condition_that_is_not_met_is_none():
    answer = thresholds_answer("p", b"", b"")
    assert (answer.threshold, answer.evict, answer.conditions, answer.problem) == (None, (), (), None)
    found = thresholds_answer("p", met(condition={"condition_name": "Full"}), NO_PODS).threshold
    assert found is not None and found.condition is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"met_type": 3}, "met_type 3"),
        ({"threshold_value": float("nan")}, "threshold_value nan"),
        ({"observed_value": float("inf")}, "observed_value inf"),
        ({"threshold_operator": 2}, "threshold_operator 2"),
        ({"candidate_pods": [b""]}, "without a metadata.uid"),
        ({"candidate_pods": [pod("a")] * 2001}, "2001 pods are more than 2000"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_problem_and_the_other_call_counts(changed: dict[str, Any], said: str):
    answer = thresholds_answer("p", met(**changed), evict({"pod": pod("a"), "reason": "full"}))
    assert answer.threshold is None
    assert answer.problem is not None and answer.problem.startswith("ThresholdMet: ") and said in answer.problem
    assert [each.uid for each in answer.evict] == ["a"]


def test_as_many_pods_as_there_may_be_are_taken():
    answer = thresholds_answer("p", met(candidate_pods=[pod(str(at)) for at in range(2000)]), NO_PODS)
    assert answer.threshold is not None and len(answer.threshold.candidates) == 2000


def test_both_calls_may_fail():
    answer = thresholds_answer("p", OSError("reset"), b"\xff")
    assert answer.problem is not None
    assert answer.problem.startswith("ThresholdMet: reset; GetEvictPods: ")


def test_pods_that_are_to_be_evicted():
    asked = [
        {"pod": pod("a"), "reason": "r" * 500, "force_evict": True, "deletion_options": {"grace_period_seconds": 0}},
        {"reason": "no pod"},
        {"pod": pod("b"), "reason": "s" * 501},
    ]
    effects = [f"e{number}" for number in range(12)]
    condition = {"condition_name": "Full", "met_condition": True, "effects": effects, "condition_type": 7}
    answer = thresholds_answer("p", b"", evict(*asked, condition=condition))
    assert answer.evict == (EvictAsked("a", "r" * 500, True, 0), EvictAsked("b", "s" * 500 + "…", False, None))
    assert answer.conditions == (Condition("Full", "cnr", tuple(effects[:10])),)
    assert "2001 pods" in (thresholds_answer("p", b"", evict(*[asked[0]] * 2001)).problem or "")


def test_the_pods_at_the_top_are_those_of_our_own_message():
    pods = {uid: pod(uid) for uid in "abc"}
    for top in (TopPods(("b", "a"), 30), TopPods(("c",), 0), TopPods((), None)):
        assert top_answer("p", top_message(top, pods)).top == top
    failed = top_answer("p", OSError("late"))
    assert (failed.top, failed.problem) == (TopPods(()), "GetTopEvictionPods: late")


def test_what_a_plugin_of_ours_answers_is_read_as_it_was():
    condition = Condition("Full", "cnr", ("reclaimed_cores/NoSchedule",))
    for threshold in (
        Threshold("soft", "memory", 1.0, 2.0, "less_than", 7, condition),
        Threshold("hard", "cpu", 3.0, 2.0, "greater_than", 0, Condition("Low", "node")),
    ):
        assert thresholds_answer("p", threshold_message(threshold), b"").threshold == threshold
    assert thresholds_answer("p", threshold_message(None), b"").threshold is None
    info = decode(REGISTRATION_MESSAGES, "PluginInfo", plugin_info("ours"))
    assert (info["type"], info["name"], list(info["supported_versions"])) == (PLUGIN_TYPE, "ours", [VERSION])
    assert by_uid(["a", None], [b"1", b"2"]) == {"a": b"1"}


class TestSockets:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Path]:
        kept = []
        for name in ("one.sock", "below/two.sock", ".hidden.sock", ".dir/three.sock"):
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            kept.append(socket.socket(socket.AF_UNIX))
            kept[-1].bind(str(path))
        (tmp_path / "file").touch()
        (tmp_path / "link.sock").symlink_to(tmp_path / "one.sock")
        (tmp_path / "link").symlink_to(tmp_path / "below")
        yield tmp_path
        for each in kept:
            each.close()

    def test_those_below_count_and_links_and_dots_do_not(self, folder: Path):
        assert set(sockets_below(folder)) == {folder / "one.sock", folder / "below" / "two.sock"}
        assert sockets_below(folder / "gone") == {}

    def test_one_that_is_made_again_is_another(self, folder: Path):
        before = sockets_below(folder)[folder / "one.sock"]
        assert sockets_below(folder)[folder / "one.sock"] == before
        (folder / "one.sock").rename(folder / "old.sock")
        with socket.socket(socket.AF_UNIX) as again:
            again.bind(str(folder / "one.sock"))
            assert sockets_below(folder)[folder / "one.sock"] != before

    def test_a_folder_that_fills_up_is_cut(self, tmp_path: Path):
        for number in range(1002):
            with socket.socket(socket.AF_UNIX) as each:
                each.bind(str(tmp_path / str(number)))
        assert len(sockets_below(tmp_path)) == 1000

    def test_of_more_than_2000_entries_those_near_the_top_are_looked_at(self, folder: Path):
        (folder / "below" / "full").mkdir()
        with socket.socket(socket.AF_UNIX) as late:
            (folder / "below" / "full" / "end").mkdir()
            late.bind(str(folder / "below" / "full" / "end" / "late.sock"))
            assert folder / "below" / "full" / "end" / "late.sock" in sockets_below(folder)
            for number in range(2_000):
                (folder / "below" / "full" / str(number)).touch()
            assert set(sockets_below(folder)) == {folder / "one.sock", folder / "below" / "two.sock"}


class Channel:
    """Answers `GetInfo` with this message."""

    def __init__(self, **info: Any) -> None:
        self.message = encode(REGISTRATION_MESSAGES, "PluginInfo", info)

    def call(self, method: str, messages: list[bytes], timeout_s: float) -> tuple[bytes]:
        assert method.endswith("/GetInfo")
        return (self.message,)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"type": "CSIPlugin"}, "its type 'CSIPlugin' is not"),
        ({"name": ""}, "is no name of at most 100"),
        ({"name": "x" * 101}, "is no name of at most 100"),
        ({"name": "a\nb"}, "is no name of at most 100"),
        ({"name": "inside"}, "inside is a plugin inside this agent"),
        ({"supported_versions": []}, "it supports no version, not"),
        ({"supported_versions": ["v9"]}, "it supports v9, not"),
    ],
)
def test_a_plugin_that_does_not_qualify_is_refused_before_it_is_called(changed: dict[str, Any], why: str):
    channel: Any = Channel(**{"type": PLUGIN_TYPE, "name": "theirs", "supported_versions": [VERSION], **changed})
    with pytest.raises(Refusal) as refused:
        qualified(channel, Path("/none.sock"), {"inside"}, PluginAccess())
    assert why in str(refused.value)


def test_a_socket_without_a_server_does_not_answer(tmp_path: Path):
    with pytest.raises(GrpcError, match=r"none\.sock"):
        try_plugin(tmp_path / "none.sock", (), PluginAccess())


def test_a_grace_period_has_its_number_of_katalyst_on_the_wire() -> None:
    evict = {"evict_pods": [{"reason": "r", "deletion_options": {"grace_period_seconds": 30}}]}
    assert encode(PLUGIN_MESSAGES, "GetEvictPodsResponse", evict) == b"\x0a\x07\x12\x01r\x1a\x02\x08\x1e"
