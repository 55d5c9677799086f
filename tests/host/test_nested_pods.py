"""A pod that may write its cgroups, and makes more of them than a path or a stack is long for: it alone suffers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MAX_LEVELS, MemoryHierarchy, walk
from koordebpf.kernel.cgroup.tree import CgroupTree
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nested import join, nest, remove_nest
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "files"])
def test_the_agent_starts_beside_a_chain_of_cgroups_and_kills_the_pod(
    node: NodeCgroup, tmp_path: Path, backend: str
) -> None:
    (container,) = node.add_pod("nested")
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.alarm(120); signal.pause()"])
    hog = None
    try:
        last_fd = nest(container, 2_300)
        join(last_fd, sleeper.pid)
        os.close(last_fd)
        arguments = ("--pods", node.write_manifest(tmp_path / "pods.json", 55, 50), "--node-cgroup", node.path)
        with LiveAgent(tmp_path, *arguments, "--enforce", "--executor", "cgroup", "--backend", backend) as agent:
            agent.becomes_ready()
            inner = container.parent / "of-its-own"  # born while the agent watches, deep at once
            inner.mkdir()
            os.close(nest(inner, 100))
            hog = Hog(inner, 160, hold_s=120)
            assert hog.process.wait(patience(60)) == -signal.SIGKILL, agent.log
            assert sleeper.wait(patience(30)) == -signal.SIGKILL, agent.log
            assert "Traceback" not in agent.log and "the tick ended" not in agent.log
            assert agent.stop() == 0
    finally:
        for process in (sleeper, hog and hog.process):
            if process:
                process.kill()
                process.wait()
        if hog:
            hog.stop()
        for directory in node.pod_paths["nested"].iterdir():
            if directory.is_dir():
                remove_nest(directory)


@pytest.mark.slow
def test_no_walk_descends_below_what_decisions_read(memory_cgroup: Path) -> None:
    try:
        os.close(nest(memory_cgroup, 2_300))
        paths = [path for _, _, path in walk(memory_cgroup)]
        assert max(path.count("/") + 1 for path in paths) == MAX_LEVELS
        tree = CgroupTree(memory_cgroup)
        assert tree.watches == MAX_LEVELS
        tree.read()
        tree.close()
    finally:
        remove_nest(memory_cgroup)


def test_a_tree_follows_the_death_of_a_chain(memory_cgroup: Path) -> None:
    os.close(nest(memory_cgroup, 1_100))
    tree = CgroupTree(memory_cgroup)
    try:
        remove_nest(memory_cgroup)
        died = [cgroup for what, cgroup, _ in tree.read() if what == "died"]
        assert len(died) == MAX_LEVELS and tree.watches == 1 and not tree.root.children
    finally:
        tree.close()
