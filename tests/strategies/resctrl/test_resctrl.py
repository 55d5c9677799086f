"""What resctrl is to hold: masks, bandwidths, groups, members."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickSettings
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.strategies import FEATURE_GATES, decide_strategies
from koordebpf.errors import ConfigError, KernelFileError
from koordebpf.kernel.cgroup.files import Sysctl
from koordebpf.kernel.host.written_texts import format_part, parse_part, parse_schemata
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.reconcile import DesiredState, SysctlWrite, wanted_values
from koordebpf.slo.strategies.resource_qos import ResctrlQOS
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.strategies.resctrl.decide import bandwidth, cache_mask
from koordebpf.strategies.resctrl.values import (
    BandwidthInfo,
    BandwidthUnit,
    CacheInfo,
    ResctrlMeasured,
    ResctrlSettings,
)
from tests.support.values.builders import PodAndMeasure, frame, pod

SETTINGS = ResctrlSettings()
L3 = CacheInfo(0x7FF, 1, ("L3",), (0, 8))
MB = BandwidthInfo(10, 10, "percent", 100, (0, 8))


@pytest.mark.parametrize(
    ("mask", "least", "start", "end", "ways"),
    [
        (0x7FF, 1, 0, 100, 0x7FF),
        (0x7FF, 1, 0, 30, 0xF),  # both ends rounded up, as in koordlet
        (0x7FF, 1, 30, 100, 0x7F0),
        (0xFFF, 1, 25, 50, 0x38),
        (0xFFFFF, 2, 0, 1, 0x3),
        (0x7FF, 1, 95, 96, 0x400),  # koordlet: 0, which the kernel refuses
        (0x7FF, 4, 90, 100, 0x780),
        (0x1, 1, 0, 1, 0x1),
        (0x1, 4, 99, 100, 0x1),
    ],
)
def test_percents_are_ways_side_by_side(mask, least, start, end, ways):
    assert cache_mask(CacheInfo(mask, least, ("L3",), (0,)), start, end) == ways


@pytest.mark.parametrize("start", range(0, 100, 7))
@pytest.mark.parametrize("mask", [0x1, 0x7, 0x7FF, 0xFFFF, 0xFFFFF])
def test_every_mask_is_one_that_the_kernel_takes(mask, start):
    for end in range(start + 1, 101):
        found = cache_mask(CacheInfo(mask, 2, ("L3",), (0,)), start, end)
        assert isinstance(found, int)
        low = found & -found
        assert found and not found & ~mask and not (found // low) & (found // low + 1)
        assert found.bit_count() >= min(2, mask.bit_count())


@pytest.mark.parametrize(
    ("mask", "start", "end", "rule"),
    [
        (0x7FE, 0, 100, "must be ones from bit 0"),
        (0, 0, 100, "must be ones from bit 0"),
        (0x7FF, 30, 30, "must be below"),
        (0x7FF, -1, 30, "must be below"),
        (0x7FF, 0, 101, "must be below"),
    ],
)
def test_percents_that_are_no_range_are_refused(mask, start, end, rule):
    assert rule in str(cache_mask(CacheInfo(mask, 1, ("L3",), (0,)), start, end))


@pytest.mark.parametrize(
    ("unit", "least", "gran", "most", "percent", "value"),
    [
        ("percent", 10, 10, 100, 100, 100),
        ("percent", 10, 10, 100, 41, 50),
        ("percent", 10, 10, 100, 1, 10),
        ("percent", 20, 10, 100, 11, 20),
        ("percent", 1, 2, 100, 41, 42),  # ARM MPAM
        ("percent", 10, 0, 100, 41, 41),
        ("absolute", 1, 1, 2048, 100, 2048),
        ("absolute", 1, 1, 2048, 50, 80),
        ("absolute", 1, 8, 2048, 51, 88),
        ("absolute", 0, 1, 2048, 1, 1),
    ],
)
def test_bandwidth_is_rounded_up_to_what_the_hardware_takes(
    unit: BandwidthUnit, least: int, gran: int, most: int, percent: int, value: int
) -> None:
    assert bandwidth(BandwidthInfo(least, gran, unit, most, (0,)), percent, SETTINGS) == value


def test_a_bandwidth_that_is_none_is_refused():
    assert bandwidth(MB, 0, SETTINGS) == "mbaPercent must be 1 to 100"
    assert "mba_MBps" in str(bandwidth(replace(MB, unit="mbps"), 50, SETTINGS))


TEXT = "    MB:0= 100;8=  50\n    L3:0=7ff;8=00f\n    L2:0=ff\n"


def test_schemata_are_read_and_written_a_domain_at_a_time():
    assert parse_schemata(TEXT, "x") == {"MB": {0: 100, 8: 50}, "L3": {0: 0x7FF, 8: 0xF}}
    assert parse_schemata("L3:uninitialized\n", "x") == {}
    assert (parse_part(TEXT, "BE/L3/8", "x"), parse_part(TEXT, "BE/MB/8", "x")) == (15, 50)
    assert (format_part("BE/L3/8", 0x7F), format_part("BE/MB/8", 20)) == ("L3:8=7f\n", "MB:8=20\n")


@pytest.mark.parametrize("text", ["L3:0\n", "L3:0=zz\n", "MB:0=1f\n", "L3:\n"])
def test_schemata_of_another_form_are_named(text):
    with pytest.raises(KernelFileError, match="must have domains as"):
        parse_schemata(text, "x")


def test_a_domain_that_is_not_there_is_named():
    with pytest.raises(KernelFileError, match="x: 'L3:1': must be a resource and a domain"):
        parse_part(TEXT, "BE/L3/1", "x")


@pytest.mark.parametrize("part", ["", "BE", "../L3/0", "BE/L2/0", "BE/L3/-1", "default/L3/0", "BE/L3/0\n"])
def test_a_part_names_one_of_koordinators_groups(part):
    with pytest.raises(ConfigError, match="must name a group"):
        wanted_values(DesiredState("a test", sysctls=(SysctlWrite(Sysctl.RESCTRL_SCHEMATA, 1, part),)))


def qos(start: int | None = 0, end: int | None = 30, mba: int | None = 50, *, enable: bool = True) -> ResctrlQOS:
    return ResctrlQOS(enable=enable, catRangeStartPercent=start, catRangeEndPercent=end, mbaPercent=mba)


def decided(measured: ResctrlMeasured | None, *pods: PodAndMeasure, gate: bool = True, **given: Any) -> Any:
    made = frame(pods, gates={"RdtResctrl": gate}, **given)
    made = replace(made, measured=made.measured.with_part("rdtResctrl", measured))
    view = view_of_frame(decode_frame(encode_frame(made), "a test"))
    settings = TickSettings(eviction=EvictSettings())
    return decide_strategies(view, {}, settings, has_cpu=False)["rdtResctrl"]


def written(made: Any) -> dict[str, int]:
    return {each.part: each.value for each in made.sysctls}


class TestDecision:
    def test_the_gate_is_off(self):
        assert FEATURE_GATES["RdtResctrl"] is False
        assert decided(ResctrlMeasured({"BE": qos()}, L3, MB), gate=False).skipped == "gate_off"
        assert decided(None).skipped == "not_known"

    def test_a_group_is_made_before_it_has_schemata_and_tasks(self):
        be = pod("be", qos="BE", uid="be")
        pods = (PodDirectory("be", "kubepods/podbe"),)
        made = decided(ResctrlMeasured({"BE": qos(), "LS": qos(enable=False)}, L3, MB, pods=pods), be)
        assert (made.groups, made.sysctls, made.members) == (("BE",), (), ())
        made = decided(ResctrlMeasured({"BE": qos()}, L3, MB, groups=("BE",), pods=pods), be)
        assert written(made) == {"BE/L3/0": 0xF, "BE/L3/8": 0xF, "BE/MB/0": 50, "BE/MB/8": 50}
        assert [(each.group, each.paths) for each in made.members] == [("BE", ("kubepods/podbe",))]
        assert not made.problems

    def test_what_the_hardware_has_not_is_left_out(self):
        assert set(written(decided(ResctrlMeasured({"BE": qos()}, L3, groups=("BE",))))) == {"BE/L3/0", "BE/L3/8"}
        assert set(written(decided(ResctrlMeasured({"BE": qos()}, mb=MB, groups=("BE",))))) == {"BE/MB/0", "BE/MB/8"}
        code = replace(L3, resources=("L3CODE", "L3DATA"), domains=(0,))
        made = decided(ResctrlMeasured({"BE": qos(mba=None)}, code, MB, groups=("BE",)))
        assert set(written(made)) == {"BE/L3CODE/0", "BE/L3DATA/0"}
        assert written(decided(ResctrlMeasured({"BE": qos(None, 30, None)}, L3, MB, groups=("BE",)))) == {}

    def test_one_bad_part_does_not_cost_the_other(self):
        made = decided(ResctrlMeasured({"BE": qos(50, 30, 0), "LS": qos()}, L3, MB, groups=("LS", "BE")))
        assert set(written(made)) == {"LS/L3/0", "LS/L3/8", "LS/MB/0", "LS/MB/8"}
        cat, mba = made.problems
        assert cat.startswith("spec.resourceQOSStrategy.beClass.resctrlQOS: 50 to 30 % of the L3: ")
        assert mba == "spec.resourceQOSStrategy.beClass.resctrlQOS.mbaPercent: 0: mbaPercent must be 1 to 100"

    def test_a_group_of_another_process_is_left_alone(self):
        made = decided(ResctrlMeasured({"BE": qos(), "LS": qos()}, L3, MB, groups=("LS",), foreign=("BE",)))
        assert made.groups == ("LS",)
        assert not any(part.startswith("BE") for part in written(made))
        assert made.problems == ("resctrl group BE: another process made it: it is left alone. Remove it with rmdir",)

    def test_a_machine_without_it_is_named_where_a_class_wants_it(self):
        why = "resctrl is not mounted"
        assert decided(ResctrlMeasured({"BE": qos()}, problem=why)).problems == (why,)
        assert decided(ResctrlMeasured({"BE": qos(enable=False)}, problem=why)).problems == ()
        assert decided(ResctrlMeasured()).groups == ()

    def test_a_node_in_a_machine_has_none_of_it(self):
        made = decided(ResctrlMeasured({"BE": qos()}, L3, MB, groups=("BE",)), scope="cgroup")
        assert (made.skipped, made.groups, made.sysctls) == (None, (), ())

    @pytest.mark.parametrize(
        ("label", "kube_qos", "group"),
        [
            ("LSE", "Guaranteed", "LSR"), ("LSR", "Guaranteed", "LSR"), ("LS", "Burstable", "LS"),
            ("BE", "BestEffort", "BE"), ("SYSTEM", "Burstable", None),
            (None, "Guaranteed", "LSR"), (None, "Burstable", "LS"), (None, "BestEffort", "BE"),
        ],
    )  # fmt: skip
    def test_the_group_of_a_pod(self, label, kube_qos, group):
        measured = ResctrlMeasured(
            dict.fromkeys(("LSR", "LS", "BE"), qos()), L3, MB, ("LSR", "LS", "BE"), pods=(PodDirectory("a", "pods/a"),)
        )
        made = decided(measured, pod("a", qos=label, kube_qos=kube_qos, uid="a"))
        assert [each.group for each in made.members] == ([group] if group else [])

    def test_a_pods_annotation_does_not_take_it_out_of_its_class(self):
        be = pod("be", qos="BE", uid="be")
        annotations = {"node.koordinator.sh/resctrl": '{"l3": {"schemata": {"range": [0, 100]}}}'}
        be = replace(be, pod=replace(be.pod, metadata=replace(be.pod.metadata, annotations=annotations)))
        measured = ResctrlMeasured({"BE": qos()}, L3, MB, ("BE",), pods=(PodDirectory("be", "pods/be"),))
        assert [each.paths for each in decided(measured, be).members] == [("pods/be",)]

    def test_a_pod_that_has_ended_or_has_no_directory_has_no_tasks(self):
        ended = pod("ended", qos="BE", uid="ended")
        ended = replace(ended, pod=replace(ended.pod, status=replace(ended.pod.status, phase="Succeeded")))
        measured = ResctrlMeasured({"BE": qos()}, L3, MB, ("BE",), pods=(PodDirectory("ended", "pods/ended"),))
        assert decided(measured, ended, pod("new", qos="BE", uid="new")).members == ()
