"""Two decisions for the same moment, side by side."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.cli.schemas import object_schema
from koordebpf.report.pages.plan_diff import PlanDiff, diff_page, plan_diff
from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.view import Frame
from koordebpf.state.what_if import changed_settings, with_fields, with_gates
from koordebpf.units import NS_PER_S
from tests.support.values.builders import frame, ls_pod, node_plan_of, pod, read_back
from tests.support.values.cpu_nodes import cpu_frame

BY_PRIORITY = {"koordinator.sh/eviction-enabled": "true"}


def node(used: int = 900) -> Frame:
    pods = [pod("hog", anon=200), pod("train", anon=300, priority=5500), pod("kept", anon=50, policy="[]")]
    return frame([*pods, ls_pod("api", anon=200)], used=used)


def diff_of(before: Frame, after: Frame) -> PlanDiff:
    return plan_diff(node_plan_of(before), node_plan_of(after), changed_settings(before, after))


def names(changes: tuple[object, ...]) -> list[str]:
    return [each.candidate.name for each in changes]  # type: ignore[attr-defined]


def test_a_lower_mark_further_down_takes_one_more() -> None:
    diff = diff_of(node(), with_fields(node(), {"memoryEvictLowerPercent": 55}))
    assert (names(diff.gained), names(diff.lost), names(diff.moved)) == (["train"], [], [])
    assert diff_page(diff).splitlines() == [
        "settings",
        "  memoryEvictLowerPercent  not set → 55",
        "",
        "before: evicting spark/hog (priority 5000, 200 MiB): node at 90 % ≥ 80 %, need",
        "  120 MiB to reach 78 %",
        "after:  evicting spark/hog (priority 5000, 200 MiB), spark/train (priority 5500,",
        "  300 MiB): node at 90 % ≥ 80 %, need 350 MiB to reach 55 %",
        "",
        "+ evicted only after, - only before",
        "+ spark/train (priority 5500, 300 MiB)",
        "    before: stays, rank 2 of 2",
        "    after:  evicted for BEMemoryEvict",
        "",
        "BEMemoryEvict                   before       after",
        "  lower                        780 MiB     550 MiB",
        "  need                         120 MiB     350 MiB",
        "  credit                       200 MiB     500 MiB",
        "  victims                            1           2",
    ]


def test_marks_and_amounts_of_cpu_have_their_unit() -> None:
    pods = [pod("busy", labels=BY_PRIORITY), pod("calm", labels=BY_PRIORITY)]
    used = {"uid-spark-busy": 6000, "uid-spark-calm": 3000}
    before = cpu_frame(
        cpus=100, pods=pods, be_pods_used=used, node_used=85_000, gates={"CPUEvict": True},
        strategy={"cpuEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 5999},
        window=CpuWindow(NS_PER_S, NS_PER_S, node_used_millicpu=85_000),
    )  # fmt: skip
    page = diff_page(diff_of(before, with_fields(before, {"cpuEvictThresholdPercent": 84}))).splitlines()
    assert page[page.index("CPUEvict                        before       after") + 1 :][:4] == [
        "  threshold                    80 CPUs     84 CPUs",
        "  lower                        78 CPUs     82 CPUs",
        "  need                          7 CPUs      3 CPUs",
        "  credit                        9 CPUs      6 CPUs",
    ]


def test_a_threshold_above_the_use_spares_the_victim() -> None:
    diff = diff_of(node(), with_fields(node(), {"memoryEvictThresholdPercent": 95}))
    assert (names(diff.gained), names(diff.lost)) == ([], ["hog"])
    page = diff_page(diff)
    assert "- spark/hog (priority 5000, 200 MiB)" in page
    assert "    after:  stays: no feature ranks a pod" in page
    assert "  after:  node at 90 % < 95 %" in page


def test_a_pod_that_is_evicted_for_another_feature_is_neither_gained_nor_lost() -> None:
    pods = [pod("job", anon=300, labels=BY_PRIORITY)]
    before = frame(pods, used=900, threshold={"enable": True, "evictEnabledPriorityThreshold": 5999})
    after = with_gates(before, {"BEMemoryEvict": False, "MemoryEvict": True})
    diff = diff_of(before, after)
    assert (names(diff.gained), names(diff.lost), names(diff.moved)) == ([], [], ["job"])
    assert (diff.moved[0].before, diff.moved[0].after) == ("evicted for BEMemoryEvict", "evicted for MemoryEvict")
    assert [(each.feature, each.before is None) for each in diff.features] == [
        ("BEMemoryEvict", False),
        ("MemoryEvict", True),
    ]
    assert "~ spark/job" in diff_page(diff)


def test_a_pod_that_becomes_no_candidate_says_why() -> None:
    protected = pod("hog", anon=200, policy="[]")
    diff = plan_diff(node_plan_of(frame([pod("hog", anon=200)], used=900)), node_plan_of(frame([protected], used=900)))
    assert diff.lost[0].after.startswith("no candidate: its annotation koordinator.sh/eviction-policy")


def test_the_same_settings_change_nothing() -> None:
    diff = diff_of(node(), node())
    assert (diff.settings, diff.gained, diff.lost, diff.moved) == ((), (), (), ())
    assert diff_page(diff).splitlines()[0] == "no setting differs"
    assert diff_page(diff).endswith("the same pods are evicted")
    assert diff_page(diff_of(node(10), node(10))).endswith("no eviction, before and after")


def test_it_reads_back_and_the_schema_names_its_fields() -> None:
    diff = diff_of(node(), with_fields(node(), {"enable": False}))
    assert read_back(diff) == diff
    assert set(object_schema("plan-diff")["$defs"]["PlanDiff"]["properties"]) == set(msgspec.to_builtins(diff))


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from([5000, 5500, None])), max_size=8),
    st.integers(0, 1000),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_gained_and_lost_are_exactly_what_the_plans_do_not_share(
    pods: list[tuple[int, int | None]], used: int, before_percent: int, after_percent: int
) -> None:
    recorded = frame(
        [pod(f"a-{'long-' * 8}name-{n}", anon=mib, priority=priority) for n, (mib, priority) in enumerate(pods)],
        used=used,
    )
    before, after = (
        with_fields(recorded, {"memoryEvictThresholdPercent": each}) for each in (before_percent, after_percent)
    )
    diff = diff_of(before, after)
    was, is_now = ({victim.candidate.uid for victim in plan.victims} for plan in (diff.before, diff.after))
    assert {each.candidate.uid for each in diff.gained} == is_now - was
    assert {each.candidate.uid for each in diff.lost} == was - is_now
    assert diff.moved == ()
    assert max(map(len, diff_page(diff).splitlines())) <= 80


@pytest.mark.parametrize("percent", [10, 100])
def test_a_very_long_name_keeps_its_end(percent: int) -> None:
    recorded = frame([pod("x" * 200 + "-7", anon=500, namespace="n" * 63)], used=900)
    page = diff_page(diff_of(recorded, with_fields(recorded, {"enable": False})))
    assert max(map(len, page.splitlines())) <= 80
    assert "-7 (priority 5000, 500 MiB)" in page
