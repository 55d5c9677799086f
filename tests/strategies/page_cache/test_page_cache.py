"""BEPageCacheSuppress: when page cache of best-effort pods is limited, how far, and when that ends."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import CgroupWrite, DesiredState, joined
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.page_cache.decide import (
    BE_PAGE_CACHE_SUPPRESS,
    PageCacheState,
    PodCap,
    eased,
    has_room,
    lifted,
    looked,
    lowered,
    raised,
)
from koordebpf.strategies.page_cache.values import CachePod, PageCacheMeasured, PageCacheSettings, SensitivePod
from koordebpf.units import GIB, MIB, NS_PER_S, PAGE_BYTES
from tests.support.values.builders import frame, pod

S = NS_PER_S
SETTINGS = PageCacheSettings()
HIGH, SOFT, LIMIT = CgroupFile.MEMORY_HIGH, CgroupFile.MEMORY_SOFT_LIMIT, CgroupFile.MEMORY_LIMIT
POD = CachePod("be", "kubepods/be", 500 * MIB, 400 * MIB, 0, 0)
CAP = PodCap(400 * MIB, 0, 0, 100 * MIB)


class TestCap:
    def test_a_step_takes_a_quarter_and_no_more_than_its_bytes(self):
        made = lowered({"a": CAP}, SETTINGS)["a"]
        assert (made.cap_bytes, made.first_bytes) == (300 * MIB, 400 * MIB)
        assert lowered({"a": made}, SETTINGS)["a"].cap_bytes == 225 * MIB
        large = lowered({"a": replace(CAP, file_bytes=4 * GIB)}, SETTINGS)["a"]
        assert large.cap_bytes == 4 * GIB - 128 * MIB

    def test_what_grows_comes_first_then_what_is_large(self):
        pods = {
            "small": CAP,
            "large": replace(CAP, file_bytes=480 * MIB),
            "grows": replace(CAP, file_bytes=320 * MIB, file_growth_bytes=MIB),
        }
        made = lowered(pods, SETTINGS)
        taken = {uid: pods[uid].file_bytes - (each.cap_bytes or pods[uid].file_bytes) for uid, each in made.items()}
        assert taken == {"grows": 80 * MIB, "large": 48 * MIB, "small": 0}

    def test_the_floor_stays(self):
        made = lowered({"a": replace(CAP, file_bytes=70 * MIB)}, SETTINGS)["a"]
        assert made.cap_bytes == SETTINGS.floor_bytes
        assert lowered({"a": replace(CAP, file_bytes=64 * MIB)}, SETTINGS)["a"].cap_bytes is None
        assert not has_room([replace(CAP, file_bytes=64 * MIB)], SETTINGS)
        assert has_room([CAP], SETTINGS)

    def test_the_limit_is_above_what_the_pod_holds_beside_page_cache_and_what_it_may_allocate(self):
        assert CAP.limit_bytes is None
        capped = replace(CAP, cap_bytes=64 * MIB, other_bytes=100 * MIB + 1)
        assert capped.limit_bytes == 168 * MIB  # a multiple of 4 MiB
        assert replace(capped, growth_bytes=40 * MIB).limit_bytes == 264 * MIB

    def test_a_cap_is_raised_until_it_limits_nothing(self):
        caps, now = [], {"a": replace(CAP, cap_bytes=200 * MIB, first_bytes=400 * MIB)}
        while now["a"].cap_bytes is not None:
            caps.append(now["a"].cap_bytes)
            now = raised(now, SETTINGS)
        assert caps == [200 * MIB, 250 * MIB, 250 * MIB * 5 // 4, 250 * MIB * 5 // 4 + 250 * MIB * 5 // 16]
        assert raised({"a": CAP}, SETTINGS)["a"] == CAP
        # One that holds far less needs no cap.
        empty = PodCap(10 * MIB, 0, cap_bytes=120 * MIB, first_bytes=400 * MIB)
        assert raised({"a": empty}, SETTINGS)["a"].cap_bytes is None

    def test_a_hurt_pod_has_its_cap_raised_while_others_are_lowered(self):
        hurt = replace(CAP, cap_bytes=200 * MIB, first_bytes=400 * MIB, is_hurt=True)
        assert lowered({"a": hurt, "b": CAP}, SETTINGS)["a"].cap_bytes == 250 * MIB
        made = eased({"a": hurt, "b": replace(CAP, cap_bytes=200 * MIB)}, SETTINGS)
        assert (made["a"].cap_bytes, made["b"].cap_bytes) == (250 * MIB, 200 * MIB)

    def test_lifted_is_no_cap(self):
        assert lifted({"a": replace(CAP, cap_bytes=MIB, first_bytes=GIB)}) == {"a": CAP}

    def test_the_first_look_knows_no_growth(self):
        assert looked(POD, None, 0, SETTINGS) == CAP

    @pytest.mark.parametrize(("refaulted", "stalled_us", "cap_bytes", "is_hurt"), [
        (27599, 599_999, GIB, False),
        (27600, 0, GIB, True),
        (27600, 0, 400 * MIB, True),
        (0, 600_000, GIB, True),  # it has less page cache than it may: what it allocates takes the room
        (0, 600_000, 400 * MIB, False),  # it waits for its own stream of page cache
        (63, 900_000, 533 * MIB, False),
        (63, 900_000, 534 * MIB, True),
        (1063, 900_000, 400 * MIB, False),
        (1064, 600_000, 400 * MIB, True),  # it waits for pages that it had
        (1064, 599_999, 400 * MIB, False),
        (None, 900_000, 400 * MIB, False),
        (None, None, GIB, False),
    ])  # fmt: skip
    def test_a_pod_that_stalls_or_refaults_more_than_before_it_was_limited_is_hurt(
        self, refaulted, stalled_us, cap_bytes, is_hurt
    ):
        now = replace(POD, activated_pages=refaulted, stalled_us=stalled_us, usage_bytes=530 * MIB)
        capped = replace(CAP, cap_bytes=cap_bytes, before_refault_rate=1000, before_stall_ratio=0.1)
        found = looked(now, capped, S, SETTINGS)
        assert (found.is_hurt, found.growth_bytes, found.file_growth_bytes) == (is_hurt, 30 * MIB, 0)
        assert (found.before_refault_rate, found.before_stall_ratio) == (1000, 0.1)

    def test_a_counter_that_ran_backwards_leaves_what_it_felt(self):
        felt = replace(CAP, activated_pages=9, stalled_us=9, refault_rate=7.0, stall_ratio=0.3)
        found = looked(POD, felt, S, SETTINGS)
        assert (found.refault_rate, found.stall_ratio) == (7.0, 0.3)

    def test_what_it_felt_before_it_was_limited_is_remembered(self):
        found = looked(replace(POD, activated_pages=99_999, stalled_us=900_000), CAP, S, SETTINGS)
        assert (found.is_hurt, found.before_refault_rate, found.before_stall_ratio) == (False, 99_999, 0.9)


class Story:
    """Second after second: what latency-sensitive pods refaulted, and how much page cache the best-effort one has."""

    def __init__(self, files=(HIGH,), settings=SETTINGS, **of_pod):
        self.files = tuple(each.value for each in files)
        self.settings, self.of_pod = settings, of_pod
        self.at_s, self.pages, self.kept, self.state = 10, 0, 0, PageCacheState()
        self.pods = (POD,)
        self.second(0)

    def second(self, refaults, kept=0):
        """Let a second pass with so many refaults, of which so many pages stay."""
        self.at_s += 1
        self.pages += refaults
        self.kept += kept * PAGE_BYTES
        pods = tuple(self._followed(each) for each in self.pods)
        measured = PageCacheMeasured(self.at_s * S, pods, {"ls": SensitivePod(self.pages, self.kept)}, self.files)
        made = frame([pod("be", uid="be", **self.of_pod)])
        made = replace(made, measured=made.measured.with_part(BE_PAGE_CACHE_SUPPRESS.part, measured))
        view = view_of_frame(decode_frame(encode_frame(made), "frame"))
        given = BE_PAGE_CACHE_SUPPRESS.measured_of(view)
        self.made = BE_PAGE_CACHE_SUPPRESS.decide(view, given, self.state, self.settings)
        self.state = self.made.state
        return self.made

    # The pod keeps to its cap.
    def _followed(self, each):
        cap = self.state.pods.get(each.uid)
        most = each.file_bytes if cap is None or cap.cap_bytes is None else min(cap.cap_bytes, each.file_bytes)
        return replace(each, file_bytes=most, usage_bytes=each.usage_bytes - each.file_bytes + most)

    def values(self):
        return [(each.path, each.file, each.value) for each in self.made.writes]


class TestStrategy:
    def test_without_a_measurement_it_is_not_due(self):
        made = BE_PAGE_CACHE_SUPPRESS.decide(view_of_frame(frame([])), None, PageCacheState(), SETTINGS)
        assert (made.skipped, made.writes) == ("not_due", ())

    def test_a_stream_that_waits_at_its_limit_keeps_it(self):
        """Its node was not full yet when it was limited: it had not waited before."""
        story = Story()
        for refaults in (1000, 900):
            story.second(refaults)
        held = story.values()
        for _ in range(30):
            story.pods = (replace(story.pods[0], stalled_us=story.pods[0].stalled_us + 950_000),)
            assert story.second(0).limited_pods == 1
        assert story.values() == held

    def test_calm_pods_limit_no_pod(self):
        made = Story().second(63)
        assert (made.writes, made.refaults_per_s, made.worst) == ((), 63, "ls")

    def test_refaults_lower_a_limit_second_by_second(self):
        story = Story()
        story.second(1000)
        assert story.values() == [("kubepods/be", HIGH, 400 * MIB)]  # 100 MiB beside page cache, 300 of that
        assert story.made.reason == (
            "latency-sensitive pod ls refaults 1000 pages a second; "
            "page cache of 1 best-effort pods may have 300 MiB"
        )  # fmt: skip
        story.second(900)
        assert story.values() == [("kubepods/be", HIGH, 328 * MIB)]
        assert (story.made.limited_pods, story.made.limited_bytes) == (1, 225 * MIB)

    def test_a_count_that_ran_backwards_is_no_rate_and_begins_the_trial_again(self):
        story = Story()
        for _ in range(9):
            story.second(1000)
        story.pages = 0
        made = story.second(0)
        assert (made.worst, made.failed) == (None, False)
        for _ in range(5):
            assert not story.second(1000).failed

    def test_while_refaults_get_fewer_no_more_is_taken(self):
        story = Story()
        story.second(1000)
        before = story.values()
        assert "fewer than before" in story.second(700).reason
        assert story.values() == before

    def test_limits_that_do_not_help_are_lifted_and_rest(self):
        story = Story()
        for _ in range(10):
            assert story.second(1000).writes
        made = story.second(800)
        assert (made.writes, made.failed) == ((), True)
        assert "1000 at most before, limits do not help and are lifted" in made.reason
        for _ in range(59):
            made = story.second(1000)
            assert (made.writes, made.failed) == ((), False)
        assert "limits did not help, none for 1 s" in made.reason
        assert story.second(1000).writes

    def test_while_what_was_refaulted_stays_no_more_is_taken_and_limits_are_kept(self):
        """A large file comes back as slowly as its disk reads it."""
        story = Story()
        story.second(1000)
        before = story.values()
        for _ in range(60):
            assert "and they stay" in story.second(1000, kept=750).reason
        assert story.values() == before
        # A quarter of all of it has to stay.
        for _ in range(120):
            assert not story.second(1000).failed
        assert story.second(1000).failed

    def test_the_most_that_was_refaulted_under_limits_counts_as_without(self):
        """The flood had just started when the first limit was set."""
        story = Story()
        for refaults in (100, *[1000] * 9):
            story.second(refaults)
        for _ in range(5):
            assert not story.second(700).failed
        assert story.made.state.without_per_s == 1000

    def test_another_set_of_latency_sensitive_pods_begins_another_trial(self):
        story = Story()
        for _ in range(9):
            story.second(1000)
        story.state = replace(story.state, sensitive={**story.state.sensitive, "gone": SensitivePod(9, 9)})
        for _ in range(10):
            assert not story.second(1000).failed
        assert story.second(1000).failed

    def test_limits_that_help_are_lowered_on_to_the_floor(self):
        story = Story()
        story.second(1000)
        for _ in range(20):
            story.second(740)
        assert story.made.limited_bytes == SETTINGS.floor_bytes
        assert not story.made.failed

    def test_a_calm_pod_holds_limits_for_a_minute_then_they_are_raised(self):
        story = Story()
        for refaults in (1000, 900, 0):
            story.second(refaults)
        held = story.values()
        for _ in range(59):
            story.second(0)
            assert story.values() == held
        story.second(0)
        assert story.made.limited_bytes > 225 * MIB
        assert "limits are raised" in story.made.reason
        for _ in range(3):
            story.second(0)
        assert story.made.writes == ()
        assert story.made.state.without_per_s == 0

    def test_refaults_that_come_back_lower_the_limit_again_and_are_measured_by_those_without(self):
        story = Story()
        for refaults in (1000, 900, *[0] * 61):
            story.second(refaults)
        above = story.made.limited_bytes
        for _ in range(15):
            story.second(300)  # less than three quarters of 1000: the limits help
        assert story.made.limited_bytes < above
        assert not story.made.failed

    def test_nothing_is_limited_where_no_best_effort_pod_has_page_cache(self):
        story = Story()
        story.pods = (replace(POD, file_bytes=50 * MIB),)
        made = story.second(1000)
        assert made.writes == ()
        assert "no best-effort pod has page cache" in made.reason

    def test_a_pod_that_ends_is_left_alone(self):
        assert Story(terminating=True).second(1000).writes == ()

    def test_a_pod_that_is_gone_is_forgotten(self):
        story = Story()
        story.second(1000)
        story.pods = ()
        assert (story.second(1000).writes, story.state.pods) == ((), {})

    def test_a_new_latency_sensitive_pod_has_no_rate_yet(self):
        story = Story()
        story.state = replace(story.state, sensitive={})
        assert (story.second(1000).writes, story.made.worst) == ((), None)

    def test_counters_that_went_back_are_no_refaults(self):
        story = Story()
        assert story.second(-5).refaults_per_s == 0


class TestFiles:
    def test_a_kernel_with_a_limit_of_page_cache_gets_that(self):
        story = Story((CgroupFile.MEMORY_PAGECACHE_SIZE, HIGH))
        story.second(1000)
        assert story.values() == [
            ("kubepods/be", CgroupFile.MEMORY_PAGECACHE_ENABLE, 1),
            ("kubepods/be", CgroupFile.MEMORY_PAGECACHE_SIZE, 300 * MIB),
        ]

    @pytest.mark.parametrize(("v1", "file"), [("softLimit", SOFT), ("limit", LIMIT)])
    def test_on_cgroup_v1_the_setting_chooses(self, v1, file):
        story = Story((SOFT, LIMIT), replace(SETTINGS, v1=v1))
        story.second(1000)
        assert story.values() == [("kubepods/be", file, 400 * MIB)]

    def test_without_a_file_it_says_so(self):
        made = Story((SOFT, LIMIT), replace(SETTINGS, v1="none")).made
        assert (made.skipped, made.state) == ("no_support", PageCacheState())
        assert Story((), SETTINGS).made.skipped == "no_support"

    @pytest.mark.parametrize("file", [HIGH, LIMIT])
    def test_of_two_limits_the_lower_one_counts(self, file):
        key = ("kubepods/be", file)
        own = DesiredState("", (CgroupWrite(*key, 400 * MIB),))
        other = DesiredState("", (CgroupWrite(*key, 300 * MIB),))
        assert joined({"batchResource": other, "bePageCacheSuppress": own})[key].value == 300 * MIB
        assert joined({"ladder": own, "bePageCacheSuppress": other})[key].owners[0] == "bePageCacheSuppress"

    def test_memory_qos_limits_page_cache_before_it(self):
        key = ("kubepods/be", CgroupFile.MEMORY_PAGECACHE_SIZE)
        states = {"memoryQos": 900 * MIB, "bePageCacheSuppress": 300 * MIB}
        made = joined({name: DesiredState("", (CgroupWrite(*key, size),)) for name, size in states.items()})
        assert made[key].value == 900 * MIB
