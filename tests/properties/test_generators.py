"""The generated nodes reach what the properties judge: a plan without victims holds every law about victims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from koordebpf.policy.decide import decide
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import Frame
from tests.properties import test_cpu_features, test_decision, test_decision_quality, test_memory_features

_EXAMPLES = 200
_LEAST_WITH_ONE, _LEAST_WITH_TWO = 0.6, 0.25


def victims_in(examples: st.SearchStrategy[Any]) -> list[int]:
    counts: list[int] = []

    @settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(examples)
    def count(example: Any) -> None:
        view = view_of_frame(example) if isinstance(example, Frame) else example
        counts.append(len(decide(view).victims))

    count()
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    "examples",
    [
        test_decision.frames,
        test_memory_features.frames,
        test_cpu_features.nodes,
        test_decision_quality.frames,
        lambda: test_decision_quality.frames(dense=True),
    ],
    ids=["decision", "memory features", "CPU features", "quality", "quality, dense"],
)
def test_most_nodes_have_a_victim_and_many_have_two(examples: Callable[[], st.SearchStrategy[Any]]) -> None:
    counts = victims_in(examples())
    with_one, with_two = (sum(count >= least for count in counts) / len(counts) for least in (1, 2))
    assert with_one >= _LEAST_WITH_ONE, f"{with_one:.0%} of {len(counts)} have a victim"
    assert with_two >= _LEAST_WITH_TWO, f"{with_two:.0%} of {len(counts)} have two"
