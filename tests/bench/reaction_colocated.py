"""Whether the agent decides as soon as before while it also does what koordlet does: in turn with it and without."""

from __future__ import annotations

from tests.bench.burst import burst_node, bursts
from tests.bench.contenders import Koordebpf
from tests.bench.figure import figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.reaction import series, warm
from tests.bench.report import Report
from tests.bench.steady_colocated import COLOCATED

_BLOCKS = 3  # of each in turn, so that a machine that gets busier favours none
_RATE_MIB_S = 1024
_WAYS = {"all of it off": (), "in koordlet's place": COLOCATED}


class _Colocated(Koordebpf):
    name = "koordebpf in koordlet's place"
    options = COLOCATED


def reaction_colocated(report: Report) -> None:
    """Burst memory on a node of 110 pods, and CPU on one of two."""
    with full_node() as node:
        warm(node)
        _evictions(report, node)
    _suppressions(report)


def _evictions(report: Report, node: FullNode) -> None:
    n = 2 if report.quick else 10
    samples: dict[str, list[float]] = {}
    for _ in range(_BLOCKS):
        for kind in (Koordebpf, _Colocated):
            with kind(node) as contender:
                samples.setdefault(kind.name, []).extend(series(report, contender, _RATE_MIB_S, n))
    for name, found in samples.items():
        report.add(figure(f"crossed → decision sent at 1 GiB/s, {name}", "ms", found, "110 pods / 330 containers"))


def _suppressions(report: Report) -> None:
    n = 2 if report.quick else 10
    samples: dict[str, list[float]] = {way: [] for way in _WAYS}
    with burst_node() as (node, weight):
        for _ in range(_BLOCKS):
            for way, more in _WAYS.items():
                samples[way] += bursts(node, {}, n, *more)
    for way, found in samples.items():
        method = f"default wake; from telling a sleeper to work to the quota's write; {weight}"
        report.add(figure(f"LS burst → BE held, {way}", "ms", found, method))
