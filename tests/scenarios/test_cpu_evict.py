"""Eviction for CPU as stories: who is evicted when best-effort pods starve, when the node is full or overcommitted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.policy.decide import decide
from koordebpf.policy.evict.all_features import be_cpu_order
from koordebpf.policy.plan import Plan
from koordebpf.state.amount import CPU
from koordebpf.state.cpu.measured import BeQuota, CpuWindow
from koordebpf.state.view import PastEviction
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, in_flight, names, pod, read_back, supposed, why_not
from tests.support.values.cpu_nodes import be_tree, node

BATCH, MID = "kubernetes.io/batch-cpu", "kubernetes.io/mid-cpu"
ENABLED = {"koordinator.sh/eviction-enabled": "true"}
W = 60 * NS_PER_S


SATISFACTION = {
    "cpuEvictBESatisfactionLowerPercent": 60,
    "cpuEvictBESatisfactionUpperPercent": 80,
    "cpuEvictTimeWindowSeconds": 60,
}
USAGE = {"cpuEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 5999}
# Name, priority, asked for, used. They ask for 20 CPUs; where they have a cpuset of 10 they are satisfied to 50 %.
STARVING = [
    ("low", 5000, 4000, 3900),
    ("busy", 5500, 6000, 4500),
    ("idle", 5500, 6000, 100),
    ("steady", 5500, 4000, 1400),
]


def window(covered_s: int = 60, **averages: int | None) -> CpuWindow:
    return CpuWindow(
        window_ns=W,
        covered_ns=covered_s * NS_PER_S,
        **{f"{name}_millicpu": value for name, value in averages.items()},
    )


def feature(view, name):
    plan = decide(view)
    assert read_back(plan) == plan
    return next(each for each in plan.features if each.verdict.feature == name)


class TestBestEffortSatisfaction:
    def view(self, *, used: int = 9900, limit: int = 10, quota_us: int | None = None, average=None, **more):
        pods = [pod(name, priority=priority, requests={BATCH: str(asks)}) for name, priority, asks, _ in STARVING]
        usage = {f"uid-spark-{name}": use for name, _, _, use in STARVING}
        strategy = SATISFACTION | more.pop("strategy", {})
        average = average or window(be_used=used, be_request=20_000, be_limit=10_000)
        return node(
            cpus=32, node_used=used, be_used=used, be_pods_used=usage, be_now=range(limit), pods=more.pop("pods", pods),
            window=average, strategy=strategy, gates={"BECPUEvict": True}, quota_us=quota_us, **more,
        )  # fmt: skip

    def round(self, **more):
        return feature(self.view(**more), "BECPUEvict")

    def test_a_pod_that_asks_for_nothing_uses_nothing_of_its_request(self):
        view = self.view(pods=[pod("asks-none", priority=5500), pod("idle", priority=5500, requests={BATCH: "6000"})])
        idle = [replace(each, cpu_used_millicpu=0) for each in view.pods]
        assert [each.name for each in be_cpu_order(idle)] == ["idle", "asks-none"]  # as their names have it

    def test_the_largest_user_of_its_request_is_evicted_until_the_rest_would_have_enough(self):
        # GIVEN 20 asked for and 10 to have WHEN 80 % are wanted THEN requests of 6 CPUs are evicted: low has 4
        round_ = self.round()
        assert round_.balance.need == 6000
        assert [each.name for each in round_.candidates] == ["low", "busy", "steady", "idle"]
        assert names(round_) == ["busy"]  # with busy's 6 CPUs low need not go as well
        assert (round_.balance.credit, round_.balance.missing, round_.balance.resource) == (6000, 0, CPU)
        assert round_.verdict.reason == (
            "best-effort pods may have 10 CPUs, 50 % ≤ 60 % of what they ask for, "
            "need 6 CPUs less asked for to reach 80 %"
        )

    def test_the_sentence_speaks_of_cpus(self):
        assert decide(self.view()).sentence.startswith("evicting spark/busy (priority 5500, 6 CPUs): best-effort pods ")

    def test_pods_that_do_not_use_what_they_have_are_not_starving(self):
        round_ = self.round(used=8999)
        assert round_.victims == ()
        assert round_.verdict.reason == "best-effort pods used 9 CPUs < 90 % of the 10 CPUs they may have in 60 s"

    def test_a_limit_below_one_cpu_is_not_busy_by_itself(self):
        # Koordinator takes any limit below one CPU for busy
        average = window(be_used=10, be_request=20_000, be_limit=500)
        assert self.round(used=10, quota_us=50_000, average=average).victims == ()

    def test_enough_is_enough(self):
        average = window(be_used=19_900, be_request=20_000, be_limit=12_001)
        assert self.round(used=19_900, limit=20, average=average).verdict.reason == (
            "best-effort pods may have 60 % > 60 % of what they ask for in 60 s"
        )

    def test_exactly_the_lower_mark_is_too_little_and_exactly_the_usage_threshold_is_busy(self):
        average = window(be_used=10_800, be_request=20_000, be_limit=12_000)
        assert self.round(used=10_800, limit=12, average=average).balance.need == 4000

    def test_a_shortage_that_is_over_by_now_is_none(self):
        assert (
            self.round(limit=13).verdict.reason
            == "best-effort pods used 9.9 CPUs < 90 % of the 13 CPUs they may have now"
        )

    def test_a_moment_of_suppression_is_no_starvation(self):
        # GIVEN best-effort pods that had what they need, WHEN a burst of others leaves them 2 CPUs for a second
        average = window(be_used=15_000, be_request=20_000, be_limit=15_800)
        round_ = self.round(limit=2, used=2000, average=average)
        assert round_.verdict.reason == "best-effort pods may have 79 % > 60 % of what they ask for in 60 s"

    def test_the_smaller_need_of_then_and_now(self):
        assert self.round(limit=11, used=9950).balance.need == 5000
        assert self.round(limit=9, used=9950).balance.need == 6000

    def test_the_quota_is_a_limit_too(self):
        assert self.round(limit=32, quota_us=1_000_000).balance.need == 6000
        assert self.round(limit=10, quota_us=3_200_000).balance.need == 6000

    def test_a_single_container_with_fewer_cpus_counts(self):
        tree = be_tree(range(32), of_containers=range(10))
        assert self.round(be_cgroups=tree).balance.need == 6000

    def test_by_what_is_allocatable(self):
        by = {"strategy": {"cpuEvictPolicy": "evictByAllocatable"}}
        assert self.round(**by, allocatable={"cpu": "32", BATCH: "9000"}).balance.need == 7000
        assert self.round(**by, allocatable={"cpu": "32", BATCH: "0"}).balance.need == 16_000
        assert self.round(**by, allocatable={"cpu": "32"}).verdict.skipped == "no_node"

    @pytest.mark.parametrize(
        "average",
        [
            window(19, be_used=9900, be_request=20_000, be_limit=10_000),
            window(be_used=None, be_request=20_000, be_limit=10_000),
            window(be_used=9900, be_request=20_000, be_limit=None),
        ],
    )
    def test_too_few_samples(self, average):
        assert self.round(average=average).verdict.skipped == "no_window"

    def test_no_request_is_sent(self):
        average = window(be_used=9900, be_request=0, be_limit=10_000)
        assert self.round(average=average, pods=[]).verdict.reason == "no best-effort pod asked for CPU in 60 s"

    def test_what_leaves_already_counts(self):
        pods = [pod("leaves", requests={BATCH: "6000"}, terminating=True), pod("a", requests={BATCH: "14000"})]
        round_ = self.round(pods=pods)
        assert (round_.victims, round_.balance.pending) == ((), 6000)
        assert round_.reason == "6 CPUs is already coming back from spark/leaves"

    def test_batch_cpu_counts_whatever_the_band_of_the_pod(self):
        leaves = pod("leaves", requests={BATCH: "6000"}, terminating=True, priority=7500)
        assert self.round(pods=[leaves, pod("a", requests={BATCH: "14000"})]).balance.pending == 6000

    def test_what_others_ask_for_is_not_asked_for_by_best_effort_pods(self):
        pods = [
            pod("a", requests={BATCH: "20000"}),
            pod("ls", qos="LS", kube_qos="Burstable", requests={BATCH: "9000"}),
        ]
        average = window(be_used=9900, be_request=40_000, be_limit=10_000)
        assert self.round(pods=pods, average=average).balance.need == 6000

    def test_the_cool_down_runs_to_its_end(self):
        view = supposed(self.view(), lastEvictNs=NOW_NS - 19 * NS_PER_S)
        assert feature(view, "BECPUEvict").reason == "the last eviction was less than 20 s ago"
        assert names(feature(supposed(view, lastEvictNs=NOW_NS - 20 * NS_PER_S), "BECPUEvict")) == ["busy"]

    def test_an_eviction_by_the_agent_before_counts_for_the_cool_down(self):
        gone = (PastEviction(NOW_NS - 19 * NS_PER_S, "uid-gone", "spark"),)
        view = supposed(self.view(), evictions=gone, startedNs=NOW_NS - 9 * NS_PER_S)
        assert feature(view, "BECPUEvict").reason == "the last eviction was less than 20 s ago"
        view = supposed(view, lastEvictNs=NOW_NS - 30 * NS_PER_S)
        assert names(feature(view, "BECPUEvict")) == []
        gone = (PastEviction(NOW_NS - 20 * NS_PER_S, "uid-gone", "spark"),)
        assert names(feature(supposed(view, evictions=gone), "BECPUEvict")) == ["busy"]
        # Of its own it knows which of them did not go after all.
        own = supposed(self.view(), evictions=(PastEviction(NOW_NS - NS_PER_S, "uid-stays", "spark"),), startedNs=1)
        assert names(feature(own, "BECPUEvict")) == ["busy"]

    def test_a_pod_that_was_evicted_is_not_evicted_again(self):
        busy = pod("busy", priority=5500, requests={BATCH: "6000"})
        view = supposed(self.view(), pending=(in_flight(busy, credit=1, seconds_ago=5),))
        assert names(feature(view, "BECPUEvict")) == []

    def test_others_stay_and_hear_why(self):
        pods = [
            pod("ls", qos="LS", kube_qos="Burstable"),
            pod("unlabelled", qos=None),
            pod("policy", policy='["BEMemoryEvict"]', requests={BATCH: "20000"}),
            pod("done", phase="Succeeded", requests={BATCH: "9000"}),
            pod("dark", measured=False, requests={BATCH: "20000"}),
        ]
        round_ = self.round(pods=pods)
        assert why_not(round_) == {"unlabelled": "unlabelled", "policy": "policy", "done": "finished"}
        assert names(round_) == ["dark"]  # its request is released with it, measured or not

    @pytest.mark.parametrize(
        ("lower", "upper", "text"),
        [
            (None, 80, "CPUEvictBESatisfactionLowerPercent or CPUEvictBESatisfactionUpperPercent not config"),
            (0, 80, "CPUEvictBESatisfactionLowerPercent(0) is not valid! must (0,60]"),
            (61, 80, "CPUEvictBESatisfactionLowerPercent(61) is not valid! must (0,60]"),
            (50, 100, "CPUEvictBESatisfactionUpperPercent(100) is not valid,must (0,100)"),
            (50, 49, "CPUEvictBESatisfactionUpperPercent(49) < CPUEvictBESatisfactionLowerPercent(50)"),
        ],
    )
    def test_unusable_percents(self, lower, upper, text):
        strategy = {"cpuEvictBESatisfactionLowerPercent": lower, "cpuEvictBESatisfactionUpperPercent": upper}
        verdict = self.round(strategy=strategy).verdict
        assert verdict.skipped == "invalid_config"
        assert verdict.reason.endswith(text)


class TestNodeUsage:
    def round(self, used: int, *, now=..., strategy=None, covered_s: int = 60, pods=None, be_pods_used=None, **more):
        pods = pods or [
            pod("small", labels=ENABLED), pod("large", labels=ENABLED), pod("asks-not"),
            pod("low", labels=ENABLED, priority=120, qos="LS", kube_qos="Burstable"),
            pod("dark", labels=ENABLED, priority=100),
            pod("web", labels=ENABLED, priority=9500, qos="LS", kube_qos="Burstable"),
        ]  # fmt: skip
        usage = {"uid-spark-small": 1500, "uid-spark-large": 2500, "uid-spark-low": 700, "uid-spark-asks-not": 9000}
        return feature(
            node(
                cpus=100, pods=pods, be_pods_used=be_pods_used or usage, strategy=USAGE | (strategy or {}),
                gates={"CPUEvict": True}, window=window(covered_s, node_used=used),
                node_used=used if now is ... else now, **more,
            ),
            "CPUEvict",
        )  # fmt: skip

    def test_pods_go_by_priority_and_then_by_use_until_the_lower_mark(self):
        # 100 CPUs, 81 used, down to 78
        round_ = self.round(81_000)
        assert round_.balance.need == 3000
        assert [each.name for each in round_.candidates] == ["low", "large", "small"]
        assert names(round_) == ["low", "large"]
        assert round_.verdict.reason == "node uses 81 % of its CPU ≥ 80 %, need 3 CPUs to reach 78 %"
        assert why_not(round_) == {"asks-not": "not_enabled", "web": "priority", "dark": "unmeasured"}

    def test_exactly_the_threshold_is_too_much(self):
        assert self.round(80_000).balance.need == 2000

    def test_below_the_threshold(self):
        assert self.round(79_999).verdict.reason == "node uses 79 % of its CPU < 80 %"

    def test_what_is_missing_is_said(self):
        round_ = self.round(99_000)
        assert (round_.balance.credit, round_.balance.missing) == (4700, 16_300)
        assert round_.reason == (
            "16.3 CPUs will be missing: no other pod in reach of the priority threshold would give CPU back"
        )

    def test_usage_that_is_over_by_now_is_none(self):
        # GIVEN a window that is longer than the pause WHEN the largest user is gone THEN its average evicts no other
        round_ = self.round(95_000, now=79_999)
        assert (round_.verdict.fires, names(round_)) == (False, [])
        assert round_.verdict.reason == "node uses 79 % of its CPU now < 80 %; 95 % in 60 s"

    def test_the_smaller_need_of_then_and_now(self):
        assert self.round(95_000, now=81_000).balance.need == 3000
        assert self.round(81_000, now=95_000).balance.need == 3000

    def test_a_threshold_of_nothing_takes_no_pod_from_a_node_that_is_idle(self):
        round_ = self.round(0, strategy={"cpuEvictThresholdPercent": 0})
        assert (round_.verdict.fires, round_.verdict.reason) == (False, "node uses no CPU")

    def test_the_first_sampling_has_no_rate(self):
        assert self.round(99_000, now=None).verdict.skipped == "no_window"

    def test_too_few_samples(self):
        assert self.round(99_000, covered_s=19).verdict.skipped == "no_window"
        assert self.round(99_000, covered_s=20).verdict.fires

    @pytest.mark.parametrize(
        ("strategy", "text"),
        [
            ({"cpuEvictThresholdPercent": None}, "CPUEvictThresholdPercent not config"),
            ({"cpuEvictThresholdPercent": -1}, "threshold percent(-1) should greater than 0"),
            ({"cpuEvictLowerPercent": 80}, "lower percent(80) should less than threshold percent(80)"),
            ({"evictEnabledPriorityThreshold": None}, "EvictEnabledPriorityThreshold not config"),
        ],
    )
    def test_unusable_values(self, strategy, text):
        verdict = self.round(99_000, strategy=strategy).verdict
        assert verdict.skipped == "invalid_config"
        assert verdict.reason.endswith(text)

    def test_what_is_evicted_for_memory_counts(self):
        # GIVEN a node at 90 % of its memory too, for which the best-effort pod hog is evicted, that uses 5 CPUs
        pods = [pod("hog", anon=300, labels=ENABLED), pod("other", anon=1, labels=ENABLED)]
        view = node(
            cpus=100, pods=pods, be_pods_used={"uid-spark-hog": 5000, "uid-spark-other": 9000},
            strategy=USAGE | {"memoryEvictThresholdPercent": 80},
            gates={"BEMemoryEvict": True, "CPUEvict": True}, window=window(node_used=81_000), node_used=81_000,
        )  # fmt: skip
        plan: Plan = decide(replace(view, used_bytes=view.capacity_bytes * 9 // 10))
        memory, cpu = plan.features
        assert (names(memory), names(cpu)) == (["hog"], [])
        assert cpu.balance.shared == 5000
        assert cpu.reason == "the victims of the features before it cover the need"


class TestAllocatable:
    def round(self, pods, allocatable, **strategy):
        return feature(
            node(cpus=16, pods=pods, allocatable=allocatable, strategy=strategy, gates={"CPUAllocatableEvict": True}),
            "CPUAllocatableEvict",
        )

    def batch(self, name: str, asks: int, **more):
        return pod(name, **{"labels": ENABLED, "requests": {BATCH: str(asks)}, **more})

    def test_within_110_percent_no_pod_is_evicted_and_above_it_enough_to_reach_100(self):
        pods = [self.batch(f"b{n}", 1000) for n in range(11)]
        assert self.round(pods, {BATCH: "10000"}).victims == ()
        round_ = self.round([*pods, self.batch("b11", 10)], {BATCH: "10000"})
        assert round_.balance.need == 1010
        assert names(round_) == ["b9", "b8"]
        assert round_.verdict.reason == (
            "kubernetes.io/batch-cpu requested at 110 % > 110 % of allocatable, need 1.01 CPUs"
        )

    def test_native_cpu_counts_in_thousandths(self):
        # Koordinator would take three pods of 300m for 3 CPUs
        pods = [
            pod(f"n{n}", priority=120, qos=None, kube_qos="Burstable", requests={"cpu": "300m"}, labels=ENABLED)
            for n in range(3)
        ]
        assert self.round(pods, {"cpu": "1"}).victims == ()
        assert names(self.round(pods, {"cpu": "800m"})) == ["n2"]

    def test_each_shortage_is_met_by_its_own_pods(self):
        mid = pod("mid", priority=7500, qos="LS", kube_qos="Burstable", requests={MID: "3000"}, labels=ENABLED)
        round_ = self.round(
            [self.batch("batch", 500), mid], {MID: "1000", BATCH: "500"}, allocatableEvictPriorityThreshold=7999
        )
        assert names(round_) == ["mid"]

    @pytest.mark.parametrize("allocatable", [{"cpu": "16"}, {BATCH: "0"}])
    def test_all_go_when_nothing_is_allocatable_any_more(self, allocatable):
        assert names(self.round([self.batch("a", 300), self.batch("b", 200)], allocatable)) == ["a", "b"]

    def test_finished_pods_ask_for_nothing(self):
        assert (
            self.round([self.batch("done", 9000, phase="Failed"), self.batch("a", 900)], {BATCH: "1000"}).victims == ()
        )

    def test_unusable_values(self):
        verdict = self.round([], {}, cpuAllocatableEvictThresholdPercent=-1).verdict
        assert verdict.reason.endswith("threshold percent(-1) should equal or greater than 0")


def test_without_a_measurement_nothing_is_judged():
    view = node(gates=dict.fromkeys(["BECPUEvict", "CPUEvict", "CPUAllocatableEvict"], True))
    plan = decide(replace(view, cpu=None))
    assert [each.verdict.skipped for each in plan.features] == ["gate_off", "unmeasured", "unmeasured", "unmeasured"]
    assert [each.verdict.feature for each in plan.features[1:]] == ["BECPUEvict", "CPUAllocatableEvict", "CPUEvict"]


def test_features_whose_gates_are_off_are_not_in_the_plan():
    assert [each.verdict.feature for each in decide(node()).features] == ["BEMemoryEvict"]


def test_a_quota_in_another_period_is_the_same_limit():
    view = node(be_now=range(8), quota_us=25_000, period_us=50_000)
    assert view.cpu.measured.be_quota == BeQuota(25_000, 50_000)
