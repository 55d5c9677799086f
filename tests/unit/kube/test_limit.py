"""When one exchange with an API server has to be over."""

from __future__ import annotations

import math

import pytest

from koordebpf.kube.http.deadlines import Limit


@pytest.mark.parametrize(
    ("silence_s", "is_over", "is_silent"),
    [(1.0, True, True), (1.0, False, False), (math.inf, True, False), (100.0, True, False)],
)
def test_only_what_was_ended_before_its_time_was_silent(silence_s: float, is_over: bool, is_silent: bool) -> None:
    limit = Limit(10.0, silence_s)
    limit.is_over = is_over
    assert limit.is_silent is is_silent


def test_a_sign_of_life_puts_off_the_end_and_never_beyond_its_time() -> None:
    limit = Limit(10.0, silence_s=1.0)
    before_s = limit.ends_s
    limit.alive()
    assert limit.ends_s >= before_s
    bounded = Limit(10.0, silence_s=100.0)
    before_s = bounded.ends_s
    bounded.alive()
    assert bounded.ends_s == before_s
