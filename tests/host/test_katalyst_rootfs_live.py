"""Katalyst's plugins for the image filesystem in an agent that acts: real overlays on a small disk, real cgroups."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
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
CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  BEMemoryEvict: false
  KatalystEviction: true
eviction:
  katalyst:
    sync: 1s
    inner:
      rootfsPressure:
        isOn: true
        imageFs: {disk}
        minFree: 40%
        minInodesFree: 20%
        minCapacity: 0
        podMinUsed: 2Mi
        podMinInodesUsed: "1000"
"""


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


def run(node: NodeCgroup, folder: Path, disk: ImageDisk) -> LiveAgent:
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(disk=disk.root))
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
    with run(node, tmp_path, disk) as agent:
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
