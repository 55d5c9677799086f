"""What became of one call of a hook, and what every hook is."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Ending = Literal["done", "failed", "timed_out"]
CallOutcome = Literal["done", "failed", "timed_out", "dropped"]
OUTCOMES: tuple[CallOutcome, ...] = ("done", "failed", "timed_out", "dropped")


class Ran(msgspec.Struct, frozen=True):
    """How a call ended. `detail`: why not well, as a sentence; `output`: the beginning of what was said back."""

    ending: Ending
    detail: str = ""
    output: str = ""


class Hook(Protocol):
    """One URL. It may wait for as long as its time limit."""

    def call(self, payload: bytes) -> Ran:
        """Call it once, with JSON; return what came of it, and raise nothing that a hook can cause."""
