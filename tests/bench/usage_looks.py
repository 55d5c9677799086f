"""Looks at usage between two rounds: until a burst's last cut, and what they cost while nothing rises."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.burst import burst_node, cuts_of_a_burst
from tests.bench.figure import at_most, figure
from tests.bench.report import Report
from tests.bench.steady import cpu_s
from tests.host.live_agent import LiveAgent
from tests.host.rigs.burst_node import BurstNode

_OFF = {"pressure": False, "scheduler": False, "usage": False}
_ON = {"pressure": False, "scheduler": False}
_BLOCKS = 3
_WARM_S = 5
_NEAR = 1.1  # of the last quota of a burst


def usage_looks(report: Report) -> None:
    """Burst again and again, with looks and without; then watch an agent with nothing to do, in turn."""
    n, seconds = (2, 5) if report.quick else (10, 20)
    with burst_node() as (node, weight):
        for way, wake in (("without looks", _OFF), ("by default", {})):
            found: list[tuple[float, float]] = []
            for _ in range(_BLOCKS):
                found += [_settled(cuts) for cuts in cuts_of_a_burst(node, wake, n) if cuts]
            report.say(f"{way}: {' '.join(f'{first:.0f}/{last:.0f}' for first, last in found)} ms")
            reach = 100 if way == "by default" else None
            first, last = zip(*found, strict=True)
            report.add(figure(f"LS burst → first cut, {way}", "ms", first, weight, reach_p99=reach))
            method = f"until the quota is within 10 % of the burst's last one; {weight}"
            report.add(figure(f"LS burst → settled, {way}", "ms", last, method, reach_p99=reach and 3 * reach))
        for works in (False, True):
            busy = "best-effort pods busy" if works else "all pods idle"
            cost = _cost_percent(node, seconds, works=works)
            method = f"{_BLOCKS} × {seconds} s with looks and without, in turn; {busy}"
            report.add(at_most(f"what usage looks cost, {busy}", "% of a core", cost, None if works else 0.05, method))


# From its begin, ms: the first cut, and the one from which on the quota is about the last one.
def _settled(cuts: list[tuple[float, float]]) -> tuple[float, float]:
    last_us = cuts[-1][1]
    settled = next(ms for number, (ms, _) in enumerate(cuts) if all(us <= last_us * _NEAR for _, us in cuts[number:]))
    return cuts[0][0], settled


def _cost_percent(node: BurstNode, seconds: int, *, works: bool) -> float:
    used = {False: 0.0, True: 0.0}
    for _ in range(_BLOCKS):
        for is_on in (False, True):
            with TemporaryDirectory() as name:
                arguments = node.arguments(Path(name), min_percent=40, **(_ON if is_on else _OFF))
                with LiveAgent(Path(name), *arguments, keeps_frames=False) as agent:
                    agent.started()
                    time.sleep(_WARM_S)
                    for worker in node.best_effort if works else []:
                        worker.work(seconds + 1)
                    before = cpu_s(agent.process.pid)
                    time.sleep(seconds)
                    used[is_on] += cpu_s(agent.process.pid) - before
                    agent.stop()
    return 100 * (used[True] - used[False]) / (_BLOCKS * seconds)
