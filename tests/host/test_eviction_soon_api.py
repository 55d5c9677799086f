"""The Node and the pod that would be first get an Event before a real hog crosses the threshold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import LiveCluster, kubeconfig
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup

NODE_MIB = 400
CONFIG = {
    "apiVersion": "koordebpf.io/v1alpha1",
    "kind": "AgentConfiguration",
    "evictionWarning": {"ahead": "8s"},
}


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node:
        yield node


@pytest.mark.slow
def test_node_and_pod_have_an_event_before_the_eviction(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    cluster = LiveCluster(node, 70, 0)
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    try:
        arguments = ["--config", tmp_path / "config.yaml", "--source", "api", "--executor", "api", "--node-name", "n1"]
        arguments += [
            "--kubeconfig",
            kubeconfig(tmp_path / "kubeconfig", cluster.server.url),
            "--node-cgroup",
            node.path,
        ]
        with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
            agent.becomes_ready()
            hog = Hog(container, NODE_MIB * 9 // 10, rate_mib_s=20, hold_s=60)
            try:
                until(lambda: len(cluster.events) >= 3, "an Event on the node, one before and one after the eviction")
            finally:
                hog.stop()
            of_node, of_pod, evicted = cluster.events[:3]
            assert [each["reason"] for each in (of_node, of_pod, evicted)] == [
                "EvictionSoon", "EvictionSoon", "evictPodSuccess",
            ]  # fmt: skip
            where = of_node["involvedObject"]
            assert (where["kind"], where["name"], where["uid"]) == ("Node", "n1", "n1")
            assert of_node["metadata"]["namespace"] == "default"
            assert of_node["message"].startswith("n1 evicts in ")
            assert (of_pod["involvedObject"]["kind"], of_pod["involvedObject"]["name"]) == ("Pod", "hog")
            assert of_pod["message"].startswith("default/hog is evicted in ")
            assert agent.stop() == 0
    finally:
        cluster.close()
