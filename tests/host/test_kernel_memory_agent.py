"""An agent on a node that socket buffers fill: the pod that holds them is evicted, and its neighbours stay."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB = 512
NEIGHBOUR_MIB = 50
HOLD = ("--hold", "600")  # longer than any machine takes to decide; the test ends it


@pytest.mark.parametrize("kind", ["sockets", "pipes"])
def test_the_pod_that_holds_the_kernels_memory_is_evicted(
    hierarchy: MemoryHierarchy, tmp_path: Path, kind: str
) -> None:
    with ExitStack() as stack:
        node = stack.enter_context(NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB))
        neighbours = [node.add_pod(f"map-{number}", priority=5000)[0] for number in range(3)]
        (container,) = node.add_pod("relay", priority=5000)
        manifest = node.write_manifest(tmp_path / "pods.json", 70, 50)
        arguments = ["--pods", manifest, "--node-cgroup", node.path, "--enforce"]
        agent = stack.enter_context(LiveAgent(tmp_path, *arguments))
        agent.becomes_ready()
        held = [Holder(each, "anon", NEIGHBOUR_MIB, *HOLD) for each in neighbours]
        for each in held:
            stack.callback(each.stop)
        hog = Holder(container, kind, NODE_MIB // 2, *HOLD, waits=False)
        stack.callback(hog.stop)
        line = agent.has_plan()
        assert hog.process.wait(patience(10)) != 0
        assert [outcome["name"] for outcome in line["outcomes"]] == ["relay"]
        assert "of it kernel memory" in line["sentence"]
        assert all(each.process.poll() is None for each in held)
        assert agent.stop() == 0
