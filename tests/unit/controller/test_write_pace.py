"""When the next write of batch and mid resources may be sent."""

from __future__ import annotations

import pytest

from koordebpf.controller.batch.publish import RATE_PER_S, WritePace
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.units import NS_PER_S

START_NS = 1000 * NS_PER_S
REFUSED = KubeError("422", retry=False)


def taken(pace: WritePace, now_ns: int, tries: int = 200) -> int:
    return sum(pace.admit(f"n{number}", now_ns) for number in range(tries))


def test_a_second_of_writes_is_sent_at_once_and_more_as_time_passes() -> None:
    pace = WritePace()
    assert taken(pace, START_NS) == RATE_PER_S
    assert taken(pace, START_NS + NS_PER_S // 10) == RATE_PER_S // 10
    assert taken(pace, START_NS + 3600 * NS_PER_S) == RATE_PER_S


@pytest.mark.parametrize(
    ("error", "rest_s"),
    [
        (KubeDenied("403", "patch", "nodes"), 30),
        (KubeBusy("429", 7.0), 7),
        (KubeBusy("503", None), 5),
        (KubeError("500"), 1),
        (REFUSED, 0),
        (KubeConflict("409"), 0),
        (KubeGone("404", 404), 0),
    ],
    ids=repr,
)
def test_what_would_fail_for_all_rests_all(error: KubeError, rest_s: int) -> None:
    pace = WritePace()
    pace.after(error, "n1", START_NS)
    until_ns = START_NS + rest_s * NS_PER_S
    assert not rest_s or not pace.admit("n2", until_ns - 1)
    assert pace.admit("n2", until_ns)


def test_what_fails_for_one_node_waits_longer_each_time_and_a_success_forgets_it() -> None:
    pace, now_ns = WritePace(), START_NS
    for longest_s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300):
        pace.after(REFUSED, "n1", now_ns)
        assert not pace.admit("n1", now_ns + longest_s * NS_PER_S // 2 - 1)
        now_ns += longest_s * NS_PER_S
        assert pace.admit("n1", now_ns)
    pace.succeeded("n1")
    assert (pace.admit("n1", now_ns), pace.problems) == (True, ())
    pace.after(REFUSED, "n1", now_ns)
    assert pace.admit("n1", now_ns + NS_PER_S)


def test_a_write_that_another_overtook_is_no_failure() -> None:
    pace = WritePace()
    for error in (KubeConflict("409"), KubeGone("404", 404)):
        pace.after(error, "n1", START_NS)
    assert (pace.failed, pace.problems) == (0, ())


def test_a_node_that_is_gone_is_forgotten_and_five_reasons_are_said() -> None:
    pace = WritePace()
    for number in range(7):
        pace.after(REFUSED, f"n{number}", START_NS)
    assert pace.problems == tuple(f"Node n{number}: 422" for number in range(5))
    pace.forget_all_but(["n6"])
    assert (pace.problems, pace.failed) == (("Node n6: 422",), 7)
    assert pace.admit("n0", START_NS)
