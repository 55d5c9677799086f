"""Until when a run begins what it may leave out: slow tests, virtual machines, the node's stories.

`KOORDEBPF_TESTS_UNTIL="host=1764320000 vm=1764323000"`: seconds since the epoch, by folder; one that is not named has
no limit. Slow tests are left out here and there, each time others, so that a few runs have them all: those of a module
together, since one may need what another has made. Stories and what is not slow always run. What was left out is
counted as skipped, and the run's end says so.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from tests import slow

VARIABLE = "KOORDEBPF_TESTS_UNTIL"
LEFT_OUT = "left out: no time is left"
_OF_OTHERS = 0.05  # what a test that is not slow takes, of what a slow one does
_JITTER = 0.1  # of the whole time


class Item(Protocol):
    """What is used of pytest.Item."""

    nodeid: str

    def get_closest_marker(self, name: str) -> object | None:
        """Return a mark, or None."""


def until_s(folder: str, text: str | None = None) -> float | None:
    """Return since the epoch until when a folder begins what it may leave out, or None: it has no limit.

    Raises:  ValueError: the variable is not as above.
    """
    limits = dict(each.split("=") for each in (os.environ.get(VARIABLE, "") if text is None else text).split())
    return float(limits[folder]) if folder in limits else None


def is_over(folder: str) -> bool:
    """Tell whether a folder has a limit, which is past."""
    limit_s = until_s(folder)
    return limit_s is not None and time.time() > limit_s


def shares(weights: Iterable[float]) -> list[float]:
    """Return which share of all comes before each."""
    sums = [0.0, *itertools.accumulate(weights)]
    return [each / max(sums[-1], 1e-9) for each in sums[:-1]]


class Pace:
    """The modules whose slow tests are left out: those whose turn comes later than it should, to end in time.

    That is decided when the first of its slow tests is to run, and holds for the others, and for second tries.
    """

    def __init__(self, items: Sequence[Item], limit_s: float) -> None:
        weights = [1 if _may_be_left_out(item) else _OF_OTHERS for item in items]
        found = zip(items, shares(weights), strict=True)
        self._shares = {item.nodeid: share for item, share in found if _may_be_left_out(item)}
        self._began_s, self._limit_s = time.time(), limit_s
        self._modules: dict[str, bool] = {}  # whether its slow tests are left out

    def is_left_out(self, nodeid: str) -> bool:
        """Tell whether a test is left out, if its turn is now."""
        share = self._shares.get(nodeid)
        if share is None:
            return False
        module = nodeid.partition("::")[0]
        if module not in self._modules:
            self._modules[module] = self._is_late(share)
        return self._modules[module]

    def _is_late(self, share: float) -> bool:
        if (now_s := time.time()) >= self._limit_s:
            return True
        return (now_s - self._began_s) / (self._limit_s - self._began_s) >= share + random.uniform(0, _JITTER)


def _may_be_left_out(item: Item) -> bool:
    return item.get_closest_marker(slow.MARK) is not None and item.get_closest_marker(slow.STORY) is None
