"""Agents of many nodes, asked side by side."""

from __future__ import annotations

import threading

import pytest

from koordebpf.errors import KubeError
from koordebpf.kube.cache.objects import ObjectMeta
from koordebpf.kube.remote.pods import RemotePod
from koordebpf.tools.cluster.asking import Unanswered, ask_all


def agents(count: int) -> dict[str, RemotePod]:
    return {f"n{number:02}": RemotePod(ObjectMeta(f"agent-{number}")) for number in range(count)}


@pytest.mark.parametrize(("count", "are_side_by_side"), [(32, True), (33, False)])
def test_32_are_asked_at_the_same_time(count: int, are_side_by_side: bool) -> None:
    everyone = threading.Barrier(count)

    def is_met(_: RemotePod) -> bool:
        try:
            everyone.wait(30 if are_side_by_side else 0.1)
        except threading.BrokenBarrierError:
            return False
        return True

    found = ask_all(agents(count), is_met, within_s=60)
    assert list(found.given.items()) == [(name, are_side_by_side) for name in agents(count)]
    assert found.missing == ()


def test_who_fails_or_is_late_is_named_and_costs_no_other_answer() -> None:
    asked, late = agents(3), threading.Event()
    first, second, _ = asked.values()

    def answer(pod: RemotePod) -> int:
        if pod is first:
            raise KubeError("no route")
        return late.wait(5) if pod is second else 7

    found = ask_all(asked, answer, within_s=0.2)
    late.set()
    assert found.given == {"n02": 7}
    assert found.missing == (Unanswered("n00", "no route"), Unanswered("n01", "no answer within 0.2 s"))
