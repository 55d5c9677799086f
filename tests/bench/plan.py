"""A decision for a large node: every feature on, every feature short, everything known that a rank can depend on."""

from __future__ import annotations

import json
import time

from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.state.view import Frame
from koordebpf.units import MIB, NS_PER_S
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.bench.timing import times_ms
from tests.support.values.builders import PodAndMeasure, frame, ls_pod, pod

PODS = 1_000
CAPACITY_MIB = 100_000
_ENABLED = {"koordinator.sh/eviction-enabled": "true"}
_GATES = {"BEMemoryEvict": True, "MemoryAllocatableEvict": True, "MemoryEvict": True}


def plan(report: Report) -> None:
    """Decide again and again for one frame of 1,000 pods, and where nothing is to be done."""
    n = 100 if report.quick else 500
    settings = EvictSettings(
        evictions_per_workload=3, evictions_per_namespace=500, protected_namespaces=frozenset({"team-7"})
    )
    short, calm = large_node(used_percent=72, mid="22000Mi"), large_node(used_percent=30, mid="9000Gi")
    view, calm_view = view_of_frame(short), view_of_frame(calm)
    made = decide(view, settings)
    if len(made.features) != 3 or not all(each.victims for each in made.features):
        raise RuntimeError(f"a feature has no victims: {made.sentence}")
    method = f"decide() for {PODS} pods, 400 best-effort, 60 rows in the ledger; {len(made.victims)} victims"
    times = times_ms(lambda: decide(view, settings), n)
    report.add(figure("plan, 1,000 pods, three features short", "ms", times, method, reach_p99=5))
    times = times_ms(lambda: decide(view, settings), n, time.thread_time_ns)
    report.add(
        figure("  CPU time of it", "ms", times, "the same calls again, without what others take of the processor")
    )
    times = times_ms(lambda: decide(calm_view, settings), n)
    report.add(figure("  the same where no threshold is crossed", "ms", times, "as in most rounds of most days"))
    raw = encode_frame(short)
    times = times_ms(lambda: decide(view_of_frame(decode_frame(raw, "frame")), settings), max(n // 10, 10))
    report.add(
        figure("  the same from JSON on", "ms", times, f"koordebpf plan without its imports, {len(raw) >> 10} KiB")
    )


def large_node(used_percent: int, mid: str) -> Frame:
    pods = [_best_effort(number) for number in range(400)] + [_middling(number) for number in range(400)]
    pods += [ls_pod(f"ls-{number}", anon=20) for number in range(200)]
    made = frame(
        pods,
        used_bytes=CAPACITY_MIB * MIB * used_percent // 100,
        capacity=f"{CAPACITY_MIB}Mi",
        total_bytes=CAPACITY_MIB * MIB,
        threshold={
            "enable": True,
            "memoryEvictThresholdPercent": 70,
            "memoryEvictLowerPercent": 60,
            "evictEnabledPriorityThreshold": 7999,
            "allocatableEvictPriorityThreshold": 7999,
        },
        gates=_GATES,
        allocatable={"memory": "90000Mi", "kubernetes.io/batch-memory": "9000Gi", "kubernetes.io/mid-memory": mid},
    )
    return replace(made, measured=replace(made.measured, ledger=_ledger(pods)))


def _best_effort(number: int) -> PodAndMeasure:
    return pod(
        f"batch-{number}",
        anon=5 + number % 11,
        priority=5000 + number % 50,
        namespace=f"team-{number % 20}",
        labels=_ENABLED if number % 3 else None,
        own_priority=str(number % 3) if number % 5 == 0 else None,
        requests={"kubernetes.io/batch-memory": f"{64 + number % 7 * 16}Mi"},
        growth=float(number % 11) * MIB,
        policy=json.dumps(["BEMemoryEvict", "MemoryEvict"]) if number % 40 == 0 else None,
    )


def _middling(number: int) -> PodAndMeasure:
    return pod(
        f"middling-{number}",
        anon=30 + number % 41,
        qos="LS",
        kube_qos="Burstable",
        priority=7000 + number % 50,
        namespace=f"team-{number % 20}",
        labels=_ENABLED,
        requests={"kubernetes.io/mid-memory": "64Mi"},
    )


def _ledger(pods: list[PodAndMeasure]) -> LedgerView:
    parties = [Party(each.pod.uid, "pod", each.pod.key, uid=each.pod.uid) for each in pods]
    rows = [
        LedgerRow(parties[-1 - n], parties[n * 13], (n + 1) * 5_000_000, since_ns=NS_PER_S, last_ns=2 * NS_PER_S)
        for n in range(60)
    ]
    return LedgerView(60 * NS_PER_S, sum(row.ns for row in rows), 0, tuple(rows))
