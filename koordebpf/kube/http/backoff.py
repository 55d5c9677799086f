"""How long to wait before asking again."""

from __future__ import annotations

import random


def jittered(wait_s: float) -> float:
    """Shorten a wait by up to a half at random.

    It keeps the agents of a thousand nodes from returning together to an API server that was just restarted.
    """
    return wait_s * random.uniform(0.5, 1.0)


class Backoff:
    """Waits that double from `first_s` up to `cap_s`, each with jitter."""

    def __init__(self, first_s: float, cap_s: float) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the wait before the next try."""
        ceiling_s = self._next_s
        self._next_s = min(self._next_s * 2, self._cap_s)
        return jittered(ceiling_s)

    def reset(self) -> None:
        """Start over: something worked."""
        self._next_s = self._first_s
