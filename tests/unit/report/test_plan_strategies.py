"""What a plan shows of strategies that act on pods beside cgroup files: how much of whom, and whose tasks go where."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import NodePlan, OtherDecision, decide_node
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, Table
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.report.pages.plan import plan_page
from koordebpf.report.pages.plan_diff import diff_page, plan_diff
from koordebpf.report.sentences import headline
from koordebpf.slo.strategies.resource_qos import ResctrlQOS
from koordebpf.state.build import view_of_frame
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import MeasuredParts
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.store.frames import RecordedTick
from koordebpf.strategies.proactive_reclaim.decide import PodTrim, ReclaimState
from koordebpf.strategies.proactive_reclaim.values import ReclaimMeasured, SwapState, TrimmedPod
from koordebpf.strategies.resctrl.values import BandwidthInfo, CacheInfo, PodTasks, ResctrlMeasured
from koordebpf.tools.plan import read_case
from koordebpf.units import GIB, MIB, NS_PER_S
from tests.support.values.builders import frame, pod

EACH = 6 * NS_PER_S
LONG = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod766b3a82_9d62_406d_ab3d_984b1d7ecfec.slice"


def decided(gate: str, names: list[str], states: dict[str, Any] | None = None, **measured: Any) -> NodePlan:
    made = frame([pod(each, uid=each, qos="BE") for each in names], gates={gate: True})
    made = replace(made, measured=replace(made.measured, parts=MeasuredParts(measured)))
    view = view_of_frame(decode_frame(encode_frame(made), "a test"))
    return decide_node(view, EvictSettings(), states=states)


def json_of(plan: NodePlan, name: str) -> Any:
    return msgspec.json.decode(msgspec.json.encode(plan))["strategies"][name]


def reclaim(sizes: dict[str, int], swap: SwapState = SwapState()) -> NodePlan:  # noqa: B008 - frozen
    """Return the plan for pods of so much page cache, in MiB, which were looked at 6 s ago."""
    pods = tuple(TrimmedPod(uid, 1, f"kubepods/pod{uid}", 2 * GIB, mib * MIB, 0, 0, 0) for uid, mib in sizes.items())
    before = {each.uid: PodTrim(NS_PER_S, 0, 0, scale=1.0) for each in pods}
    now_ns = NS_PER_S + EACH
    return decided(
        "ProactiveReclaim",
        list(sizes),
        {"proactiveReclaim": ReclaimState(before, at_ns=NS_PER_S)},
        proactiveReclaim=ReclaimMeasured(now_ns, pods, swap=swap, takes_swappiness=True),
    )


def resctrl(tasks: dict[str, PodTasks], names: list[str]) -> NodePlan:
    return decided(
        "RdtResctrl",
        names,
        rdtResctrl=ResctrlMeasured(
            {"BE": ResctrlQOS(enable=True, catRangeStartPercent=0, catRangeEndPercent=30)},
            CacheInfo(0x7FF, 1, ("L3",), (0,)),
            BandwidthInfo(10, 10, "percent", 100, (0,)),
            pods=tuple(PodDirectory(each, f"kubepods/pod{each}") for each in names),
            tasks=tasks,
        ),
    )


class TestReclaim:
    def test_how_much_is_taken_from_whom(self) -> None:
        plan = reclaim({"second": 200, "first": 800, "empty": 0})
        assert (
            "proactiveReclaim\n"
            "  10.0 MiB is taken from 2 of 3 pods; nothing from spark/empty (nothing is left\n"
            "    to take)\n"
            "  pod             taken\n"
            "  spark/second  2.0 MiB\n"
            "  spark/first   8.0 MiB"
        ) in plan_page(plan, 10)
        assert headline(plan).startswith("proactiveReclaim takes memory of 2 pods; no eviction: ")
        assert json_of(plan, "proactiveReclaim")["pods"] == [
            {"uid": "second", "namespace": "spark", "name": "second", "reclaim_bytes": 2 * MIB},
            {"uid": "first", "namespace": "spark", "name": "first", "reclaim_bytes": 8 * MIB},
        ]

    def test_of_many_pods_the_first_are_shown(self) -> None:
        plan = reclaim({f"a-pod-of-a-long-name-{'x' * 60}-{each}": 800 for each in range(103)})
        page = plan_page(plan, 2)
        assert "  101 more pods" in page
        assert max(map(len, page.splitlines())) <= 80
        found = json_of(plan, "proactiveReclaim")
        assert (len(found["pods"]), found["more_pods"]) == (100, 3)
        assert "1 more pod\n" in plan_page(reclaim({"a": 800, "b": 800}), 1) + "\n"

    def test_page_cache_alone_is_named(self) -> None:
        plan = reclaim({"a": 800}, SwapState(GIB, 0))
        assert "page cache alone is taken: nothing is to be swapped out" in plan_page(plan, 10)
        assert json_of(plan, "proactiveReclaim")["pods"][0]["swappiness"] == 0

    def test_a_round_in_which_it_is_not_due_is_explained(self) -> None:
        page = plan_page(decided("ProactiveReclaim", ["a"]), 10)
        assert "this round measured nothing for it; what it wrote before stays" in page


class TestResctrl:
    def test_whose_tasks_are_moved_to_a_group_that_is_not_there_yet(self) -> None:
        tasks = {"new": PodTasks(12), "half": PodTasks(5, {"BE": 3, "LS": 2}), "there": PodTasks(7, {"BE": 7})}
        plan = resctrl(tasks, ["new", "there", "half"])
        assert (
            "  pod         group  tasks\n"
            "  spark/half     BE      2\n"
            "  spark/new      BE     12\n"
            "  tasks: threads that are not in the group yet"
        ) in plan_page(plan, 10)
        assert headline(plan).startswith("rdtResctrl moves tasks of 2 pods; no eviction: ")
        assert json_of(plan, "rdtResctrl")["pods"][1] == {
            "uid": "new",
            "namespace": "spark",
            "name": "new",
            "resctrl_group": "BE",
            "tasks": 12,
        }

    def test_tasks_that_were_not_counted_are_not_zero(self) -> None:
        plan = resctrl({}, ["a"])
        assert "  pod      group\n  spark/a     BE" in plan_page(plan, 10)
        assert "tasks" not in json_of(plan, "rdtResctrl")["pods"][0]

    def test_why_it_does_nothing_is_named(self) -> None:
        classes = {"BE": ResctrlQOS(enable=True)}
        plan = decided("RdtResctrl", ["a"], rdtResctrl=ResctrlMeasured(classes, problem="resctrl is not mounted"))
        assert "  resctrl is not mounted" in plan_page(plan, 10)
        assert json_of(plan, "rdtResctrl")["problems"] == ["resctrl is not mounted"]
        assert "rdtResctrl" not in headline(plan)


class TestFiles:
    def plan(self, pods: int, gate: bool = True, cpus: int = 8) -> NodePlan:
        """Return the plan of CPUNormalization, or of a stand-in for it: files in long paths."""
        writes = tuple(CgroupWrite(f"{LONG}{each}", CgroupFile.CPU_SHARES, cpus) for each in range(pods))
        found = {"hook": OtherDecision(f"runtime hook: {pods} cgroups of pods", writes=writes)} if gate else {}
        return replace(reclaim({"a": 0}), strategies=found)

    def test_a_long_path_is_broken_behind_a_slash(self) -> None:
        page = plan_page(self.plan(1), 10)
        assert f"  {LONG[:41]}\n    {LONG[41:]}0/\n    cpu.shares → 8" in page

    def test_of_many_files_the_first_are_shown(self) -> None:
        page = plan_page(self.plan(23), 10)
        assert page.count("cpu.shares") == 20
        assert page.endswith("  3 more files: --json has all")
        assert max(map(len, page.splitlines())) <= 80

    def test_what_another_setting_changes_is_shown_file_by_file(self) -> None:
        page = diff_page(plan_diff(self.plan(2), self.plan(3, cpus=9)))
        assert page.count("~ kubepods") == 2
        assert page.count("+ kubepods") == 1
        assert "cpu.shares: 8 → 9" in " ".join(page.split())
        assert "hook\n  before: runtime hook: 2 cgroups of pods\n  after:  runtime hook: 3 cgroups of pods\n" in page
        assert "hook\n" not in diff_page(plan_diff(self.plan(2), self.plan(2)))

    def test_a_gate_that_is_switched_on_or_off_is_named(self) -> None:
        page = diff_page(plan_diff(self.plan(1, gate=False), self.plan(1)))
        assert "hook\n  before: its feature gate is off\n  after:  runtime hook: 1 cgroups of pods\n  + kube" in page
        page = diff_page(plan_diff(self.plan(1), self.plan(1, gate=False)))
        assert "  after:  its feature gate is off\n  - kube" in page

    def test_who_gives_how_much_stands_in_a_comparison(self) -> None:
        page = diff_page(plan_diff(reclaim({"a": 0}), reclaim({"a": 800})))
        assert page.endswith("  pod        taken\n  spark/a  8.0 MiB")


def test_a_frame_of_one_moment_carries_what_strategies_remember() -> None:
    made = frame([pod("a", uid="a", qos="BE")], gates={"ProactiveReclaim": True})
    pods = (TrimmedPod("a", 1, "kubepods/poda", 2 * GIB, 800 * MIB, 0, 0, 0),)
    measured = made.measured.with_part("proactiveReclaim", ReclaimMeasured(NS_PER_S + EACH, pods))
    state = ReclaimState({"a": PodTrim(NS_PER_S, 0, 0, scale=1.0)}, at_ns=NS_PER_S)
    raw = encode_frame(replace(made, measured=measured, states={"proactiveReclaim": state}))
    (taken,) = read_case(raw, "-").plan().strategies["proactiveReclaim"].pods
    assert taken.reclaim_bytes == 8 * MIB
    assert b'"states"' not in encode_frame(made)


def test_a_round_is_read_with_its_decision_and_alone() -> None:
    now_ns = NS_PER_S
    tick = TickFrame(
        frame=frame([pod("a")]), settings=TickSettings(), guards=GuardFacts(now_ns, "file", now_ns), has_cpu=True
    )
    alone = msgspec.json.encode(tick)
    recorded = msgspec.json.encode(RecordedTick(tick, msgspec.Raw(b"{}")))
    assert read_case(alone, "-") == read_case(recorded, "-")
    with pytest.raises(ConfigError, match=r"^x\.json"):
        read_case(alone.replace(b'"has_cpu"', b'"has_cpus"'), "x.json")


@pytest.mark.parametrize(
    ("writes", "lines"),
    [
        (
            (
                CgroupWrite("a", CgroupFile.CPUSET_CPUS, frozenset({0, 1, 5})),
                CgroupWrite("b", CgroupFile.CPUSET_CPUS, frozenset()),
                CgroupWrite("a", CgroupFile.CPU_QUOTA, None),
                CgroupWrite("a", CgroupFile.IO_READ_BPS, Table((("8:0", 1024),))),
            ),
            [
                "a/cpuset.cpus → 0-1,5",
                "b/cpuset.cpus → nothing",
                "a/cpu.cfs_quota_us → -1",
                "a/blkio.throttle.read_bps_device → 8:0 1024",
            ],
        ),
        (  # cgroup v1 has no memory.min
            (
                CgroupWrite("a", CgroupFile.MEMORY_MIN, 5 * MIB),
                CgroupWrite("a", CgroupFile.CPU_QUOTA, None),
                CgroupWrite("a", CgroupFile.IO_READ_BPS, Table((("8:0", 1024),))),
                CgroupWrite("a", CgroupFile.IO_WRITE_BPS, Table((("8:0", 2048),))),
            ),
            ["a/memory.min → 5242880", "a/cpu.max → max", "a/io.max → 8:0 rbps=1024, 8:0 wbps=2048"],
        ),
    ],
)
def test_files_have_their_own_names_and_texts(writes: tuple[CgroupWrite, ...], lines: list[str]) -> None:
    plan = replace(decided("BlkIOReconcile", ["a"]), strategies={"blockIo": OtherDecision("because", writes=writes)})
    page = plan_page(plan, 3)
    assert [each.strip() for each in page.splitlines() if "→" in each][-len(lines) :] == lines
    assert "frozenset" not in page
