"""Random lives of a node hold what `Life` asks of them; `python -m tests.simulate` lives others."""

from __future__ import annotations

import pytest

from tests.simulate import simulate

_LIVES = 16


@pytest.mark.story
@pytest.mark.parametrize("seed", range(_LIVES))
def test_what_must_hold_in_a_life_does(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    problem, _ = simulate(seed, seconds=60, lives=1)
    assert problem is None, problem
