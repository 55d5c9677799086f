"""Which tests take long and do not say so: with them `make test` would take long.

The mark `slow` leaves a test to `make test-all`; `story` is for the dozen that `make test` runs however long they take,
because each runs from a kernel event to the action that answers it.
"""

from __future__ import annotations

import subprocess
import sys
import timeit
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

MARK = "slow"
STORY = "story"
MARKS = (MARK, STORY)  # also the properties of a test in junit.xml that has the mark
LIMIT_S = 3.0
_TRIES = 3
# Additions, and the seconds they take on the machine for which the limit is meant.
_LOOP, _LOOP_S = "sum(number & 3 for number in range(1_000_000))", 0.05


def unmarked(reports: Sequence[Path], tests: Path) -> tuple[list[str], list[str]]:
    """Return the tests of these reports that take longer than the limit without the mark, and those that failed again.

    Each is run up to three times more: only one that takes as long each time counts, since a machine may be busy, and a
    machine that is slow is given in proportion more. What a fixture takes that several tests share is not counted then.
    One that had passed and fails in such a run is not steady: it is the second list.
    """
    found, failed = [node for report in reports for node in _over(report)], list[str]()
    for _ in range(_TRIES):
        if not found:
            break
        report = reports[0].with_name("slow.xml")
        report.unlink(missing_ok=True)
        print(
            f"\n== run once more: {len(found)} that took longer than {LIMIT_S:g} s without the mark {MARK}", flush=True
        )
        options = ["-q", f"--junitxml={report}", "-o", "junit_duration_report=call"]
        before = slowness()
        subprocess.run([sys.executable, "-m", "pytest", *options, *found], cwd=tests.parent, check=False)
        failed += _failed(report)
        found = _over(report, LIMIT_S * max(before, slowness()))
    return found, sorted(set(failed))


def slowness() -> float:
    """Return how many times longer this machine takes now than the one for which the limit is meant; at least 1."""
    spent_s = min(timeit.repeat(_LOOP, number=1, repeat=5))
    return max(1.0, spent_s / _LOOP_S)


def _cases(report: Path) -> list[ET.Element]:
    try:
        return list(ET.parse(report).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return []  # who counts the report says so


def _failed(report: Path) -> list[str]:
    return [
        node_of(case) for case in _cases(report) if any(case.find(what) is not None for what in ("failure", "error"))
    ]


def _over(report: Path, limit_s: float = LIMIT_S) -> list[str]:
    return [
        node_of(case)
        for case in _cases(report)
        if float(case.attrib.get("time", 0)) > limit_s
        and all(case.find(f"properties/property[@name='{mark}']") is None for mark in MARKS)
        and all(case.find(what) is None for what in ("failure", "error", "skipped"))
    ]


def node_of(case: ET.Element) -> str:
    """Return the id of a test in junit.xml as pytest takes it: path::class::name."""
    parts = case.attrib["classname"].split(".")
    module = next((at for at, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1) + 1
    return "::".join(["/".join(parts[:module]) + ".py", *parts[module:], case.attrib["name"]])
