"""Katalyst's plugins for the image filesystem in an agent that acts: real overlays on a small disk, real cgroups."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.image_disk import ImageDisk
from tests.support.loads.workloads import BUILD
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB, DISK_MIB = 400, 64
QOS = "katalyst.kubewharf.io/qos_level"
PRESSURE = {
    "isOn": True,
    "minFree": "40%",
    "minInodesFree": "20%",
    "minCapacity": 0,
    "podMinUsed": "2Mi",
    "podMinInodesUsed": "1000",
}


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node:
        yield node


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ImageDisk]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a disk")
    with ImageDisk(tmp_path, DISK_MIB) as disk:
        yield disk


def run(node: NodeCgroup, folder: Path, disk: ImageDisk, plugins: Mapping[str, Mapping[str, object]]) -> LiveAgent:
    pressure = {"imageFs": str(disk.root), **plugins.get("rootfsPressure", {})}
    settings = {
        "apiVersion": "koordebpf.io/v1alpha1",
        "kind": "AgentConfiguration",
        "featureGates": {"BEMemoryEvict": False, "KatalystEviction": True},
        "eviction": {"katalyst": {"sync": "1s", "inner": {**plugins, "rootfsPressure": pressure}}},
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings))
    manifest = node.write_manifest(folder / "pods.json")
    return LiveAgent(folder, "--config", config, "--pods", manifest, "--node-cgroup", node.path, "--enforce")


FILLS = {
    "bytes": "yes | head -c 45000000 > /filled; exec sleep 600",
    "inodes": "mkdir /d; seq 14000 | while read n; do : > /d/f$n; done; exec sleep 600",
}


@pytest.mark.slow
@pytest.mark.parametrize("fill", FILLS)
def test_the_pod_whose_layer_filled_the_disk_is_evicted_and_no_other(
    node: NodeCgroup, disk: ImageDisk, tmp_path: Path, fill: str
) -> None:
    (filling,) = node.add_pod("filling", be=False, annotations={QOS: "shared_cores"})
    (batch,) = node.add_pod("batch", annotations={QOS: "reclaimed_cores"})
    (flooding,) = node.add_pod("flooding", annotations={QOS: "reclaimed_cores"})
    layers = {each: disk.layer(each.name) for each in (filling, batch, flooding)}
    layers[batch].write("data", 6)
    with run(node, tmp_path, disk, {"rootfsPressure": PRESSURE}) as agent:
        agent.becomes_ready()
        small = layers[batch].start("exec sleep 600", batch)
        command = [BUILD / "cacheflood", "/var/tmp", str(NODE_MIB), "600", flooding / "cgroup.procs"]
        flood = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
        large = None
        try:
            until(lambda: node.usage_bytes() > (NODE_MIB - 50) * MIB, "the page cache fills the node", 60)
            assert agent.plans() == []
            large = layers[filling].start(FILLS[fill], filling)
            line = agent.has_plan()
            assert large.wait(patience(10)) != 0
            assert small.poll() is None
            assert flood.poll() is None
            # AND no other one, although the disk stays full
            time.sleep(3)
            assert len(agent.plans()) == 1
            assert small.poll() is None
        finally:
            for each in (small, flood, large):
                if each is not None:
                    each.kill()
                    each.wait()
        assert "met threshold in scope SystemRootfs" in line["sentence"]
        assert [(outcome["name"], outcome["result"]) for outcome in line["outcomes"]] == [("filling", "done")]
        assert agent.stop() == 0


@pytest.mark.slow
def test_a_pod_that_has_written_more_than_its_part_of_the_disk_is_evicted(
    node: NodeCgroup, disk: ImageDisk, tmp_path: Path
) -> None:
    (large,) = node.add_pod("large", be=False, annotations={QOS: "shared_cores"})
    (small,) = node.add_pod("small", be=False, annotations={QOS: "shared_cores"})
    layers = {each: disk.layer(each.name) for each in (large, small)}
    layers[large].write("data", 20)
    layers[small].write("data", 6)
    processes = [layers[each].start("exec sleep 600", each) for each in (large, small)]
    try:
        overuse = {"isOn": True, "shared": "25%"}
        with run(node, tmp_path, disk, {"rootfsOveruse": overuse}) as agent:
            agent.becomes_ready()
            line = agent.has_plan()
            assert processes[0].wait(patience(10)) != 0
            time.sleep(3)
            assert processes[1].poll() is None
            assert "in their root filesystems, more than" in line["sentence"]
            assert [(outcome["name"], outcome["result"]) for outcome in line["outcomes"]] == [("large", "done")]
            assert len(agent.plans()) == 1
            assert agent.stop() == 0
    finally:
        for each in processes:
            each.kill()
            each.wait()
