"""Whatever a pod's annotation says concerns that pod alone, and no part of a limit is more than the whole."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.kernel.cgroup.files import CgroupFile, broken_rule
from koordebpf.kube.cache.objects import Pod
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.state.pods.facts import facts_of_pods
from koordebpf.strategies.block_io.decide import wanted
from koordebpf.strategies.block_io.values import BLKIO_QOS_ANNOTATION, BlockIOSettings, block_io_view
from tests.support.values.block_io import block, measured, pod_object, qos

FIELDS = ("readBPS", "writeBPS", "readIOPS", "writeIOPS", "ioWeightPercent", "readLatency", "modelReadBPS", "other")
NUMBERS = st.one_of(st.integers(-1, 200), st.integers(0, 1 << 70))
BLOCKS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["/dev/vdb", "/dev/none", "wide", "pvc-1", "data", "../x", ""]),
        "type": st.sampled_from(["device", "volumegroup", "podvolume", "disk", ""]),
        "ioCfg": st.dictionaries(st.sampled_from(FIELDS), NUMBERS),
    }
)
ANNOTATIONS = st.one_of(
    st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps),
    st.lists(BLOCKS, max_size=40).map(lambda blocks: json.dumps({"blocks": blocks})),
)  # fmt: skip


def made(version: int, *pods: Pod, limit: int = 1000) -> tuple[CgroupWrite, ...]:
    node = measured(
        *pods, version=version, volumes={"bad": {"pvc-1": ("7:0",)}}, qos=qos(beClass=[block(writeBPS=limit)])
    )
    return tuple(
        each.write for each in wanted(block_io_view(node, facts_of_pods(pods)), BlockIOSettings()).writes
    )  # fmt: skip


@given(ANNOTATIONS, st.sampled_from([1, 2]), st.sampled_from(["BestEffort", "Burstable"]))
def test_an_annotation_changes_its_own_pods_limits_alone(text: str, version: int, kube_qos: str) -> None:
    bad, other = pod_object("bad", kube_qos), pod_object("other", "BestEffort", block(readIOPS=7))
    annotated = msgspec.structs.replace(
        bad, metadata=msgspec.structs.replace(bad.metadata, annotations={BLKIO_QOS_ANNOTATION: text})
    )
    before, after = made(version, bad, other), made(version, annotated, other)
    assert [each for each in after if "/podbad" not in each.path] == [
        each for each in before if "/podbad" not in each.path
    ]
    # Each can be written, none is a target that slows others down, and none widens the limit of the class.
    assert [broken_rule(each.file, each.value) for each in after] == [None] * len(after)
    assert CgroupFile.IO_LATENCY not in {each.file for each in after}
    limits = {(each.path, each.file): dict(each.value.rows) for each in after}  # type: ignore[union-attr]
    for write in before:
        rows = limits[write.path, write.file]
        assert all(rows[disk] <= limit for disk, limit in write.value.rows)  # type: ignore[union-attr]


@given(st.integers(1, 1 << 62), st.integers(1, 40))
def test_on_v1_all_parts_together_are_no_more_than_the_limit(limit: int, containers: int) -> None:
    parts = [each.value for each in made(1, pod_object("be", containers=containers), limit=limit)]
    assert len(parts) == containers
    total = sum(dict(each.rows)["8:16"] for each in parts)  # type: ignore[union-attr]
    assert total <= max(limit, containers)
    assert total > limit - containers
