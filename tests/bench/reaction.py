"""How long after a hog has crossed the threshold its eviction leaves, beside others in the same run."""

from __future__ import annotations

import random
import time

from tests.bench.contenders import BareLoop, Contender, Earlyoom, Koordebpf, Nohang
from tests.bench.figure import figure, percentile
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import CannotMeasure, Report
from tests.support.loads.workloads import Hog

RATES_MIB_S = (512, 1024, 2048, 4096)
_HUGE_FROM_MIB_S = 4096  # one task touches 4 KiB pages at 2 to 3 GiB/s
_NS_PER_MS = 1_000_000


def reaction(report: Report) -> None:
    """Burst at each rate against the agent (n ≥ 30), then against the others (n = 15)."""
    with full_node() as node:
        warm(node)
        for kind in (Koordebpf, BareLoop, Earlyoom, Nohang):
            is_ours = kind is Koordebpf
            n = (5 if report.quick else 30) if is_ours else (3 if report.quick else 15)
            every: list[float] = []
            try:
                if is_ours:
                    with Koordebpf(node) as contender:
                        for rate in RATES_MIB_S:
                            every += series(report, contender, rate, n)
                        for step, samples in contender.steps.items():
                            report.add(figure(f"  of it {step}", "ms", samples, "from the audit lines"))
                else:
                    for rate in RATES_MIB_S:
                        with kind(node) as contender:  # a fresh threshold for each rate
                            every += series(report, contender, rate, n)
            except CannotMeasure as error:
                report.cannot(str(error))
            if every:
                report.add(
                    figure(
                        f"crossed → decision sent, all rates, {kind.name}",
                        "ms",
                        every,
                        kind.method,
                        reach_p50=6 if is_ours else None,
                        reach_p99=15 if is_ours else None,
                    )
                )


def warm(node: FullNode) -> None:
    """Touch memory: what a virtual machine has not touched for a while is slow at first, as the host has to find it."""
    Hog(node.ballast, node.cgroup.limit_bytes // 2 >> 20, huge=True, hold_s=0).story()


def series(report: Report, contender: Contender, rate: int, n: int) -> list[float]:
    """Burst so often at one rate; return how long each decision took, in milliseconds.

    Raises:  CannotMeasure: most hogs ate all they may.
    """
    latencies: list[float] = []
    reached: list[float] = []
    missed = 0
    for _ in range(n):
        contender.settle()
        time.sleep(random.random() * 0.5)
        hog = contender.burst(rate, huge=rate >= _HUGE_FROM_MIB_S)
        try:
            story = hog.story()
            seen_ns, sent_ns = contender.decided(story)
        except KeyError:
            missed += 1
            if missed > n // 2:
                raise CannotMeasure(f"{contender.name} let {missed} hogs at {rate} MiB/s eat all they may") from None
            continue
        finally:
            hog.stop()
        # A hog that was killed in the page fault that crossed, or before it ran again, has not come to print its mark.
        latencies.append((sent_ns - story.get("mark", seen_ns)) / _NS_PER_MS)
        if "mark" in story:
            reached.append(_rate_gib_s(story))
    at = f"hog: {percentile(reached, 0.5):.1f} GiB/s reached" if reached else "hog: rate not known"
    if unmarked := n - missed - len(reached):
        at += f"; {unmarked} of {n} were killed before they could mark it, counted from when it was seen"
    if missed:
        at += f"; {missed} of {n} ate all they may and are not in the figures"
    report.add(figure(f"crossed → decision sent at {rate / 1024:g} GiB/s, {contender.name}", "ms", latencies, at))
    return latencies


def _rate_gib_s(story: dict[str, int]) -> float:
    return story["touched"] / (1 << 30) / ((story["mark"] - story["ready"]) / 1e9)
