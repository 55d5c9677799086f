"""With act_ahead the eviction comes before the threshold is crossed, on a real cgroup that grows steadily."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB = 400
RATE_MIB_S = 20
CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
eviction:
  actAhead: 8s
"""


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node:
        yield node


@pytest.mark.slow
def test_a_steady_growth_is_met_before_the_line(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    manifest = node.write_manifest(tmp_path / "pods.json")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    arguments = ["--config", config, "--pods", manifest, "--node-cgroup", node.path, "--enforce"]
    with LiveAgent(tmp_path, *arguments) as agent:
        agent.becomes_ready()
        hog = Hog(container, NODE_MIB * 9 // 10, rate_mib_s=RATE_MIB_S, hold_s=60)
        try:
            line = agent.has_plan()
            assert hog.process.wait(patience(10)) != 0
        finally:
            hog.stop()
        (feature,) = line["features"]
        verdict = feature["verdict"]
        assert verdict["ahead"]["high_ns"] < 8_000_000_000
        assert verdict["evidence"]["used"] < verdict["evidence"]["threshold"]
        assert "acting ahead of it" in line["sentence"]
        assert [outcome["result"] for outcome in line["outcomes"]] == ["done"]
        assert agent.stop() == 0
