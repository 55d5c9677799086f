"""Eviction plugins outside the agent, over gRPC: registered by their sockets, called each round, their pods evicted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.clients.protobuf import decode
from koordebpf.kube.plugins.pods import POD_TABLE
from tests.contract.apiserver import until
from tests.contract.eviction_plugin import POD, Plugin
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

QOS = "katalyst.kubewharf.io/qos_level"


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 400 * MIB) as node:
        yield node


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    folder = tmp_path / "sockets"
    folder.mkdir()
    return folder


@pytest.fixture
def plugin(sockets: Path) -> Iterator[Plugin]:
    made = Plugin(sockets / "outside.sock")
    yield made
    made.stop()


def run(node: NodeCgroup, folder: Path, sockets: Path, **settings: object) -> LiveAgent:
    config = folder / "config.yaml"
    more = "".join(f"\n    {name}: {value}" for name, value in settings.items())
    config.write_text(
        f"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  BEMemoryEvict: false
  KatalystEviction: true
eviction:
  katalyst:
    sync: 200ms
    sockets: {sockets}{more}
"""
    )
    manifest = node.write_manifest(folder / "pods.json")
    return LiveAgent(folder, "--config", config, "--pods", manifest, "--node-cgroup", node.path, "--enforce")


@contextlib.contextmanager
def held(cgroup: Path) -> Iterator[Holder]:
    holder = Holder(cgroup, "anon", 50)
    try:
        yield holder
    finally:
        holder.stop()


def name_of(pod: bytes) -> str:
    return str(decode(POD_TABLE, "Pod", pod)["metadata"]["name"])


def chosen(name: str) -> Any:
    """Answer GetTopEvictionPods with the pod of this name, as it was sent."""
    return lambda request: {"target_pods": [each for each in request.active_pods if name_of(each) == name]}


@pytest.mark.slow
def test_a_pod_that_a_plugin_asks_for_is_killed_and_no_other(
    node: NodeCgroup, tmp_path: Path, sockets: Path, plugin: Plugin
) -> None:
    (batch,) = node.add_pod("batch", annotations={QOS: "reclaimed_cores"})
    (online,) = node.add_pod("online", be=False)
    plugin.top = chosen("batch")
    with (
        run(node, tmp_path, sockets) as agent,
        held(batch) as victim,
        held(online) as other,
    ):
        agent.becomes_ready()
        until(lambda: plugin.asked.get("ThresholdMet"), "the plugin is called")
        assert plugin.statuses == [(True, "")]
        plugin.met = {
            "met_type": 2, "threshold_value": 3, "observed_value": 5.5, "threshold_operator": 1,
            "eviction_scope": "temperature",
        }  # fmt: skip
        line = agent.has_plan()
        assert victim.process.wait(patience(10)) != 0
        assert other.process.poll() is None
        assert "plugin outside met threshold in scope temperature, target 3, observed 5.5" in line["sentence"]
        assert [(each["name"], each["result"]) for each in line["outcomes"]] == [("batch", "done")]
        asked = plugin.asked["GetTopEvictionPods"][0]
        assert (asked.topN, asked.eviction_scope) == (1, "temperature")
        assert agent.stop() == 0


@pytest.mark.slow
def test_what_a_plugin_does_wrong_evicts_no_pod_and_stops_no_round(
    node: NodeCgroup, tmp_path: Path, sockets: Path, plugin: Plugin
) -> None:
    (batch,) = node.add_pod("batch", annotations={QOS: "reclaimed_cores"})
    plugin.evict = [
        {"pod": POD(metadata={"uid": "of-another-node"}).SerializeToString(), "force_evict": True, "reason": "x"}
    ]
    rude = Plugin(sockets / "rude.sock")
    silent = Plugin(sockets / "silent.sock")
    try:
        with run(node, tmp_path, sockets) as agent, held(batch) as victim:
            agent.becomes_ready()
            until(lambda: all("ThresholdMet" in each.asked for each in (plugin, rude, silent)), "all are called")
            rude.raw = b"\xff" * (4 << 20)
            silent.hold.clear()
            calls = len(plugin.asked["ThresholdMet"])
            until(lambda: len(plugin.asked["ThresholdMet"]) >= calls + 5, "rounds continue")
            assert agent.plans() == []
            # AND one that then asks for a pod of this node gets it
            plugin.met = {"met_type": 2, "eviction_scope": "any"}
            plugin.evict = []
            line = agent.has_plan()
            assert [each["name"] for each in line["outcomes"]] == ["batch"]
            assert victim.process.wait(patience(10)) != 0
            assert agent.stop() == 0
    finally:
        rude.stop()
        silent.stop()
