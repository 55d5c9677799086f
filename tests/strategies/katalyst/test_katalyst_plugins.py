"""What Katalyst's plugins inside the agent judge, and whom they choose."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.errors import ConfigError
from koordebpf.policy.strategy import Empty
from koordebpf.slo.katalyst import (
    MEMORY_ENHANCEMENT,
    QOS_LEVEL,
    SOFT_NOTICE,
    TAINT_PREFIX,
    qos_level,
    rss_overuse_ratio,
    taints_of,
)
from koordebpf.state.build import view_of_frame
from koordebpf.state.cnr import Cnr
from koordebpf.state.pods.requests import RECLAIMED_CPU
from koordebpf.strategies.katalyst.inner import INNER
from koordebpf.strategies.katalyst.plugin import Seen, katalyst_pods
from koordebpf.strategies.katalyst.plugins.cnr import RECLAIMED, ReclaimedSettings
from koordebpf.strategies.katalyst.plugins.memory import (
    NUMA_MEMORY,
    RSS_OVERUSE,
    SYSTEM_MEMORY,
    Action,
    NodeTimes,
    NumaMemorySettings,
    NumaMemoryState,
    RssOveruseSettings,
    SystemMemorySettings,
    SystemMemoryState,
    are_short,
    counted,
    memory_of,
    ranked,
    used_threshold_bytes,
    watermarks,
)
from koordebpf.strategies.katalyst.requests import go_float
from koordebpf.strategies.katalyst.values import KatalystMeasured, NumaMemory, SystemMemory
from koordebpf.units import GIB, MIB, NS_PER_S, PAGE_BYTES
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, pod

PAGES = GIB // PAGE_BYTES


def kpod(name: str, level: str = "reclaimed_cores", **more: object) -> PodAndMeasure:
    made = pod(name, qos=None, kube_qos="Burstable", namespace="kat", uid=name, shmem=0, **more)
    annotations = {QOS_LEVEL: level}
    return replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, annotations=annotations)))


def _unmeasured(made: PodAndMeasure) -> PodAndMeasure:
    return replace(made, measure=replace(made.measure, memory=None))


def _listening(made: PodAndMeasure) -> PodAndMeasure:
    annotations = {**(made.pod.metadata.annotations or {}), SOFT_NOTICE: "true"}
    return replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, annotations=annotations)))


def seen(*pods: PodAndMeasure, at_s: float = 0, **measured: object) -> Seen:
    view = replace(view_of_frame(frame(pods)), now_ns=NOW_NS + int(at_s * NS_PER_S))
    active = katalyst_pods(view.pods, {})
    return Seen(view, KatalystMeasured(**measured), active, active)


def numa(free: float, *, cache: float = 8, node: int = 0, pods: dict[str, int] | None = None) -> NumaMemory:
    """A node of 64 GiB whose lowest watermark counts as 2 GiB and whose low one as 3.25; GiB."""
    low, lowest = 3 * PAGES, PAGES
    return NumaMemory(node, 64 * GIB, int(free * PAGES), lowest, low, int(cache * PAGES), 0, pods or {})


class TestNumaMemory:
    ALONE = NumaMemorySettings(counts_cache=False)  # free pages alone, as Katalyst counts

    def test_what_pods_hold_matters_below_the_low_watermark_alone(self) -> None:
        assert not are_short([numa(4), numa(4, node=1)], self.ALONE)
        assert are_short([numa(4), numa(3, node=1)], self.ALONE)
        assert not are_short([numa(3)], replace(self.ALONE, is_on=False))

    def test_little_page_cache_makes_a_node_short_earlier(self) -> None:
        assert watermarks(numa(5)) == (2 * PAGES, 3 * PAGES + PAGES // 4)
        assert watermarks(numa(5, cache=0.5)) == (2 * PAGES, 4 * PAGES + PAGES // 4)

    def test_the_lowest_watermark_is_never_above_the_low_one(self) -> None:
        small = replace(numa(5), min_pages=100, low_pages=200)
        assert watermarks(small)[0] == watermarks(small)[1] == 200 + PAGES // 4

    def test_slowly_below_reclaimed_pods_go_after_seven_rounds_and_every_pod_after_twelve(self) -> None:
        times, actions = NodeTimes(), []
        for _ in range(12):
            times = counted(numa(3), times, self.ALONE)
            actions.append(times.action)
        assert actions == [None] * 6 + ["reclaimed"] * 5 + ["eviction"]

    def test_far_below_it_counts_twice(self) -> None:
        times, rounds = NodeTimes(), 0
        while times.action is None:
            times, rounds = counted(numa(2.2), times, self.ALONE), rounds + 1
        assert rounds == 5

    def test_below_the_lowest_reclaimed_pods_go_at_once_and_every_pod_one_round_later(self) -> None:
        first = counted(numa(1), NodeTimes(), self.ALONE)
        assert (first.action, first.is_under) == ("reclaimed", True)
        assert counted(numa(1), first, self.ALONE).action == "eviction"

    def test_a_node_that_recovers_counts_back(self) -> None:
        times = counted(numa(5), NodeTimes(12, "eviction", is_under=True), self.ALONE)
        assert times == NodeTimes(6, None, is_under=False)

    @pytest.mark.parametrize("is_read_twice", [False, True])
    def test_a_flood_of_page_cache_is_no_shortage(self, is_read_twice: bool) -> None:
        state = NumaMemoryState()
        flood = numa(0.5, cache=30)
        if is_read_twice:
            flood = replace(flood, inactive_file_pages=0, active_file_pages=flood.inactive_file_pages)
        for _ in range(20):
            found = NUMA_MEMORY.judge(seen(kpod("a"), numa=(flood,)), state, NumaMemorySettings())
            state = found.state
            assert found.threshold is None

    def test_the_victim_is_of_the_node_that_is_short(self) -> None:
        nodes = (numa(20, pods={"far": 9 * GIB}), numa(0.1, cache=0, node=1, pods={"near": GIB, "tiny": MIB}))
        here = seen(kpod("far"), kpod("near"), kpod("tiny"), numa=nodes)
        found = NUMA_MEMORY.judge(here, NumaMemoryState(), NumaMemorySettings())
        assert found.threshold is not None
        top, _ = NUMA_MEMORY.top_pods(here, found.state, NumaMemorySettings(), 1)
        assert top.uids == ("near",)
        assert top.grace_s == 1

    def test_a_round_ahead_of_its_time_counts_none(self) -> None:
        early = replace(seen(kpod("a"), numa=(numa(0.1, cache=0),)), is_regular=False)
        found = NUMA_MEMORY.judge(early, NumaMemoryState(), NumaMemorySettings())
        assert found.threshold is None
        assert found.state.nodes == {"0": NodeTimes()}

    def test_what_is_below_the_lowest_watermark_waits_for_no_round(self) -> None:
        zones = (numa(1, node=0), numa(3, node=1))
        early = replace(seen(kpod("a"), numa=zones), is_regular=False, pressing=(NUMA_MEMORY.name,))
        found = NUMA_MEMORY.judge(early, NumaMemoryState(), self.ALONE)
        assert found.threshold is not None
        # AND the other node, which is below its low one, is not counted early
        assert found.state.nodes == {"0": NodeTimes(11, "reclaimed", True), "1": NodeTimes()}

    def test_what_was_not_measured_is_said(self) -> None:
        found = NUMA_MEMORY.judge(seen(kpod("a")), NumaMemoryState(), NumaMemorySettings())
        assert found.lacks == "the memory of NUMA nodes was not measured"


class TestSystemPressure:
    SETTINGS = SystemMemorySettings()

    def look(self, at_s: float, state: SystemMemoryState, *, pressure: float, shares: tuple[float, ...]):
        pods = [kpod(f"online-{number}", "shared_cores") for number in range(len(shares))]
        of_pods = {f"online-{number}": each for number, each in enumerate(shares)}
        system = SystemMemory(64 * GIB, 32 * GIB, 32 * GIB, 10, pressure, pods_pressure={**of_pods, "batch": 90})
        here = seen(*pods, kpod("batch", anon=100), at_s=at_s, system=system)
        return here, SYSTEM_MEMORY.judge(here, state, self.SETTINGS)

    def test_reclaimed_pods_go_after_15_s_and_every_pod_after_45(self) -> None:
        state, first = SystemMemoryState(), {}
        for at_s in range(0, 60, 5):
            here, found = self.look(at_s, state, pressure=20, shares=(6, 6, 6))
            state = found.state
            if found.threshold is not None:
                top, _ = SYSTEM_MEMORY.top_pods(here, state, self.SETTINGS, 0)
                first.setdefault(len(top.uids), at_s)
        assert first == {1: 15, 4: 45}

    @pytest.mark.parametrize(
        ("pressure", "shares"),
        [(14.9, (6, 6, 6)), (20, (6, 6)), (20, (0.5, 0.5, 40)), (20, (3.9, 3.9, 3.9))],
        ids=["level below 15", "two pods", "one pod", "mean below 4"],
    )
    def test_less_than_that_evicts_no_pod(self, pressure: float, shares: tuple[float, ...]) -> None:
        state = SystemMemoryState()
        for at_s in range(0, 120, 5):
            _, found = self.look(at_s, state, pressure=pressure, shares=shares)
            state = found.state
            assert found.threshold is None

    def test_where_the_pressure_of_pods_is_not_known_that_is_said(self) -> None:
        system = SystemMemory(64 * GIB, 32 * GIB, 32 * GIB, 10, 20)
        found = SYSTEM_MEMORY.judge(seen(kpod("online"), system=system), SystemMemoryState(), self.SETTINGS)
        assert found.lacks == "the pressure of pods was not measured"
        calm = replace(system, pressure=14.9)
        assert SYSTEM_MEMORY.judge(seen(kpod("online"), system=calm), SystemMemoryState(), self.SETTINGS).lacks is None

    def test_a_pause_starts_the_clock_again(self) -> None:
        _, found = self.look(0, SystemMemoryState(), pressure=20, shares=(6, 6, 6))
        _, found = self.look(10, found.state, pressure=20, shares=(0, 0, 6))
        assert found.state.pressed_ns is None


def test_a_reclaimed_pod_of_higher_priority_is_evicted_before_any_other() -> None:
    pods = seen(
        kpod("shared", "shared_cores", priority=0, anon=500),
        kpod("small", priority=10, anon=10),
        kpod("large", priority=10, anon=20),
        kpod("strange", "no_such_level", priority=-5, anon=900),
    ).candidates
    assert [each.pod.name for each in ranked(pods, Action.RECLAIMED, memory_of, 0)] == ["large", "small"]
    every = ranked(pods, Action.EVERY_POD, memory_of, 0)
    assert [each.pod.name for each in every] == ["large", "small", "strange", "shared"]


def test_reclaimed_pods_that_request_too_much_are_a_hard_threshold() -> None:
    pods = [kpod("few", requests={RECLAIMED_CPU: "1000"}), kpod("many", requests={RECLAIMED_CPU: "9001"})]
    here = seen(*pods, kpod("online", "shared_cores"), cnr=Cnr({RECLAIMED_CPU: 2000}))
    found = RECLAIMED.judge(here, Empty(), ReclaimedSettings())
    assert found.threshold is not None
    assert (found.threshold.scope, found.threshold.value, found.threshold.observed) == (RECLAIMED_CPU, 10000, 10001)
    top, _ = RECLAIMED.top_pods(here, Empty(), ReclaimedSettings(), 1)
    assert (top.uids, top.grace_s) == (("many",), 60)
    without = RECLAIMED.judge(seen(*pods), Empty(), ReclaimedSettings())
    assert without.lacks == "there is no CustomNodeResource of this node"


def test_above_a_soft_factor_the_largest_pods_that_listen_are_notified() -> None:
    sizes = {"small": 1000, "middle": 2000, "large": 4000}
    pods = [_listening(kpod(name, requests={RECLAIMED_CPU: str(size)})) for name, size in sizes.items()]
    here = seen(*pods, kpod("deaf", requests={RECLAIMED_CPU: "9000"}), cnr=Cnr({RECLAIMED_CPU: 4000}))
    settings = ReclaimedSettings(soft_cpu_factor=0.9)
    found = RECLAIMED.judge(here, Empty(), settings)
    assert found.threshold is not None
    assert (found.threshold.met, found.threshold.value) == ("soft", 3600)
    top, _ = RECLAIMED.top_pods(here, Empty(), settings, 0)
    assert top.uids == ("large",)  # the two others fit below the limit


def test_a_resource_that_the_node_does_not_give_is_no_shortage() -> None:
    pods = [kpod("a", requests={RECLAIMED_CPU: "10"})]
    here = seen(*pods, cnr=Cnr({RECLAIMED_CPU: 0}))
    skipping = ReclaimedSettings(skip_zero=frozenset({RECLAIMED_CPU}))
    assert RECLAIMED.judge(here, Empty(), ReclaimedSettings()).threshold is not None
    assert RECLAIMED.judge(here, Empty(), skipping).threshold is None
    assert RECLAIMED.top_pods(here, Empty(), skipping, 1)[0].uids == ()
    assert RECLAIMED.judge(here, Empty(), ReclaimedSettings(is_on=False)).threshold is None
    assert RECLAIMED.judge(seen(*pods, cnr=Cnr()), Empty(), ReclaimedSettings()).lacks is not None


@pytest.mark.parametrize(
    ("condition", "effects", "taints"),
    [
        ("MemoryPressure", ("NoExecute", "NoSchedule", "NoSchedule"), ["NoSchedule", "NoExecute"]),
        ("Disk", ("Whatever",), []),
        ("no name", ("NoSchedule",), []),
        ("x" * 64, ("NoSchedule",), []),
    ],
)
def test_a_condition_is_as_many_taints_as_it_has_effects(
    condition: str, effects: tuple[str, ...], taints: list[str]
) -> None:
    key = f"{TAINT_PREFIX}{condition}"
    assert taints_of(condition, effects) == [(key, effect) for effect in taints]


@pytest.mark.parametrize(
    ("own", "anon", "is_over"),
    [(None, 106, True), (None, 105, False), ("2", 106, False), ("0.5", 60, True), ("x", 500, False)],
)
def test_a_pod_may_use_so_many_times_its_request(own: str | None, anon: int, is_over: bool) -> None:
    made = kpod("a", anon=anon, requests={"memory": "100Mi"})
    if own is not None:
        annotations = {QOS_LEVEL: "shared_cores", MEMORY_ENHANCEMENT: f'{{"rss_overuse_threshold": "{own}"}}'}
        made = replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, annotations=annotations)))
    found = RSS_OVERUSE.judge(seen(made), Empty(), RssOveruseSettings(is_on=True))
    assert bool(found.evict) is is_over


def test_annotations_that_contradict_each_other_give_no_level() -> None:
    assert qos_level({}) == "shared_cores"
    assert qos_level({"tier": "batch"}, {"reclaimed_cores": {"tier": "batch"}}) == "reclaimed_cores"
    for written in ({QOS_LEVEL: "Reclaimed"}, {QOS_LEVEL: "shared_cores", "tier": "batch"}):
        with pytest.raises(ConfigError):
            qos_level(written, {"reclaimed_cores": {"tier": "batch"}})


@pytest.mark.parametrize("text", ["[]", "{", '{"rss_overuse_threshold": "0"}', '{"rss_overuse_threshold": "inf"}'])
def test_an_enhancement_that_cannot_be_read_says_so(text: str) -> None:
    with pytest.raises(ConfigError, match="memory_enhancement"):
        rss_overuse_ratio({MEMORY_ENHANCEMENT: text})


def test_numbers_are_as_go_prints_them() -> None:
    values = (1e6, 999999.0, 123456789.0, -0.5, 0.0001, float("inf"))
    assert [go_float(each) for each in values] == ["1e+06", "999999", "1.23456789e+08", "-0.5", "0.0001", "+Inf"]


class TestSystemMemory:
    SHORT = SystemMemory(64 * GIB, GIB, GIB, 500)  # 5 % of it are 3.2 GiB

    def test_switched_off_or_not_measured_it_judges_nothing(self) -> None:
        off = SystemMemorySettings(is_on=False)
        assert SYSTEM_MEMORY.judge(seen(system=self.SHORT), SystemMemoryState(), off).threshold is None
        absent = SYSTEM_MEMORY.judge(seen(), SystemMemoryState(), SystemMemorySettings())
        assert absent.lacks == "the machine's free memory was not measured"
        assert used_threshold_bytes(self.SHORT, off) is None

    def test_between_two_evictions_it_cools_down_and_without_a_shortage_it_chooses_no_pod(self) -> None:
        settings, pods = SystemMemorySettings(), (kpod("a"), kpod("b"))
        top, state = SYSTEM_MEMORY.top_pods(seen(*pods, system=self.SHORT), SystemMemoryState(), settings, 1)
        assert len(top.uids) == 1
        for at_s, count in ((34, 0), (36, 1)):
            found, _ = SYSTEM_MEMORY.top_pods(seen(*pods, at_s=at_s, system=self.SHORT), state, settings, 1)
            assert len(found.uids) == count
        free = replace(self.SHORT, available_bytes=32 * GIB)
        assert SYSTEM_MEMORY.top_pods(seen(*pods, system=free), SystemMemoryState(), settings, 1)[0].uids == ()

    def test_what_kswapd_reclaims_counts_where_it_is_asked_for_and_lasts(self) -> None:
        settings = SystemMemorySettings(kswapd_pages=2000)
        free = replace(self.SHORT, available_bytes=32 * GIB)
        state, met = SystemMemoryState(), []
        # 2,000 pages a second from 10 s on, a pause, and again.
        stolen = 0
        for at_s in range(0, 300, 10):
            stolen += 20_000 if 10 <= at_s < 150 or at_s >= 160 else 0
            looked = seen(kpod("a", "shared_cores"), at_s=at_s, system=replace(free, stolen_pages=stolen))
            found = SYSTEM_MEMORY.judge(looked, state, settings)
            state = found.state
            if found.threshold is not None:
                met.append(at_s)
                assert (found.threshold.value, found.threshold.observed) == (2000, 2000)
                assert SYSTEM_MEMORY.top_pods(looked, state, settings, 1)[0].uids == ("a",)
        assert met == [120, 130, 140, 270, 280, 290]
        # AND by default it is not looked at
        assert SYSTEM_MEMORY.judge(looked, state, SystemMemorySettings()).threshold is None

    def test_a_count_of_kswapd_that_ran_backwards_ends_nothing(self) -> None:
        settings = SystemMemorySettings(kswapd_pages=2000)
        free = replace(self.SHORT, available_bytes=32 * GIB)
        state, met = SystemMemoryState(), []
        for at_s in range(0, 200, 10):
            stolen = 20_000 * (at_s - 70 if at_s >= 70 else at_s)  # from 0 again at 70 s
            looked = seen(kpod("a", "shared_cores"), at_s=at_s, system=replace(free, stolen_pages=stolen))
            found = SYSTEM_MEMORY.judge(looked, state, settings)
            state = found.state
            met += [at_s] if found.threshold is not None else []
        assert met == list(range(120, 200, 10))

    def test_from_its_threshold_on_a_round_does_not_wait(self) -> None:
        used = used_threshold_bytes(self.SHORT, SystemMemorySettings(free_minimum_bytes=8 * GIB))
        assert used == 56 * GIB + 1
        assert used_threshold_bytes(self.SHORT, SystemMemorySettings(counts_cache=False)) is None


def test_only_pods_with_all_labels_a_level_and_a_measurement_may_use_too_much() -> None:
    settings = RssOveruseSettings(is_on=True, labels=("tier=batch", "team=a"))
    asked = {"memory": "1Mi"}
    pods = (
        kpod("whole", anon=9, requests=asked, labels={"tier": "batch", "team": "a"}),
        kpod("half", anon=9, requests=asked, labels={"tier": "batch"}),
        kpod("system", "system_cores", anon=9, requests=asked, labels={"tier": "batch", "team": "a"}),
        _unmeasured(kpod("unmeasured", requests=asked, labels={"tier": "batch", "team": "a"})),
        kpod("without", anon=9, labels={"tier": "batch", "team": "a"}),
    )
    found = RSS_OVERUSE.judge(seen(*pods), Empty(), settings)
    assert [each.uid for each in found.evict] == ["whole"]
    assert found.lacks == "the resident memory of kat/unmeasured was not measured"
    assert RSS_OVERUSE.judge(seen(*pods), Empty(), RssOveruseSettings()).evict == ()
    assert RSS_OVERUSE.top_pods(seen(*pods), Empty(), settings, 1)[0].uids == ()


def test_a_selector_that_half_matches_is_a_contradiction() -> None:
    selectors = {"reclaimed_cores": {"tier": "batch", "team": "a"}}
    with pytest.raises(ConfigError, match="says no reclaimed_cores"):
        qos_level({"tier": "batch", "team": "b"}, selectors)
    assert rss_overuse_ratio({MEMORY_ENHANCEMENT: '{"numa_binding": "true"}'}) is None
    with pytest.raises(ConfigError, match="above 0"):
        rss_overuse_ratio({MEMORY_ENHANCEMENT: '{"rss_overuse_threshold": "many"}'})


def test_plugins_have_the_names_that_katalysts_agent_gives_them() -> None:
    assert {each.name for each in INNER.values()} == {
        "numa-memory-pressure-eviction-plugin",
        "system-memory-pressure-eviction-plugin",
        "rss-overuse-eviction-plugin",
        "reclaimed-resource-pressure-eviction-plugin",
        "reclaimed-numa-resource-pressure-eviction-plugin",
        "rootfs-pressure-eviction-plugin",
        "rootfs-overuse-eviction-plugin",
        "network-eviction-plugin",
    }
