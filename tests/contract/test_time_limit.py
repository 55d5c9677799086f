"""Which tests a run leaves out when its time is short."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import time_limit

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"slow": ("slow",), "story": ("slow", "story"), "quick": ()}


@dataclass
class Marked:
    """As much of a test as decides whether it is left out."""

    nodeid: str
    marks: tuple[str, ...]

    def get_closest_marker(self, name: str) -> object | None:
        return name if name in self.marks else None


class TestPace:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(time_limit.time, "time", lambda: self.now_s)
        monkeypatch.setattr(time_limit.random, "uniform", lambda low, high: high)

    def left_out(self, test_s: float, limit_s: float) -> list[str]:
        """Return which of ten slow tests, with one of every other kind between them, are left out."""
        items = [Marked(f"{at}{kind}.py::test", marks) for at in range(10) for kind, marks in KINDS.items()]
        pace, left = time_limit.Pace(items, self.now_s + limit_s), []
        for item in items:
            if pace.is_left_out(item.nodeid):
                left.append(item.nodeid)
            elif item.marks == KINDS["slow"]:
                self.now_s += test_s
        return left

    def test_with_enough_time_none_is_left_out(self) -> None:
        assert self.left_out(1, 10.5) == []

    def test_with_half_the_time_every_other_one_is_left_out(self) -> None:
        assert self.left_out(1, 5) == [f"{at}slow.py::test" for at in (1, 3, 5, 7, 9)]

    def test_without_time_all_slow_ones_are_left_out_and_no_other(self) -> None:
        assert self.left_out(1, 0) == [f"{at}slow.py::test" for at in range(10)]

    def test_those_of_a_module_run_together_and_so_do_their_second_tries(self) -> None:
        items = [Marked(f"{module}.py::test_{at}", ("slow",)) for module in "abcd" for at in range(2)]
        pace, first = time_limit.Pace(items, 20), [item.nodeid for item in items]
        tries = [first[0], *first[:2], first[1], *first[2:], first[-1]]
        left = []
        for nodeid in tries:
            left.append(pace.is_left_out(nodeid))
            self.now_s += 0 if left[-1] else 6
        assert left == [False] * 4 + [True] * 7


def test_a_folder_that_is_not_named_has_no_limit() -> None:
    limits = "host=1764320000 vm=1764323000"
    assert [time_limit.until_s(name, limits) for name in ("host", "vm", "unit")] == [1764320000, 1764323000, None]
    with pytest.raises(ValueError):
        time_limit.until_s("host", "host=soon")


def test_what_boots_machines_does_not_take_the_limits_from_itself() -> None:
    code = "import os, tests.vm.__main__; print(os.environ['KOORDEBPF_TESTS_UNTIL'])"
    environment = os.environ | {time_limit.VARIABLE: "vm=1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert done.stdout == b"vm=1\n"
