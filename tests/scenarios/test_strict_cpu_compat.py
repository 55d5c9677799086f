"""Which of Koordinator's own choices `compat: strict` restores in CPU eviction, beside what happens without."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.configuration.checked import agent_config
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import FeaturePlan
from koordebpf.state.amount import CPU
from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.units import NS_PER_S
from tests.support.values.builders import feature_of, frame, names, pod, supposed, why_not
from tests.support.values.cpu_nodes import node

OURS, STRICT = EvictSettings(), agent_config({"compat": "strict"}).eviction
ENABLED = {"koordinator.sh/eviction-enabled": "true"}
BATCH = "kubernetes.io/batch-cpu"
WRITTEN = {
    "cpuAllocatableEvictThresholdPercent": 110,
    "cpuAllocatableEvictLowerPercent": 100,
    "allocatableEvictPriorityThreshold": 7999,
}


def both(view: NodeView, feature: str) -> tuple[FeaturePlan, FeaturePlan]:
    ours, strict = (
        next(each for each in decide(view, settings).features if each.verdict.feature == feature)
        for settings in (OURS, STRICT)
    )
    return ours, strict


def window(**averages: int) -> CpuWindow:
    ns = 60 * NS_PER_S
    return CpuWindow(window_ns=ns, covered_ns=ns, **{f"{name}_millicpu": value for name, value in averages.items()})


def by_usage(pods: list[Any], used: int, usage: dict[str, int], now: int | None = None) -> NodeView:
    strategy = {"cpuEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 5999}
    return node(
        cpus=100, pods=pods, be_pods_used=usage, strategy=strategy,
        gates={"CPUEvict": True}, window=window(node_used=used), node_used=used if now is None else now,
    )  # fmt: skip


def allocatable(pods: list[Any], has: dict[str, str], strategy: dict[str, Any], **more: Any) -> NodeView:
    return node(
        cpus=16, pods=pods, allocatable=has, strategy=strategy, gates={"CPUAllocatableEvict": True}, **more
    )  # fmt: skip


def starving(*, used: int, limit: int, quota_us: int) -> NodeView:
    strategy = {
        "cpuEvictBESatisfactionLowerPercent": 60,
        "cpuEvictBESatisfactionUpperPercent": 80,
        "cpuEvictTimeWindowSeconds": 60,
    }
    pods = [pod("a", requests={BATCH: "4000"}), pod("b", requests={BATCH: "16000"})]
    return node(
        cpus=32, node_used=used, be_used=used, be_pods_used={"uid-spark-a": used}, be_now=range(32), pods=pods,
        window=window(be_used=used, be_request=20_000, be_limit=limit), strategy=strategy,
        gates={"BECPUEvict": True}, quota_us=quota_us,
    )  # fmt: skip


def test_the_need_of_cpu_is_counted_from_the_floored_percent() -> None:
    # 80.9 of 100 CPUs are 80 %, down to 78 %: 2.9 CPUs by what is used, 2 by the percent.
    pods = [pod("a", labels=ENABLED), pod("b", labels=ENABLED)]
    ours, strict = both(by_usage(pods, 80_900, {"uid-spark-a": 2500, "uid-spark-b": 500}), "CPUEvict")
    assert ours.balance.resource == strict.balance.resource == CPU
    assert (ours.balance.need, strict.balance.need) == (2900, 2000)
    assert (names(ours), names(strict)) == (["a", "b"], ["a"])


def test_no_pod_is_evicted_for_cpu_that_is_used_no_more() -> None:
    view = by_usage([pod("a", labels=ENABLED)], 95_000, {"uid-spark-a": 4000}, now=70_000)
    for round_ in both(view, "CPUEvict"):
        assert (names(round_), round_.verdict.fires) == ([], False)
    ours, strict = both(by_usage([], 95_900, {}, now=80_900), "CPUEvict")
    assert ours.balance.resource == strict.balance.resource == CPU
    assert (ours.balance.need, strict.balance.need) == (2900, 2000)


def test_any_limit_below_one_cpu_is_busy() -> None:
    ours, strict = both(starving(used=10, limit=500, quota_us=50_000), "BECPUEvict")
    assert (names(ours), names(strict)) == ([], ["a", "b"])
    assert "used 0.01 CPUs < 90 %" in ours.verdict.reason
    # From one CPU on their share of it counts.
    ours, strict = both(starving(used=10, limit=1000, quota_us=100_000), "BECPUEvict")
    assert (names(ours), names(strict)) == ([], [])


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("cpuAllocatableEvictThresholdPercent", "CPUAllocatableEvictThresholdPercent not config"),
        ("cpuAllocatableEvictLowerPercent", "CPUAllocatableEvictLowerPercent not config"),
        ("allocatableEvictPriorityThreshold", "AllocatableEvictPriorityThreshold not config"),
    ],
)
def test_the_allocatable_feature_of_cpu_has_no_defaults(missing: str, text: str) -> None:
    pods = [pod("a", requests={BATCH: "3000"}, labels=ENABLED)]
    threshold = {name: value for name, value in WRITTEN.items() if name != missing}
    usage = {"be_pods_used": {"uid-spark-a": 10}}
    ours, strict = both(allocatable(pods, {BATCH: "1000"}, threshold, **usage), "CPUAllocatableEvict")
    assert names(ours) == ["a"]
    assert (names(strict), strict.verdict.skipped) == ([], "invalid_config")
    assert strict.verdict.reason.endswith(text)
    _, written = both(allocatable(pods, {BATCH: "1000"}, WRITTEN, **usage), "CPUAllocatableEvict")
    assert names(written) == ["a"]


def test_the_allocatable_feature_of_cpu_asks_for_a_measured_usage() -> None:
    pods = [pod(name, requests={BATCH: "1000"}, labels=ENABLED) for name in ("dark", "seen")]
    view = allocatable(pods, {BATCH: "500"}, WRITTEN, be_pods_used={"uid-spark-seen": 10})
    ours, strict = both(view, "CPUAllocatableEvict")
    assert [each.name for each in ours.candidates] == ["seen", "dark"]
    assert [each.name for each in strict.candidates] == ["seen"]
    assert why_not(strict) == {"dark": "unmeasured"}


def test_no_pod_is_spared_again_for_cpu_once_the_order_has_come_to_it() -> None:
    pods = [pod("small", priority=5000, labels=ENABLED), pod("large", priority=5500, labels=ENABLED)]
    ours, strict = both(by_usage(pods, 81_000, {"uid-spark-small": 500, "uid-spark-large": 4000}), "CPUEvict")
    assert (names(ours), names(strict)) == (["large"], ["small", "large"])


def test_no_pod_is_evicted_for_cpu_soon_after_a_start() -> None:
    view = by_usage([pod("a", labels=ENABLED)], 81_000, {"uid-spark-a": 4000})
    for seconds, expected in ((19, []), (20, ["a"])):
        started = supposed(view, startedNs=view.now_ns - seconds * NS_PER_S)
        ours, strict = both(started, "CPUEvict")
        assert (names(ours), names(strict)) == (["a"], expected)
    _, strict = both(supposed(view, startedNs=view.now_ns), "CPUEvict")
    assert strict.reason == "the agent started less than 20 s ago"
    # Evictions for memory do not wait for it, nor does a frame without a start.
    _, unknown = both(view, "CPUEvict")
    assert names(unknown) == ["a"]
    short = frame([pod("b", anon=50)], used=810)
    assert names(feature_of(replace(short, startedNs=short.measured.now_ns), STRICT)) == ["b"]


def test_memory_and_cpu_have_each_their_own_cool_down() -> None:
    cpu = by_usage([pod("a", labels=ENABLED)], 81_000, {"uid-spark-a": 4000})
    memory = frame([pod("a", anon=50), pod("gone", anon=50, priority=1)], used=860)
    a_second_ago = memory.measured.now_ns - NS_PER_S
    memory = replace(memory, pending=(PendingRelease("uid-spark-gone", a_second_ago, 1),))  # holds its memory yet
    for field, waits in (("lastEvictNs", ([], ["a"])), ("lastCpuEvictNs", (["a"], []))):
        ours, strict = both(supposed(cpu, **{field: cpu.now_ns - NS_PER_S}), "CPUEvict")
        assert (names(ours), names(strict)) == ([], waits[1])
        after = replace(memory, **{field: a_second_ago})
        assert (names(feature_of(after, OURS)), names(feature_of(after, STRICT))) == ([], waits[0])


def test_what_is_not_restored_for_cpu_because_it_would_not_be_safe() -> None:
    # Native CPU stays in thousandths: koordlet takes three pods of 300m for three CPUs. Who has ended asks for nothing.
    native = [
        pod(f"n{n}", priority=120, qos=None, kube_qos="Burstable", requests={"cpu": "300m"}, labels=ENABLED)
        for n in range(3)
    ]
    ended = pod("done", phase="Succeeded", requests={BATCH: "9000"}, labels=ENABLED)
    view = allocatable([*native, ended], {"cpu": "1", BATCH: "1000"}, WRITTEN)
    for round_ in both(view, "CPUAllocatableEvict"):
        assert names(round_) == []
