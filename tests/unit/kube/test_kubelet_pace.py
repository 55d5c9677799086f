"""How long the kubelet source waits between two questions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koordebpf.errors import KubeBusy, KubeDenied, KubeError
from koordebpf.kube.sources import kubelet as module
from koordebpf.kube.sources.kubelet import KubeletSource
from tests.support.patience import patience
from tests.support.played_waits import PlayedWaits

PODS = msgspec.json.encode({"kind": "PodList", "items": [{"metadata": {"name": "a", "uid": "a"}}]})


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    def wait(most: int, error: KubeError | None = None) -> list[float]:
        @contextlib.contextmanager
        def parts(*_: Any, **__: Any) -> Iterator[Iterator[bytes]]:
            if error is not None:
                raise error
            yield iter([PODS])

        waits = PlayedWaits(most)
        waits.play_in(monkeypatch, module)
        transport: Any = SimpleNamespace(parts=parts, close=lambda: None)
        source = KubeletSource(transport, "n1", period_s=10.0)
        source.start(lambda: None)
        assert waits.ended.wait(patience(10))
        source.close()
        return waits.seconds

    return wait


def test_kubelets_of_a_cluster_are_not_asked_in_step_but_each_within_a_tenth_of_the_period(waited) -> None:
    seconds = waited(200)
    assert all(9.0 <= each <= 11.0 for each in seconds)
    assert min(seconds) < 9.5 and max(seconds) > 10.5
    assert len(set(seconds)) > 100


@pytest.mark.parametrize(("asked_s", "taken_s"), [(20.0, 20.0), (60.0, 60.0), (300.0, 60.0)])
def test_a_kubelet_may_put_a_question_off_by_a_minute_at_most(waited, asked_s: float, taken_s: float) -> None:
    assert waited(1, KubeBusy("429", asked_s)) == [taken_s]


def test_one_that_asks_for_no_time_is_left_alone_for_ever_longer(waited) -> None:
    seconds = waited(12, KubeBusy("429", 0.0))
    assert 0.25 <= seconds[0] <= 0.5
    assert 15.0 <= seconds[-1] <= 30.0


def test_one_that_refuses_is_asked_once_a_minute_and_not_by_all_nodes_at_once(waited) -> None:
    seconds = waited(50, KubeDenied("403", "get", "nodes/proxy"))
    assert all(60.0 <= each <= 66.0 for each in seconds)
    assert len(set(seconds)) > 25
