"""An agent in a pid namespace of its own, as a container without hostPID: on cgroup v1 it finds no process to kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.host.machine import is_initial
from tests.host.live_agent import LiveAgent
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def test_an_agent_that_cannot_see_the_pods_processes_does_not_promise_to_kill_them(
    hierarchy: MemoryHierarchy, tmp_path: Path
) -> None:
    if not is_initial():
        pytest.skip("needs the machine's own pid namespace to step out of")
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        node.add_pod("first")
        arguments = ("--pods", node.write_manifest(tmp_path / "pods.json"))
        with LiveAgent(tmp_path, *arguments, "--enforce", "--executor", "cgroup", before=APART) as agent:
            if hierarchy.version == 1:
                assert agent.process.wait(patience(30)) == 3
                assert "deploy/components/host-processes" in agent.log
            else:
                agent.started()
        with LiveAgent(tmp_path, *arguments, before=APART) as agent:
            agent.started()  # an agent that only watches needs nothing
