"""Katalyst's plugins that judge by the CustomNodeResource, in an agent on real cgroups with its objects from files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.state.pods.requests import NET_BANDWIDTH, RECLAIMED_CPU
from koordebpf.strategies.katalyst.plugins.cnr import NUMA_BIND_RESULT
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

QOS = "katalyst.kubewharf.io/qos_level"
CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  BEMemoryEvict: false
  KatalystEviction: true
eviction:
  katalyst:
    sync: 200ms
    inner:
      network:
        isOn: true
        tolerance: 1s
"""


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 400 * MIB) as node:
        yield node


def zone(kind: str, name: str, allocatable: dict[str, Any], *consumers: str, **more: Any) -> dict[str, Any]:
    allocations = [{"consumer": each, "requests": {NET_BANDWIDTH: "5"}} for each in consumers]
    return {"type": kind, "name": name, "resources": {"allocatable": allocatable}, "allocations": allocations, **more}


def write_cnr(path: Path, *zones: dict[str, Any]) -> Path:
    status = {"topologyZone": [zone("Socket", "0", {}, children=list(zones))]}
    document = {"apiVersion": "node.katalyst.kubewharf.io/v1alpha1", "kind": "CustomNodeResource", "status": status}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document | {"metadata": {"name": "node"}}))
    part.rename(path)
    return path


def add_pod(node: NodeCgroup, name: str, level: str, cpu: str | None = None, **annotations: str) -> tuple[Path, str]:
    (directory,) = node.add_pod(name, annotations={QOS: level, **annotations})
    if cpu is not None:
        node.pods[-1]["spec"]["containers"][0]["resources"] = {"requests": {RECLAIMED_CPU: cpu}}
    return directory, f"default/{name}/{node.pods[-1]['metadata']['uid']}"


def run(folder: Path, *manifests: Path, node: NodeCgroup) -> LiveAgent:
    config = folder / "config.yaml"
    config.write_text(CONFIG)
    files = [word for manifest in manifests for word in ("--pods", manifest)]
    return LiveAgent(folder, "--config", config, *files, "--node-cgroup", node.path, "--enforce")


@pytest.mark.slow
def test_the_reclaimed_pod_of_a_numa_zone_that_gives_less_is_killed(node: NodeCgroup, tmp_path: Path) -> None:
    batch, _ = add_pod(node, "batch", "reclaimed_cores", "6000", **{NUMA_BIND_RESULT: "1"})
    other, _ = add_pod(node, "other", "reclaimed_cores", "9000", **{NUMA_BIND_RESULT: "0"})
    plenty, little = {RECLAIMED_CPU: "9k"}, {RECLAIMED_CPU: "1k"}
    cnr = write_cnr(tmp_path / "cnr.json", zone("Numa", "0", plenty), zone("Numa", "1", plenty))
    holders = [Holder(batch, "anon", 10), Holder(other, "anon", 10)]
    try:
        with run(tmp_path, node.write_manifest(tmp_path / "pods.json"), cnr, node=node) as agent:
            agent.becomes_ready()
            time.sleep(1)
            assert agent.plans() == []
            write_cnr(cnr, zone("Numa", "0", plenty), zone("Numa", "1", {RECLAIMED_CPU: "little"}))
            agent.said("no plugin of Katalyst's judges the CustomNodeResource")
            assert agent.plans() == []
            write_cnr(cnr, zone("Numa", "0", plenty), zone("Numa", "1", little))
            line = agent.has_plan()
            assert holders[0].process.wait(patience(10)) != 0
            assert holders[1].process.poll() is None
            assert f"met threshold in scope zone1|{RECLAIMED_CPU}, target 5000, observed 6000" in line["sentence"]
            assert agent.stop() == 0
    finally:
        for each in holders:
            each.stop()


@pytest.mark.slow
def test_the_pod_of_a_nic_that_stays_without_bandwidth_is_killed(node: NodeCgroup, tmp_path: Path) -> None:
    served, consumer = add_pod(node, "served", "shared_cores")
    other, _ = add_pod(node, "other", "reclaimed_cores")
    healthy, ill = (zone("NIC", "eth7", {NET_BANDWIDTH: amount}, consumer) for amount in ("25k", "0"))
    cnr = write_cnr(tmp_path / "cnr.json", healthy)
    holders = [Holder(served, "anon", 10), Holder(other, "anon", 10)]
    try:
        with run(tmp_path, node.write_manifest(tmp_path / "pods.json"), cnr, node=node) as agent:
            agent.becomes_ready()
            time.sleep(1.5)
            assert agent.plans() == []
            write_cnr(cnr, ill)
            line = agent.has_plan()
            assert holders[0].process.wait(patience(10)) != 0
            assert holders[1].process.poll() is None
            assert "its NIC eth7 has had no bandwidth in the CustomNodeResource for 1" in line["sentence"]
            until(lambda: len(agent.plans()) == 1, "one plan")
            assert agent.stop() == 0
    finally:
        for each in holders:
            each.stop()
