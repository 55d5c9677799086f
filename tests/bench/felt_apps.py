"""What redis and SQLite feel of hogs with the agent's strategies and without, as ratios: for a guest with cgroup v2."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.figure import figure
from tests.bench.report import Report, pair_count
from tests.felt.cells import Found, median
from tests.felt.load.hogs import NONE
from tests.felt.matrix import Matrix, Plan
from tests.felt.node import Scale
from tests.felt.ways import ALL, NOTHING

_HOGS = ("anon", "pagecache", "io")
# For 2.5 GiB of memory and CPUs that are emulated.
_SCALE = Scale(memory=0.5, rate=0.1)


def felt_apps(report: Report) -> None:
    """Run the cells in turn, KOORDEBPF_PAIRS times (2); a figure is the ratio of p99 to undisturbed in a repeat."""
    seconds, repeats = (3.0, 1) if report.quick else (6.0, pair_count(2))
    for app in ("redis", "sqlite"):
        with Matrix(app, seconds, report.say, _SCALE) as matrix:
            found = list(matrix.run(Plan(app, _HOGS, [NOTHING, ALL]), repeats))
        for way in ("nothing", "all"):
            for hog in (NONE, *_HOGS):
                _add(report, found, app, hog, way)


def _add(report: Report, found: Sequence[Found], app: str, hog: str, way: str) -> None:
    base = {each.repeat: each.p99 for each in found if (each.hog, each.way) == (NONE, "nothing")}
    cells = [each for each in found if (each.hog, each.way) == (hog, way)]
    kills = f"kills {sum(each.ls_kills for each in cells)} LS, {sum(each.be_kills for each in cells)} BE"
    stalls = {key: median(each.psi.get(key, 0.0) for each in cells) for key in ("cpu", "memory", "io")}
    waits = ", ".join(f"{key} {value:.2f} %" for key, value in stalls.items())
    served = median(each.served for each in cells)
    method = (
        f"p99 {median(each.p99 for each in cells):.1f} ms, largest {max(each.worst for each in cells):.0f} ms,"
        f" {served:.0f}/s; {kills}; evicted {sum(each.evictions for each in cells)}; it waited for {waits}"
    )
    ratios = [each.p99 / base[each.repeat] for each in cells]
    report.add(figure(f"{app} beside {hog}, {way}: p99 / undisturbed", "", ratios, method))
