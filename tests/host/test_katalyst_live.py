"""Katalyst's eviction manager on real cgroups: memory below a watermark evicts the reclaimed pod, at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import BUILD, Hog, Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB, FREE_MIB = 400, 100
QOS = "katalyst.kubewharf.io/qos_level"
CONFIG = f"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  BEMemoryEvict: false
  KatalystEviction: true
eviction:
  katalyst:
    inner:
      systemMemory:
        freeMinimum: {FREE_MIB}Mi
"""


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node:
        yield node


def run(node: NodeCgroup, folder: Path) -> LiveAgent:
    config = folder / "config.yaml"
    config.write_text(CONFIG)
    manifest = node.write_manifest(folder / "pods.json")
    return LiveAgent(folder, "--config", config, "--pods", manifest, "--node-cgroup", node.path, "--enforce")


@pytest.mark.slow
def test_below_the_watermark_the_reclaimed_pod_is_killed(node: NodeCgroup, tmp_path: Path) -> None:
    (batch,) = node.add_pod("batch", annotations={QOS: "reclaimed_cores"})
    (online,) = node.add_pod("online", be=False, annotations={QOS: "shared_cores"})
    with run(node, tmp_path) as agent:
        agent.becomes_ready()
        large = Holder(online, "anon", 150)
        hog = Hog(batch, NODE_MIB * 9 // 10, rate_mib_s=200, hold_s=60)
        try:
            line = agent.has_plan()
            assert hog.process.wait(patience(10)) != 0
            assert large.process.poll() is None
        finally:
            hog.stop()
            large.stop()
        assert "met threshold in scope SystemMemory" in line["sentence"]
        assert [(outcome["name"], outcome["result"]) for outcome in line["outcomes"]] == [("batch", "done")]
        plugin = 'plugin="system-memory-pressure-eviction-plugin"'
        until(lambda: agent.metric(f'koordebpf_katalyst_released_pods_total{{mode="force",{plugin}}}') == 1, "counted")
        victim = 'plugin_name="system-memory-pressure-eviction-plugin",pod_name="batch",pod_ns="default"'
        until(lambda: agent.metric(f'kill_pod{{{victim},state="succeeded"}}') == 1, "counted in Katalyst's name")
        ready = agent.get("/readyz?verbose")[1]
        assert "[+]eviction_manager_sync" in ready
        assert "[!]plugin reclaimed-resource-pressure-eviction-plugin lacks input: there is no CustomNode" in ready
        # AND once: its object is in the list for as long as the agent runs
        time.sleep(2)
        assert len(agent.plans()) == 1
        assert agent.stop() == 0


@pytest.mark.slow
def test_a_flood_of_page_cache_evicts_no_pod(node: NodeCgroup, tmp_path: Path) -> None:
    (batch,) = node.add_pod("batch", annotations={QOS: "reclaimed_cores"})
    with run(node, tmp_path) as agent:
        agent.becomes_ready()
        command = [BUILD / "cacheflood", "/var/tmp", str(NODE_MIB), "600", batch / "cgroup.procs"]
        flood = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
        try:
            until(lambda: node.usage_bytes() > (NODE_MIB - FREE_MIB // 2) * MIB, "the page cache fills the node", 60)
            time.sleep(2)
            assert flood.poll() is None
            assert agent.plans() == []
        finally:
            flood.kill()
            flood.wait()
        assert agent.stop() == 0
