"""How a rule reports: every offender on a line of its own, under what to do about them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def report(offenders: Iterable[str], what_to_do: str) -> None:
    """Fail with all offenders and what to do about them; each begins with its file, and its line where it has one."""
    if found := list(offenders):
        pytest.fail("\n  ".join([f"{what_to_do} ({len(found)} found)", *found]), pytrace=False)
