"""Frames with CPU burst: what the whole decision wants, beside other strategies, and that a replay decides the same."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.act.writer.writer import Wanted
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.decision.strategies import FEATURE_GATES
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kube.cache.objects import Node, ObjectMeta
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.hook_pods import HooksMeasured, PodDirectory
from koordebpf.state.view import Frame
from koordebpf.strategies.hooks.decide import HOOKS_PART
from tests.support.values.cpu_burst import ONE, POD, BurstNode, container, pod

QUOTA = CgroupFile.CPU_QUOTA


def decided(made: Frame) -> NodePlan:
    plan = decide_node(view_of_frame(made), EvictSettings())
    again = decide_node(view_of_frame(decode_frame(encode_frame(made), "frame")), EvictSettings())
    assert again.strategies == plan.strategies
    return plan


def normalized(frame: Frame, **gates: bool) -> Frame:
    """Return the frame of a node whose CPUs are 1.25 times as fast as those that limits are written for."""
    node = Node(metadata=ObjectMeta(name="node", annotations={"node.koordinator.sh/cpu-normalization-ratio": "1.25"}))
    hooks = HooksMeasured(pods=(PodDirectory("uid-web", POD, {"id-a": ONE}),), online=tuple(range(8)))
    gates = {**frame.featureGates, "CPUNormalization": True, **gates}
    return replace(frame, node=node, measured=frame.measured.with_part(HOOKS_PART, hooks), featureGates=gates)


def wanted(plan: NodePlan) -> dict[Any, Any]:
    """Return what the writer makes of all strategies together."""
    states = Wanted()
    for name, each in plan.strategies.items():
        states.replace(DesiredState(each.reason, each.writes, each.sysctls), name)
    return dict(states.values)


def test_it_is_off_unless_it_is_asked_for() -> None:
    assert FEATURE_GATES["CPUBurst"] is False
    frame = BurstNode().frame(pod(container()))
    gates = {**frame.featureGates, "CPUBurst": False, "BECPUSuppress": False}
    plan = decided(replace(frame, featureGates=gates))
    assert "cpuBurst" not in plan.strategies
    assert CgroupFile.CPU_QUOTA not in {file for _, file in wanted(plan)}


def test_the_whole_decision_has_it() -> None:
    plan = decided(BurstNode().frame(pod(container())))
    assert plan.strategies["cpuBurst"].reason == (
        "CPU burst: 1 containers above their limit, use of the share pool 12 %, threshold 50 %"
    )
    assert wanted(plan)[ONE, QUOTA] == 120_000


@pytest.mark.parametrize(("throttled", "quota"), [(True, 96_000), (False, 80_000)])
def test_a_burst_starts_from_what_cpu_normalization_keeps(throttled: bool, quota: int) -> None:
    measured = pod(container(throttled=throttled, quota_us=80_000), quota_us=80_000)
    found = wanted(decided(normalized(BurstNode().frame(measured))))
    assert [found[path, QUOTA] for path in (POD, ONE)] == [quota, quota]


def test_a_burst_leaves_room_for_the_quota_that_cpu_normalization_is_about_to_write() -> None:
    """The kernel refuses a quota below what may be saved up."""
    plan = decided(normalized(BurstNode().frame(pod(container(throttled=False)))))
    found = wanted(plan)
    assert [found[path, CgroupFile.CPU_BURST] for path in (POD, ONE)] == [80_000] * 2
    assert [found[path, QUOTA] for path in (POD, ONE)] == [80_000] * 2


def test_what_a_burst_wants_is_never_above_another_limit() -> None:
    plan = decided(BurstNode().frame(pod(container())))
    states = Wanted()
    states.replace(DesiredState("", plan.strategies["cpuBurst"].writes), "cpuBurst")
    states.replace(DesiredState("", (CgroupWrite(ONE, QUOTA, 50_000),)), "ladder")
    assert states.values[ONE, QUOTA] == 50_000
