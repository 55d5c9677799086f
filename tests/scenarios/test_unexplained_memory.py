"""A node that is short because of memory that is in no pod: neighbours are not evicted for it.

It is a machine of 1000 MiB that evicts above 800, down to 780.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings, decided_again
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import GuardLimits
from koordebpf.policy.ladder.escalation import LadderMemory
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.report.pages.plan import plan_page
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import (
    NodeForecast,
    OutsideMeasure,
    PsiLine,
    StallSample,
    TimeTo,
    UnchargedMemory,
)
from koordebpf.state.view import Frame
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, ls_pod, node_plan_of, pod

GUARD = "unexplained_memory"
QUIET = [pod(f"quiet-{number}", anon=20) for number in range(4)]
DAEMONS = (OutsideMeasure("system.slice", 60 * MIB), OutsideMeasure("", 10 * MIB))
CALM = (StallSample(at_ns=NOW_NS),)


def node(
    pods: Iterable[PodAndMeasure] = QUIET,
    *,
    used: int = 850,
    outside: tuple[OutsideMeasure, ...] | None = DAEMONS,
    stalls: tuple[StallSample, ...] = CALM,
    of_node: Mapping[str, Any] | None = None,
    **asked: Any,
) -> Frame:
    made = frame([*pods, ls_pod("web", anon=100)], used=used, **asked)
    of = replace(made.measured.node, **(of_node or {}))
    return replace(made, measured=replace(made.measured, node=of, outside=outside, stall_window=stalls))


def holding(name: str, **more: int) -> PodAndMeasure:
    """Return a pod that holds nothing but this, beside its own lists."""
    made = pod(name)
    assert made.measure is not None
    assert made.measure.memory is not None
    return replace(made, measure=replace(made.measure, memory=replace(made.measure.memory, **more)))


def tick(made: Frame, *, limits: GuardLimits = GuardLimits(), **eviction: Any) -> TickFrame:  # noqa: B008 - frozen
    return TickFrame(
        frame=made,
        settings=TickSettings(eviction=EvictSettings(**eviction), guards=limits),
        guards=GuardFacts(now_ns=NOW_NS, source="file", pods_synced_ns=NOW_NS),
        ladder=LadderMemory() if "ladder" in eviction else None,
    )


def decided(made: Frame, **asked: Any) -> TickDecision:
    return decided_again(tick(made, **asked))


def decided_with_zram() -> TickDecision:
    """Decide for quiet pods and a hog of 900 MiB in swap, for which zram holds 360 MiB."""
    zram = UnchargedMemory(zram_bytes=400 * MIB, zram_stored_bytes=1000 * MIB, swapped_bytes=1000 * MIB)
    return decided(node([*QUIET, holding("hog", swap_bytes=900 * MIB)], of_node={"uncharged": zram}))


def gone(decision: TickDecision) -> list[str]:
    assert decision.carried is not None
    return [each.candidate.name for each in decision.carried.screening.allowed]


def codes(decision: TickDecision) -> list[str]:
    return [each.code for each in decision.guards]


def test_neighbours_stay_where_most_of_what_is_too_much_is_no_pods() -> None:
    decision = decided(node())
    assert (gone(decision), codes(decision)) == ([], [GUARD])
    assert [each.candidate.name for each in decision.plan.victims] == ["quiet-3", "quiet-2", "quiet-1", "quiet-0"]
    assert decision.carried is not None
    assert {guard.code for _, guard in decision.carried.screening.held} == {GUARD}
    unexplained = "600 MiB of 850 MiB in use are in no pod and no known cgroup"
    assert decision.guards[0].sentence == f"{unexplained}: only a pod that alone releases 70.0 MiB is evicted"


def test_a_pod_that_alone_releases_enough_leaves_the_guard_open() -> None:
    decision = decided(node([*QUIET, pod("hog", anon=80)]))
    assert (gone(decision), codes(decision)) == (["hog"], [])


def test_a_node_whose_pods_are_the_reason_is_relieved_as_before() -> None:
    pods = [pod(f"job-{number}", anon=40) for number in range(14)]  # 560 MiB, and 120 unexplained
    decision = decided(node(pods))
    assert (len(gone(decision)), codes(decision)) == (2, [])


class TestTheThreeNodes:
    """Of public reports: each evicted quiet neighbours."""

    def test_zram_the_pod_whose_pages_are_in_it_is_evicted(self) -> None:
        decision = decided_with_zram()
        assert gone(decision) == ["hog"]
        assert "spark/hog (priority 5000, 360 MiB)" in decision.plan.sentence

    def test_kata_the_pod_whose_virtual_machine_it_is_is_evicted(self) -> None:
        decision = decided(node([*QUIET, holding("vm", elsewhere_bytes=500 * MIB)]))
        assert gone(decision) == ["vm"]

    def test_zfs_its_cache_costs_no_pod(self) -> None:
        decision = decided(node(of_node={"uncharged": UnchargedMemory(arc_bytes=500 * MIB)}))
        assert (gone(decision), codes(decision)) == ([], [GUARD])
        assert "600 MiB of 850 MiB in use are in no pod and no known cgroup (500 MiB of it are ZFS' cache)" in (
            decision.guards[0].sentence
        )


class TestWhatOpensIt:
    @pytest.mark.parametrize(
        "changed",
        [
            {"stalls": (StallSample(at_ns=NOW_NS, at_most_ratio=0.02, at_most_pod="web/web"),)},
            {"stalls": (), "of_node": {"psi_some": PsiLine(1.5, 0, 0, 1)}},
            {"used": 960},
            {"asks_oom": 3},
        ],
        ids=["stalls of a pod", "stalls of the node", "nearly full", "soon full"],
    )
    def test_pods_that_wait_for_memory_or_an_oom_kill_that_is_near(self, changed: dict[str, Any]) -> None:
        seconds = changed.pop("asks_oom", None)
        if seconds is not None:
            left = TimeTo(seconds * NS_PER_S, 2 * seconds * NS_PER_S, None)
            changed = {"of_node": {"forecast": NodeForecast(oom=left)}}
        decision = decided(node(**changed))
        assert (len(gone(decision)), codes(decision)) == (4, [])

    def test_what_is_not_measured(self) -> None:
        """It is not known whether pods stall, or what the cgroups outside pods hold."""
        for unknown in (node(stalls=()), node(outside=None)):
            assert codes(decided(unknown)) == []

    def test_calm_of_the_node_closes_it_where_nothing_times_the_stalls_of_pods(self) -> None:
        assert codes(decided(node(stalls=(), of_node={"psi_some": PsiLine(0.2, 0, 0, 1)}))) == [GUARD]

    def test_stalls_of_long_ago_say_nothing(self) -> None:
        old = (StallSample(at_ns=NOW_NS - 6 * NS_PER_S),)
        assert codes(decided(node(stalls=old))) == []

    def test_the_setting(self) -> None:
        assert codes(decided(node(), limits=GuardLimits(unexplained_max_ratio=None))) == []
        # 500 MiB beyond what is usual, of which 70 are to be released.
        assert codes(decided(node(), limits=GuardLimits(unexplained_max_ratio=7.0))) == [GUARD]
        assert codes(decided(node(), limits=GuardLimits(unexplained_max_ratio=7.2))) == []


def test_victims_for_requests_are_evicted_all_the_same() -> None:
    labels, requests = {"koordinator.sh/eviction-enabled": "true"}, {"kubernetes.io/batch-memory": "300Mi"}
    asks = [pod(f"asks-{number}", anon=20, priority=5500, labels=labels, requests=requests) for number in range(4)]
    gates = {"BEMemoryEvict": True, "MemoryAllocatableEvict": True}
    asked: dict[str, Any] = {"gates": gates, "allocatable": {"kubernetes.io/batch-memory": "1000Mi"}}
    decision = decided(node([*asks, *QUIET], **asked))
    assert (gone(decision), codes(decision)) == (["asks-3"], [GUARD])
    assert decision.carried is not None
    assert {victim.for_use for victim, _ in decision.carried.screening.held} == {True}


def test_no_rung_of_the_ladder_is_started_for_those_that_stay() -> None:
    ladder = LadderSettings(rungs=(Rung.RECLAIM, Rung.EVICT))
    held = decided(node(), ladder=ladder)
    assert (gone(held), held.step) == ([], None)
    started = decided(node(used=960), ladder=ladder)
    assert started.step is not None
    assert started.step.begin is not None


class TestATenantWhoTriesToCloseIt:
    """Whatever it holds is charged to its own pod, which is evicted."""

    def test_hides_in_swap_on_zram(self) -> None:
        decision = decided_with_zram()
        assert (gone(decision), codes(decision)) == (["hog"], [])

    def test_splits_its_memory_over_many_pods(self) -> None:
        # Each alone is too small, but none of what they hold is unexplained.
        pods = [pod(f"part-{number}", anon=15) for number in range(40)]
        decision = decided(node(pods))
        assert (len(gone(decision)), codes(decision)) == (5, [])

    def test_asks_for_overhead_and_annotates(self) -> None:
        claims = {"koordinator.sh/eviction-policy": "Never", "kata": "elsewhere"}
        base = node([*QUIET, pod("liar", anon=20)])
        pods = tuple(
            replace(each, metadata=replace(each.metadata, annotations=claims)) if each.metadata.name == "liar" else each
            for each in base.pods
        )
        assert codes(decided(replace(base, pods=pods))) == codes(decided(base)) == [GUARD]


def test_the_plan_says_where_the_memory_is_and_that_the_pods_stay() -> None:
    page = plan_page(node_plan_of(node()), 10)
    block = page[page.index("memory in use") :].split("\n\n")[0]
    assert block.splitlines() == [
        "memory in use",
        "  pods            180 MiB  18.0 %",
        "  outside pods   70.0 MiB   7.0 %  system.slice 60.0 MiB, / 10.0 MiB",
        "  unexplained     600 MiB  60.0 %  in no pod, cgroup or counter of the kernel",
    ]
    assert max(map(len, page.splitlines())) <= 80


def test_a_frame_keeps_what_was_measured() -> None:
    made = node(of_node={"uncharged": UnchargedMemory(arc_bytes=5, kernel_bytes=7)})
    assert decode_frame(encode_frame(made), "here").measured == made.measured
