"""Suppression for people: the sum, how it is held, the files that would change, and the CPUs that others keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.decision.frames import decode_frame
from koordebpf.decision.node_plan import OtherDecision
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.report.pages.plan import decision_blocks, plan_page
from koordebpf.report.pages.plan_diff import diff_page, plan_diff
from koordebpf.strategies.cpu_suppress.decide import explained_plan
from koordebpf.strategies.cpu_suppress.plan import plan_suppress
from koordebpf.strategies.cpu_suppress.values import SuppressSettings
from koordebpf.tools.plan import Case, case_changes, with_entries, with_feature_gates
from tests.support.values.cpu_nodes import BE_ROOT, be_tree, node

HELD = Path(__file__).parents[2] / "scenarios" / "frames" / "best-effort-is-held.json"


def page(view, policy=None):
    explained = explained_plan(plan_suppress(view, settings=SuppressSettings(policy=policy)), view)
    blocks = decision_blocks("suppress", OtherDecision("", explained=explained), 10)
    return "\n\n".join("\n".join(block) for block in blocks)


def held():
    return Case(decode_frame(HELD.read_bytes(), HELD.name))


def test_the_sum_the_cpus_the_files_and_whose_the_others_are():
    assert plan_page(held().plan(), 10).partition("\n\nBECPU")[2] == (
        "Suppress\n"
        "  capacity      16 CPUs\n"
        "  threshold   10.4 CPUs  65 %\n"
        "  pods         1.5 CPUs  that are not best-effort\n"
        "  host apps      0 CPUs\n"
        "  system       2.3 CPUs\n"
        "  left         6.6 CPUs\n"
        "  held to        7 CPUs\n"
        "  by cpuset: CPUs 1-2,4-5,10,12-13, from 2-15\n"
        "\n"
        "would be written:\n"
        "  cpuset.cpus 2-15 → 1-2,4-5,10,12-13: kubepods/besteffort and 6 more\n"
        "not for best-effort pods:\n"
        "  CPUs 0,8: of LSE pods\n"
        "  CPUs 15: reserved"
    )


def test_what_is_held_already_is_not_written():
    assert "nothing would be written: every file holds what it is to hold" in page(node(be_now=range(6)))


def test_a_quota_and_the_cpuset_restored_with_it():
    text = page(node(be_now=range(4), node_used=0, strategy={"cpuSuppressPolicy": "cfsQuota"}))
    assert "  by cfsQuota: quota 5.2 CPUs, from no quota\n" in text
    assert "  cpu.cfs_quota_us no limit → 520000 µs: kubepods/besteffort\n" in text
    assert "  cpuset.cpus 0-3 → 0-7: kubepods/besteffort and 2 more" in text


def test_shares_are_not_measured_and_said_so():
    text = page(node(idle=None), "cpuIdle")
    assert "  cpu.shares not known → 2: kubepods/besteffort" in text


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (node(node_used=None), "BECPUSuppress: skipped (first_sample)\n  CPU usage needs two samples"),
        (node(be_cgroups=()), "BECPUSuppress: skipped (no_best_effort)\n  the node has no best-effort directory"),
    ],
)
def test_why_not(view, said):
    assert page(view).strip() == said


def test_where_no_cpu_was_measured_the_page_is_about_memory():
    frame = HELD.with_name("hog-is-evicted.json")
    plan = Case(decode_frame(frame.read_bytes(), frame.name)).plan()
    assert "suppress" not in plan.strategies
    assert "BECPU" not in plan_page(plan, 10)


def test_an_annotation_that_cannot_be_read_is_reported():
    text = page(node(annotations={"node.koordinator.sh/reservation": {"reservedCPUs": "all"}}))
    assert "left out, because it cannot be read: " in text


def test_every_difference_names_its_file():
    view = node(be_cgroups=be_tree(range(8), pods=2), node_used=6000, used={"web": 4000})
    reported = explained_plan(plan_suppress(view), view)
    assert {each.path for each in reported.differences} == {each.path for each in view.cpu.measured.be_cgroups}
    assert {each.file for each in reported.differences} == {CgroupFile.CPUSET_CPUS}
    assert {each.now for each in reported.differences} == {frozenset(range(8))}
    assert reported.differences[0].path == BE_ROOT


@pytest.mark.parametrize(
    ("entry", "lines"),
    [
        (
            "suppress.policy=cfsQuota",
            [
                "  policy                        cpuset    cfsQuota",
                "  quota                              -   660000 µs",
            ],
        ),
        (
            "cpuSuppressThresholdPercent=50",
            [
                "  left for best-effort        6.6 CPUs    4.2 CPUs",
                "  CPUs                               7           5",
            ],
        ),
    ],
)
def test_other_settings_stand_beside_the_frames_own(entry, lines):
    text = diff_page(plan_diff(held().plan(), with_entries(held(), [entry]).plan()))
    assert set(lines) <= set(text.splitlines())


def test_a_gate_that_is_off_lets_go():
    after = with_feature_gates(held(), ["BECPUSuppress=false"])
    text = diff_page(plan_diff(held().plan(), after.plan(), case_changes(held(), after)))
    assert "  BECPUSuppress  true → false\n" in text
    assert "after:  suppression is off: feature gate BECPUSuppress is off" in " ".join(text.split("\n  "))


def test_what_changes_nothing_is_not_shown():
    assert "BECPU" not in diff_page(plan_diff(held().plan(), with_entries(held(), ["eviction.coolTime=9s"]).plan()))
