"""What system configuration wants of the kernel's files, from spec.systemStrategy."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickSettings
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import decide_node
from koordebpf.decision.strategies import FEATURE_GATES, decide_strategies, section_of
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.reconcile import DesiredState, SysctlWrite, joined, wanted_values
from koordebpf.slo.spec import parse_spec
from koordebpf.slo.strategies.system import SystemStrategy
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.system_config.decide import SYSTEM_CONFIG, SystemDecision, system_writes
from koordebpf.strategies.system_config.values import SystemConfigSettings, SystemMeasured
from koordebpf.units import GIB, MIB
from tests.support.values.builders import frame

SETTINGS = SystemConfigSettings()


def written(capacity_bytes: int = 64 * GIB, most_percent: int = 10, **fields: Any) -> dict[str, int]:
    made = system_writes(SystemStrategy(**fields), capacity_bytes, SystemConfigSettings(most_percent))
    assert not made.problems
    return {each.name: each.value for each in made.sysctls}


def problems(capacity_bytes: int = 64 * GIB, **fields: Any) -> tuple[str, ...]:
    made = system_writes(SystemStrategy(**fields), capacity_bytes, SETTINGS)
    assert not made.sysctls
    return made.problems


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"minFreeKbytesFactor": 100}, {"vm.min_free_kbytes": 671088}),  # 64 Gi in KiB / 100, as koordlet has it
        ({"watermarkScaleFactor": 10}, {"vm.watermark_scale_factor": 10}),
        ({"watermarkScaleFactor": 400}, {"vm.watermark_scale_factor": 400}),
        ({"memcgReapBackGround": 1}, {"/sys/kernel/mm/memcg_reaper/reap_background": 1}),
        ({"memcgReapBackGround": 0}, {"/sys/kernel/mm/memcg_reaper/reap_background": 0}),
        ({"schedGroupIdentityEnabled": 1}, {"kernel.sched_group_identity_enabled": 1}),
        ({"schedIdleSaverWmark": 100_000}, {"kernel.sched_idle_saver_wmark": 100_000}),
        ({"pageCacheLimitEnabled": 1}, {"/sys/kernel/mm/pagecache_limit/enabled": 1}),
        (
            {"schedFeatures": {"WAKEUP_PREEMPTION": False, "NEXT_BUDDY": True}},
            {
                "/sys/kernel/debug/sched/features: NEXT_BUDDY": 1,
                "/sys/kernel/debug/sched/features: WAKEUP_PREEMPTION": 0,
            },
        ),
        ({"totalNetworkBandwidth": "10G"}, {}),
    ],
)
def test_each_field_has_its_file_and_one_that_is_absent_changes_none(fields, expected):
    assert written(**fields) == expected


@pytest.mark.parametrize(
    ("capacity_bytes", "factor", "kib"),
    [
        (1000 * MIB, 100, 10_240),  # the least that is written
        (2048 * GIB, 48, 10_307_921),
        (24683656 * 1024, 28, 69_114),
    ],
)
def test_min_free_kbytes_is_ten_thousandths_of_the_memory(capacity_bytes, factor, kib):
    assert written(capacity_bytes, minFreeKbytesFactor=factor) == {"vm.min_free_kbytes": kib}


@pytest.mark.parametrize(
    ("capacity_bytes", "fields", "problem"),
    [
        (
            999 * MIB,
            {"minFreeKbytesFactor": 100},
            "minFreeKbytesFactor: 10229: vm.min_free_kbytes must be 10240",
        ),
        (2048 * GIB, {"minFreeKbytesFactor": 49}, "vm.min_free_kbytes must be 10240 to 10485760: it is left alone"),
        (8 * GIB, {"minFreeKbytesFactor": 1001}, "must be at most 838860, 10 % of the memory (mostMinFreePercent)"),
        (GIB, {"watermarkScaleFactor": 9}, "watermarkScaleFactor: 9: vm.watermark_scale_factor must be 10 to 400"),
        (GIB, {"schedIdleSaverWmark": -1}, "schedIdleSaverWmark: -1: kernel.sched_idle_saver_wmark must be 0 to "),
        (GIB, {"schedFeatures": {"NO_NEXT_BUDDY": True}}, "schedFeatures[NO_NEXT_BUDDY]: 1: "),
        (GIB, {"schedFeatures": {"A\nB": True}}, r"schedFeatures[A\x0aB]: 1: "),
        (GIB, {"schedFeatures": {"": True}}, "schedFeatures[]: 1: "),
        (GIB, {"schedFeatures": {"A" * 61: True}}, "without NO_ in front: it is left alone"),
        (
            GIB,
            {"schedFeatures": {f"F{n}": True for n in range(65)}},
            "must have at most 64 entries",
        ),
    ],
)
def test_what_is_out_of_range_is_named_and_gives_nothing(capacity_bytes, fields, problem):
    (said,) = problems(capacity_bytes, **fields)
    assert said.startswith("spec.systemStrategy.")
    assert problem in said


def test_one_bad_field_does_not_cost_the_others():
    strategy = SystemStrategy(minFreeKbytesFactor=9_999, watermarkScaleFactor=20, schedFeatures={"x": True, "Y": True})
    made = system_writes(strategy, 8 * GIB, SETTINGS)
    assert [each.name for each in made.sysctls] == [
        "vm.watermark_scale_factor",
        "/sys/kernel/debug/sched/features: Y",
    ]
    assert len(made.problems) == 2


def test_an_operator_may_allow_more_to_be_kept_free():
    assert written(8 * GIB, most_percent=50, minFreeKbytesFactor=4_000) == {"vm.min_free_kbytes": 3_355_443}


def test_the_parts_of_a_file_are_files_of_their_own():
    features = [SysctlWrite(Sysctl.SCHED_FEATURES, value, part) for part, value in (("A", 1), ("B", 0))]
    wanted = wanted_values(DesiredState("a test", sysctls=tuple(features)))
    assert wanted == {("A", Sysctl.SCHED_FEATURES): 1, ("B", Sysctl.SCHED_FEATURES): 0}
    with pytest.raises(ConfigError, match="features: no: 1: must be the name of a scheduler feature"):
        wanted_values(DesiredState("a test", sysctls=(SysctlWrite(Sysctl.SCHED_FEATURES, 1, "no"),)))
    with pytest.raises(ConfigError, match=r"vm\.watermark_scale_factor: A: 20: must have one value"):
        wanted_values(DesiredState("a test", sysctls=(SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, 20, "A"),)))


def test_of_two_strategies_the_first_has_a_file_of_the_node():
    states = {
        name: DesiredState("a test", sysctls=(SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, value),))
        for name, value in (("ladder", 30), ("systemConfig", 20))
    }
    demand = joined(states)["", Sysctl.WATERMARK_SCALE_FACTOR]
    assert (demand.value, demand.owners) == (30, ("ladder", "systemConfig"))


def system_frame(system: SystemMeasured | None, *, gate: bool = True, **given: Any):
    made = frame((), gates={"SystemConfig": gate}, **given)
    return replace(made, measured=made.measured.with_part("systemConfig", system))


def decided(system: SystemMeasured | None, **given: Any) -> Any:
    view = view_of_frame(decode_frame(encode_frame(system_frame(system, **given)), "a test"))
    settings = TickSettings(eviction=EvictSettings())
    made = decide_strategies(view, {}, settings, has_cpu=False)["systemConfig"]
    assert isinstance(made, SystemDecision) or made.skipped == "gate_off"
    return made


class TestDecision:
    WANTED = SystemMeasured(SystemStrategy(watermarkScaleFactor=20, minFreeKbytesFactor=1))

    def test_the_gate_is_koordlets_and_off(self):
        assert FEATURE_GATES["SystemConfig"] is False
        assert section_of(SYSTEM_CONFIG) == "strategies.systemConfig"
        assert decided(self.WANTED, gate=False).skipped == "gate_off"

    def test_a_frame_decides_the_same_again(self):
        made = decided(self.WANTED)
        assert made.skipped is None
        assert made.sysctls == (SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, 20),)
        assert len(made.problems) == 1  # 1/10,000 of this node is too little

    def test_before_the_cluster_is_known_all_stays(self):
        assert decided(None).skipped == "not_known"

    def test_without_a_nodeslo_or_a_field_nothing_is_wanted(self):
        assert (decided(SystemMeasured()).skipped, decided(SystemMeasured()).sysctls) == (None, ())
        assert decided(SystemMeasured(SystemStrategy())).sysctls == ()

    def test_the_files_of_a_machine_are_not_those_of_a_node_in_it(self):
        made = decided(self.WANTED, scope="cgroup")
        assert (made.skipped, made.sysctls) == (None, ())
        assert "a cgroup of a larger machine" in made.reason

    def test_the_plan_shows_it(self):
        view = view_of_frame(system_frame(self.WANTED))
        plan = decide_node(view, EvictSettings())
        assert plan.strategies["systemConfig"].sysctls == (SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, 20),)
        assert msgspec.json.encode(plan)


def test_a_nodeslo_reaches_it_as_it_is_written():
    raw = {"spec": {"systemStrategy": {"minFreeKbytesFactor": 100, "schedFeatures": {"NEXT_BUDDY": True}}}}
    spec, errors = parse_spec(json.dumps(raw).encode())
    assert not errors
    made = system_writes(spec.systemStrategy, 64 * GIB, SETTINGS)
    assert [each.value for each in made.sysctls] == [671_088, 1]


def test_files_of_the_node_are_no_cgroup_files():
    assert not {each.value for each in Sysctl} & {each.value for each in CgroupFile}  # the journal has both by value
