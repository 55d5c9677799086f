"""Asks a collector in each round, and logs once why it could not measure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from koordebpf.errors import KoordebpfError

log = logging.getLogger(__name__)

M = TypeVar("M")


class Measurements(Generic[M]):
    """What a part of a round measures; an error leaves the round without it.

    Args:
        what: is measured for, in the log: "block IO was not measured for".
        measure: returns a measurement at a time (CLOCK_MONOTONIC ns); None: it is not due.
    """

    def __init__(self, what: str, measure: Callable[[int], M | None]) -> None:
        self._what = what
        self._measure = measure
        self._failed = ""

    def take(self, now_ns: int, *, is_sample: bool) -> M | None:
        """Return a measurement; None: memory is short and there is no time for one, it is not due, or it failed."""
        if is_sample:
            return None
        try:
            found = self._measure(now_ns)
        except KoordebpfError as error:
            if str(error) != self._failed:
                log.warning("%s not measured for: %s", self._what, error)
            self._failed = str(error)
            return None
        self._failed = ""
        return found
