"""Proactive reclaim: how much is taken from which pod, and when nothing is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.proactive_reclaim.decide import (
    PROACTIVE_RECLAIM,
    PodTrim,
    ReclaimState,
    trim,
    usable_swap_bytes,
)
from koordebpf.strategies.proactive_reclaim.values import ReclaimMeasured, ReclaimSettings, SwapState, TrimmedPod
from koordebpf.units import GIB, MIB, NS_PER_S, PAGE_BYTES
from tests.support.values.builders import frame, pod

S = NS_PER_S
EACH = 6 * S
SETTINGS = ReclaimSettings()
SOFT = ReclaimSettings(soft_limits=True)
POD = TrimmedPod("a", 1, "kubepods/pod-a", GIB, 800 * MIB, 200 * MIB, 1000, 50)


def looked(pod=POD, at_ns=S, **more):
    return replace(PodTrim(at_ns, pod.stalled_us, pod.refaulted_pages), **more)


class TestTrim:
    def test_the_first_look_takes_nothing(self):
        found = trim(POD, None, 0, S, SETTINGS)
        assert (found.size_bytes, found.why) == (0, "first_look")

    def test_counters_that_went_back_are_a_first_look(self):
        assert trim(replace(POD, stalled_us=999), looked(), 0, 2 * S, SETTINGS).why == "first_look"
        assert trim(POD, looked(at_ns=2 * S), 0, 2 * S, SETTINGS).why == "first_look"
        asked = looked(asked_bytes=MIB)  # whether any of it came back is not known
        assert trim(replace(POD, refaulted_pages=49), asked, 0, 7 * S, SETTINGS).why == "first_look"

    def test_the_step_grows_to_one_percent_of_what_can_be_reclaimed(self):
        memory, at_ns, sizes = looked(), S, []
        for _ in range(20):
            at_ns += EACH
            found = trim(POD, memory, 0, at_ns, SETTINGS)
            memory = found.memory
            sizes.append(found.size_bytes)
        assert sizes == sorted(sizes)
        assert sizes[0] == int(8 * MIB / 16 * 1.25) // PAGE_BYTES * PAGE_BYTES
        assert sizes[-1] == 8 * MIB // PAGE_BYTES * PAGE_BYTES

    def test_anonymous_memory_counts_as_far_as_it_may_be_swapped_out(self):
        by_swap = [
            trim(POD, looked(scale=1.0), swap_bytes, S + EACH, SETTINGS).size_bytes
            for swap_bytes in (0, 100 * MIB, 10 * GIB)
        ]
        assert by_swap == [8 * MIB, 9 * MIB, 10 * MIB]

    def test_nearer_to_its_line_less_is_taken(self):
        half = replace(POD, stalled_us=POD.stalled_us + 3000)  # 3 ms of 6 s: half of 0.1 %
        found = trim(half, looked(scale=1.0), 0, S + EACH, SETTINGS)
        assert found.size_bytes == 2 * MIB  # (1 − 1/2)²

    def test_a_pod_that_stalls_rests_and_is_asked_for_half_as_much(self):
        stalled = replace(POD, stalled_us=POD.stalled_us + 6000)
        found = trim(stalled, looked(scale=1.0, asked_bytes=8 * MIB), 0, S + EACH, SETTINGS)
        assert (found.size_bytes, found.is_hurt, found.memory.scale, found.memory.hurts) == (0, True, 0.5, 1)
        at_ns = S + EACH
        memory = found.memory
        while (found := trim(stalled, memory, 0, at_ns + EACH, SETTINGS)).why == "rests":
            at_ns, memory = at_ns + EACH, found.memory
        assert at_ns + EACH - (S + EACH) == 30 * S
        assert found.size_bytes == int(8 * MIB * 0.5 * 1.25)

    @pytest.mark.parametrize(("came_back", "is_hurt"), [(4 * MIB, True), (4 * MIB - PAGE_BYTES, False)])
    def test_memory_that_comes_back_hurts(self, came_back, is_hurt):
        refaulted = replace(POD, refaulted_pages=POD.refaulted_pages + came_back // PAGE_BYTES)
        assert trim(refaulted, looked(asked_bytes=8 * MIB), 0, S + EACH, SETTINGS).is_hurt == is_hurt

    def test_what_stalls_without_having_been_asked_is_left_alone_and_not_halved(self):
        stalled = replace(POD, stalled_us=POD.stalled_us + 60_000)
        found = trim(stalled, looked(scale=1.0), 0, S + EACH, SETTINGS)
        assert (found.size_bytes, found.is_hurt, found.why) == (0, False, "stalls")
        assert found.memory.scale == 1.0

    def test_the_scale_has_a_least_value(self):
        stalled = replace(POD, stalled_us=POD.stalled_us + 60_000)
        found = trim(stalled, looked(asked_bytes=MIB, scale=1 / 16), 0, S + EACH, SETTINGS)
        assert found.memory.scale == 1 / 16

    def test_the_floor_stays(self):
        small = replace(POD, file_bytes=16 * MIB + 40 * PAGE_BYTES, anon_bytes=0)
        found = trim(small, looked(scale=1.0), 0, S + EACH, replace(SETTINGS, step_percent=10.0))
        assert found.size_bytes == 40 * PAGE_BYTES
        none = trim(replace(small, file_bytes=16 * MIB + PAGE_BYTES), looked(scale=1.0), 0, S + EACH, SETTINGS)
        assert (none.size_bytes, none.why) == (0, "floor")


class TestSwap:
    @pytest.mark.parametrize(("swap", "usable"), [
        (SwapState(), 0),
        (SwapState(GIB, GIB), GIB // 2),
        (SwapState(GIB, GIB // 2 + 1), 1),
        (SwapState(GIB, GIB // 4), 0),
        (SwapState(GIB, GIB, 100 * MIB, 50 * MIB), GIB // 2),
        (SwapState(GIB, GIB, 100 * MIB, 50 * MIB + 1), 0),
        (SwapState(GIB, GIB, 0, 4096), GIB // 2),
    ])  # fmt: skip
    def test_what_may_be_swapped_out(self, swap, usable):
        assert usable_swap_bytes(swap, SETTINGS) == usable


class TestStrategy:
    def decide(self, measured, state=None, settings=SETTINGS, **of_pod):
        """Return the decision for a frame, by way of its JSON."""
        made = frame([pod("a", uid="a", **of_pod)])
        made = replace(made, measured=made.measured.with_part(PROACTIVE_RECLAIM.part, measured))
        view = view_of_frame(decode_frame(encode_frame(made), "frame"))
        return PROACTIVE_RECLAIM.decide(view, PROACTIVE_RECLAIM.measured_of(view), state or ReclaimState(), settings)

    def ready(self, measured):
        """Return a state that has seen these pods 6 s before."""
        pods = {each.uid: looked(each, measured.at_ns - EACH, scale=1.0) for each in measured.pods}
        return ReclaimState(pods, measured.sensitive_us, measured.at_ns - EACH)

    def test_without_a_measurement_or_support_it_is_skipped(self):
        assert self.decide(None).skipped == "not_due"
        made = self.decide(ReclaimMeasured(S, lacks="cgroup v1 has no memory.reclaim"))
        assert (made.skipped, made.reason) == ("no_support", "cgroup v1 has no memory.reclaim")

    def test_it_asks_each_pod_for_its_step(self):
        measured = ReclaimMeasured(10 * S, (POD, replace(POD, uid="b", file_bytes=0)), {"ls": 5})
        made = self.decide(measured, self.ready(measured))
        assert [(each.uid, each.size_bytes, each.swappiness) for each in made.orders] == [("a", 8 * MIB, None)]
        assert made.reason == "8.0 MiB is taken from 1 of 2 pods; nothing from b (nothing is left to take)"
        assert made.whys == {"a": "step", "b": "floor"}
        assert made.state.pods["a"].asked_bytes == 8 * MIB
        assert made.state.sensitive_us == {"ls": 5}

    def test_a_latency_sensitive_pod_that_stalls_stops_it_at_once(self):
        measured = ReclaimMeasured(10 * S, (POD,), {"ls": 5, "other": 5})
        state = self.ready(measured)
        made = self.decide(replace(measured, sensitive_us={"ls": 6005, "other": 5}), state)
        assert (made.orders, made.held_by) == ((), "ls")
        assert made.state.pods["a"].asked_bytes == 0
        assert self.decide(replace(measured, sensitive_us={"ls": 6004, "other": 5}), state).orders
        # How long one stalled whose counter ran backwards is not known.
        assert self.decide(replace(measured, sensitive_us={"ls": 4, "other": 5}), state).held_by == "ls"
        # One that is new has no rate yet.
        assert self.decide(replace(measured, sensitive_us={"new": 10**9}), state).orders

    def test_pods_from_which_nothing_is_taken_are_named_by_reason(self):
        pods = tuple(replace(POD, uid=uid, file_bytes=0, anon_bytes=0) for uid in "abcdef")
        measured = ReclaimMeasured(10 * S, pods)
        state = self.ready(measured)
        resting = replace(state.pods["b"], rests_until_ns=99 * S)
        made = self.decide(measured, replace(state, pods={**state.pods, "b": resting}))
        assert made.reason == (
            "0 B is taken from 0 of 6 pods; nothing from spark/a, c, d and 2 more (nothing is left to take), "
            "from b (it rests)"
        )
        held = self.decide(replace(measured, sensitive_us={"ls": 10**6}), replace(state, sensitive_us={"ls": 0}))
        assert held.whys == dict.fromkeys("abcdef", "held")

    def test_nothing_is_held_before_a_first_look(self):
        measured = ReclaimMeasured(10 * S, (POD,), {"ls": 10**9})
        made = self.decide(measured)
        assert (made.orders, made.held_by) == ((), None)

    def test_a_pod_that_ends_is_left_alone(self):
        measured = ReclaimMeasured(10 * S, (POD,))
        assert self.decide(measured, self.ready(measured), terminating=True).orders == ()

    def test_where_swap_must_not_be_used_file_memory_alone_is_asked_for(self):
        measured = ReclaimMeasured(10 * S, (POD,), swap=SwapState(GIB, 0), takes_swappiness=True)
        made = self.decide(measured, self.ready(measured))
        assert [(each.size_bytes, each.swappiness) for each in made.orders] == [(8 * MIB, 0)]
        made = self.decide(replace(measured, takes_swappiness=False), self.ready(measured))
        assert made.orders == ()
        assert "Linux 6.11" in made.reason
        assert made.whys == {"a": "no_swap"}

    @pytest.mark.parametrize(
        ("swap", "why"),
        [
            (SwapState(GIB, GIB, 100 * MIB, 51 * MIB), "zram"),
            (SwapState(GIB, GIB // 4), "swap_full"),
            (SwapState(), "floor"),
        ],
    )
    def test_it_says_why_anonymous_memory_is_not_swapped_out(self, swap, why):
        idle = replace(POD, file_bytes=MIB, anon_bytes=GIB)
        measured = ReclaimMeasured(
            10 * S, (idle, replace(idle, uid="b", anon_bytes=0)), swap=swap, takes_swappiness=True
        )
        made = self.decide(measured, self.ready(measured))
        assert made.whys == {"a": why, "b": "floor"}

    def test_on_cgroup_v1_pods_get_soft_limits_and_nothing_else(self):
        """What they hold beside page cache and the floor, in steps of 16 MiB."""
        measured = ReclaimMeasured(10 * S, (POD, replace(POD, uid="b", path="kubepods/pod-b")), soft_limits=True)
        assert self.decide(measured).skipped == "no_support"  # a frame of one moment, whatever is set
        made = self.decide(measured, settings=SOFT)
        assert [(each.path, each.file, each.value) for each in made.writes] == [
            ("kubepods/pod-a", CgroupFile.MEMORY_SOFT_LIMIT, 240 * MIB),
            ("kubepods/pod-b", CgroupFile.MEMORY_SOFT_LIMIT, 240 * MIB),
        ]
        assert (made.orders, made.skipped) == ((), None)
        left = self.decide(measured, settings=SOFT, terminating=True)
        assert [each.path for each in left.writes] == ["kubepods/pod-b"]

    def test_a_pod_that_was_hurt_is_named(self):
        measured = ReclaimMeasured(10 * S, (replace(POD, stalled_us=10**6),))
        state = self.ready(measured)
        before = replace(state.pods["a"], begin_stalled_us=0, asked_bytes=MIB)
        assert self.decide(measured, replace(state, pods={"a": before})).hurt == ("a",)
