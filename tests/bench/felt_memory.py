"""What redis feels of hogs that take a node's memory: alone, with kubelet's eviction, with the agent. For a guest."""

from __future__ import annotations

import os

from tests.bench.felt_apps import SCALE, add_row
from tests.bench.report import Report
from tests.felt.load.hogs import NONE
from tests.felt.matrix import Matrix, Plan
from tests.felt.ways import ALL, KUBELET, NOTHING

_HOGS = ("anon", "pagecache")
_APP = "redis"


def felt_memory(report: Report) -> None:
    """Run the cells in turn, KOORDEBPF_PAIRS times (5); a figure is the ratio of p99 to that undisturbed."""
    repeats = 1 if report.quick else int(os.environ.get("KOORDEBPF_PAIRS", "5"))
    with Matrix(_APP, 6.0, report.say, SCALE) as matrix:
        found = list(matrix.run(Plan(_APP, _HOGS, [NOTHING, KUBELET, ALL]), repeats))
    for way in (NOTHING, KUBELET, ALL):
        for hog in (NONE, *_HOGS):
            if any((each.hog, each.way) == (hog, way.name) for each in found):
                add_row(report, found, _APP, hog, way.name)
