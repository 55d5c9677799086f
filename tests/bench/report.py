"""What one run found: figures, and what could not be measured here."""

from __future__ import annotations

import os
import sys
import time

from tests.bench.figure import Figure


class CannotMeasure(Exception):
    """This machine cannot give the figure; the sentence says why."""


def pair_count(default: int) -> int:
    """Return how many pairs to take: KOORDEBPF_PAIRS, where that is set."""
    return int(os.environ.get("KOORDEBPF_PAIRS", default))


class Report:
    """Collects the rows of a run and reports progress on standard error."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.figures: list[Figure] = []
        self.not_measured: list[str] = []
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Show progress."""
        print(f"{time.monotonic() - self._started:6.0f} s  {text}", file=sys.stderr, flush=True)

    def add(self, row: Figure) -> None:
        """Take a row and show it."""
        self.figures.append(row)
        self.say(f"{row.name}: n {row.n}, p50 {row.p50:.4g}, p99 {row.p99:.4g}, max {row.worst:.4g} {row.unit}")

    def cannot(self, sentence: str) -> None:
        """Note what could not be measured."""
        self.not_measured.append(sentence)
        self.say(f"not measured: {sentence}")
