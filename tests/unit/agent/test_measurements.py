"""What a part of a round measures, and what is logged where it cannot."""

from __future__ import annotations

import pytest

from koordebpf.agent.strategies.measurements import Measurements
from koordebpf.errors import CgroupGone, KernelFileError, KoordebpfError


def test_it_is_measured_in_rounds_and_not_in_samples() -> None:
    asked: list[int] = []
    measurements = Measurements("it was", lambda now_ns: asked.append(now_ns) or now_ns)
    assert (measurements.take(1, is_sample=True), measurements.take(2, is_sample=False)) == (None, 2)
    assert asked == [2]


def test_an_error_is_logged_once_until_it_changes_or_ends(caplog: pytest.LogCaptureFixture) -> None:
    gone, garbage = CgroupGone("/cg"), KernelFileError("/cg/file", "x", "must be a number")
    left: list[KoordebpfError | None] = [gone, gone, garbage, None, garbage]

    def measure(now_ns: int) -> int:
        if (error := left.pop(0)) is not None:
            raise error
        return now_ns

    measurements = Measurements("block IO was", measure)
    assert [measurements.take(at, is_sample=False) for at in range(5)] == [None, None, None, 3, None]
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"block IO was not measured for: {error}" for error in (gone, garbage, garbage)]
