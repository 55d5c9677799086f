"""The first and the last line of `koordebpf demo --json`; those between are events."""

from __future__ import annotations

from typing import Literal

from koordebpf.demo.stories import Story
from koordebpf.demo.verdict import StoryFacts, Verdict


class StoryLine(Story, frozen=True, kw_only=True):
    """Which story it is, on a node of so many bytes."""

    event: Literal["story"] = "story"
    limit_bytes: int


class EndLine(Verdict, frozen=True, kw_only=True):
    """What it came to, and every number that was measured."""

    event: Literal["verdict"] = "verdict"
    facts: StoryFacts
