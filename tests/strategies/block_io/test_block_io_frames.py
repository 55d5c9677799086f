"""Frames with block IO: what the whole decision wants of files, and that a replay decides the same."""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.kube.cache.objects import Pod
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import Frame
from koordebpf.strategies.block_io.values import BlockIOMeasured
from tests.support.values.block_io import block, measured, pod_object, qos
from tests.support.values.cpu_nodes import cpu_frame

POD = pod_object("be", "BestEffort", block("pvc-1", "podvolume", readIOPS=50))


def frame(given: BlockIOMeasured | None, *pods: Pod, is_on: bool = True) -> Frame:
    base = cpu_frame()
    return msgspec.structs.replace(
        base,
        pods=pods,
        measured=base.measured.with_part("blockIO", given),
        featureGates={**base.featureGates, "BECPUSuppress": False, "BlkIOReconcile": is_on},
    )


def decided(made: Frame) -> NodePlan:
    plan = decide_node(view_of_frame(made), EvictSettings())
    again = decide_node(view_of_frame(decode_frame(encode_frame(made), "frame")), EvictSettings())
    assert again.strategies == plan.strategies
    return plan


def given(**more: Any) -> BlockIOMeasured:
    slo = qos(beClass=[block(writeBPS=1000)])
    return measured(POD, version=2, qos=slo, volumes={"be": {"pvc-1": ("7:0",)}}, **more)


def test_the_plan_of_a_frame_shows_each_limit_and_a_replay_decides_the_same() -> None:
    made = decided(frame(given(), POD)).strategies["blockIO"]
    assert {(each.path, each.file): each.value for each in made.writes} == {
        ("kubepods/besteffort", CgroupFile.IO_WRITE_BPS): Table.of({"8:16": 1000}),
        ("kubepods/besteffort/podbe", CgroupFile.IO_READ_IOPS): Table.of({"7:0": 50}),
    }
    assert made.reason == "block IO: 2 cgroups have limits of 2 devices"
    assert made.skipped is None


def test_a_round_that_has_not_looked_leaves_what_was_written() -> None:
    made = decided(frame(None, POD)).strategies["blockIO"]
    assert (made.writes, made.skipped) == ((), "not_due")


def test_with_its_gate_off_nothing_is_wanted() -> None:
    assert "blockIO" not in decided(frame(given(), POD, is_on=False)).strategies
