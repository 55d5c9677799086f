"""Incidents for what renders them, as large as asked."""

from __future__ import annotations

import math

from koordebpf.tools.incident.values import (
    Chart,
    DecisionShown,
    Fact,
    FeatureRanking,
    Happened,
    HeatMap,
    Incident,
    Mark,
    RankedPod,
    Returned,
    Series,
)
from koordebpf.units import GIB, MIB

START_S = 1_800_000_000.0
# Names that Kubernetes would refuse, and a file of pods or a forged recording may have.
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\"><svg/onload='window.hacked=1'>",
    "<!--<script>",
    "]]>{{7*7}}&lt;b&gt;",
    "\u202egpj.sh\x1b[2J\x00\u2028",
)


def incident(*, pods: int = 12, moments: int = 60, names: tuple[str, ...] = ()) -> Incident:
    """Return one with a decision, an OOM kill and memory that came back; `names` come before those that are made up."""
    named = (*names, *(f"batch/spark-executor-{number:04}-x7k2p" for number in range(pods)))[:pods]
    times = tuple(START_S + 4 * number for number in range(moments))
    decided_s = times[moments // 2]
    return Incident(
        node=named[0] if names else "node-1",
        source="node.rounds",
        kind="recording",
        first_s=times[0],
        last_s=times[-1],
        summary=f"1 decision chose 1 pod: {named[0]}. The memory of 1 came back.",
        charts=_charts(named, times),
        marks=(
            Mark(decided_s, "decision", f"evicting {named[0]}"),
            Mark(times[moments // 3], "oom", "the kernel killed hog"),
            Mark(times[moments // 2 + 1], "back", f"the memory of {named[0]} is back"),
            Mark(times[-2], "gap", "3 rounds were not recorded"),
        ),
        heat=HeatMap(
            named[:8],
            (*named[:5], "unattributed"),
            tuple(tuple((victim * cause * 7_000_000) for cause in range(6)) for victim in range(8)),
            "the ledgers of 4 × 60 s",
        ),
        decisions=(_decision(named, decided_s),),
        returned=(
            Returned(named[0], decided_s, 3 * GIB, decided_s + 1.2, 1_200_000_000, f"evicted {named[0]} by api"),
        ),
        timeline=(
            Happened(times[moments // 3], "OOM kill", f"the kernel killed hog of {named[-1]}"),
            Happened(decided_s, "decision", f"evicting {named[0]}"),
        ),
        facts=(Fact("Node is", "the machine, 64 GiB of memory"), Fact("NodeSLO", f"of {named[0]}")),
        signals=("Kernel 6.12.0; backend co-re: each stall is timed",),
        missing=(f"Passed over: a record of {named[0]}",),
    )


def _charts(named: tuple[str, ...], times: tuple[float, ...]) -> tuple[Chart, ...]:
    count = len(times)
    areas = [
        Series(name, "area", tuple((2 + math.sin(at / 20 + number)) * GIB for at in range(count)))
        for number, name in enumerate(named[:10])
    ]
    line = Series("node, in use", "line", tuple(sum(each.values[at] or 0 for each in areas) for at in range(count)))
    threshold = Series("threshold", "mark", (24.0 * GIB,) * count)
    lower = Series("lower mark", "mark", (22.0 * GIB,) * count)
    others = Series(f"{max(2, len(named) - 10)} other pods", "area", (3.0 * GIB,) * (count - 1) + (None,))
    outside = Series("outside of pods", "area", (2.0 * GIB,) * count)
    stalls = tuple(
        Series(name, "line", tuple(abs(20 * math.sin(at / 9 + number)) for at in range(count)))
        for number, name in enumerate(("node, some task stalls", *named[:3]))
    )
    growth = Series("node", "line", tuple(50 * MIB * math.cos(at / 20) for at in range(count)))
    cpus = Series("used by best-effort pods", "line", tuple(2 + math.sin(at / 15) for at in range(count)))
    may = Series("best-effort pods may have", "mark", (3.5,) * count)
    return (
        Chart("memory", "Memory by pod", "bytes", times, (*areas, others, outside, line, threshold, lower), "By pod."),
        Chart("stalls", "Stalls", "%", times, stalls, "Share of the time."),
        Chart("growth", "Growth", "bytes/s", times, (growth,), "How fast it grows."),
        Chart("suppression", "CPU suppression", "CPUs", times, (may, cpus), "CPUs."),
    )


def _decision(named: tuple[str, ...], at_s: float) -> DecisionShown:
    rows = [
        RankedPod(
            pod=name,
            rank=number + 1,
            is_victim=number == 0,
            why="chosen: rank 1" if number == 0 else "stays: 3.0 GiB of the victims cover the 2.0 GiB that were needed",
            priority=5000,
            used_bytes=3 * GIB - number * MIB,
            credit_bytes=3 * GIB - number * MIB,
            growth_bytes_per_s=1.5 * MIB,
            caused_ns=7_000_000 * number or None,
        )
        for number, name in enumerate(named)
    ]
    ranking = FeatureRanking("BEMemoryEvict", "node at 92 % ≥ 80 %, need 2.0 GiB to reach 78 %", tuple(rows), 0)
    outcome = f"evicted {named[0]} by api: the pod is gone"
    return DecisionShown(at_s, at_s, 1, f"evicting {named[0]}", named[:1], False, (outcome,), (ranking,), "sent 2 ms")
