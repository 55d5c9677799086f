"""`top`, `trace` and `ask` beside an agent: pods have names without a file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.host.live_agent import LiveAgent
from tests.support.nodes import MIB, NodeCgroup

pytestmark = pytest.mark.usefixtures("require_root")


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as made:
        made.add_pod("web")
        yield made


def koordebpf(*arguments: object) -> str:
    command = [sys.executable, "-m", "koordebpf", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_in(page: dict[str, Any]) -> set[str]:
    return {row["name"] for row in page["rows"]}


@pytest.mark.slow
def test_names_come_from_the_agent_that_runs_here(node: NodeCgroup, tmp_path: Path) -> None:
    manifest = node.write_manifest(tmp_path / "pods.json", 80, 75)
    top = ("top", "--once", "--json", "--interval", "0.2", "--node-cgroup", node.path, "--run-dir", tmp_path / "run")
    before = json.loads(koordebpf(*top))
    assert {name[0] for name in names_in(before)} <= {"?"}
    assert before["threshold_bytes"] is None
    with LiveAgent(tmp_path, "--pods", manifest, "--node-cgroup", node.path) as agent:
        agent.becomes_ready()
        beside = json.loads(koordebpf(*top))
        assert names_in(beside) == {"default/web"}
        assert beside["threshold_bytes"] == (80 * 512 * MIB + 99) // 100
        assert names_in(json.loads(koordebpf("ask", "top", "--run-dir", agent.run_dir))) == {"default/web"}
        traced = ("trace", "--seconds", "0.2", "--node-cgroup", node.path, "--run-dir", agent.run_dir)
        koordebpf(*traced, "--pod", "default/web")
        agent.process.terminate()
        agent.process.wait(30)


def test_without_an_agent_it_says_how(node: NodeCgroup, tmp_path: Path) -> None:
    page = koordebpf("top", "--once", "--interval", "0.1", "--node-cgroup", node.path, "--run-dir", tmp_path)
    assert f"noagentanswersbelow{tmp_path}" in "".join(page.split())
    assert "--level cgroup needs no names" in " ".join(page.split())
