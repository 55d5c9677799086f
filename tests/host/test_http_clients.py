"""A live agent whose HTTP clients mean no good: the kubelet's probes are answered, and it keeps ticking."""

from __future__ import annotations

import http.client
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.support.attackers import drips, floods, holds
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

_TICKS = "koordebpf_ticks_total"


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        node.add_pod("first")
        yield node


@pytest.fixture
def agent(node: NodeCgroup, tmp_path: Path) -> Iterator[LiveAgent]:
    manifest = node.write_manifest(tmp_path / "pods.json")
    with LiveAgent(tmp_path, "--pods", manifest, "--node-cgroup", node.path) as agent:
        yield agent.started().becomes_ready()


def probes(agent: LiveAgent, seconds: float) -> None:
    took: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        begin_s = time.monotonic()
        with closing(http.client.HTTPConnection("127.0.0.1", agent.probe_port, timeout=patience(5))) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
        took.append(time.monotonic() - begin_s)
        time.sleep(0.1)
    print(f"{len(took)} probes, the slowest took {max(took) * 1000:.1f} ms")
    assert max(took) < patience(1)


def descriptors(agent: LiveAgent) -> int:
    return sum(1 for _ in Path(f"/proc/{agent.process.pid}/fd").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("clients", [8, 200])
def test_clients_that_send_a_byte_now_and_then_starve_no_probe(agent: LiveAgent, clients: int) -> None:
    before = agent.metric(_TICKS)
    with drips(agent.port, clients, 1), drips(agent.probe_port, clients, 1):
        probes(agent, 8)
        assert agent.metric(_TICKS) > before
    assert agent.stop() == 0


@pytest.mark.slow
def test_idle_and_short_connections_starve_no_probe(agent: LiveAgent) -> None:
    before, open_before = agent.metric(_TICKS), descriptors(agent)
    with holds(agent.port, 300), holds(agent.probe_port, 300, "127.0.0.3"):
        probes(agent, 2)
        assert descriptors(agent) <= open_before + 2 * 64
    with floods(agent.port, 2000) as flood:
        until(lambda: probes(agent, 0.5) or flood.poll() is not None, "the flood's end", 150)
    until(lambda: agent.metric(_TICKS) > before, "another tick")
    until(lambda: descriptors(agent) <= open_before + 4, lambda: f"closed descriptors: {descriptors(agent)}")
    assert agent.stop() == 0


def test_decisions_are_shown_to_root_and_never_over_tcp(agent: LiveAgent) -> None:
    for path in ("/decisions", "/writes"):
        assert agent.get(path)[0] == 404
    (found,) = agent.run_dir.glob("*/watching-*.sock")
    assert (stat.S_IMODE(found.stat().st_mode), found.stat().st_uid) == (0o600, os.geteuid())
    command = [sys.executable, "-m", "koordebpf", "explain", "--run-dir", str(agent.run_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"in {found}" in done.stdout
    assert agent.stop() == 0
    assert not list(agent.run_dir.glob("*"))


@pytest.mark.slow
def test_one_that_was_killed_leaves_a_socket_that_the_next_replaces(
    agent: LiveAgent, node: NodeCgroup, tmp_path: Path
) -> None:
    agent.process.kill()
    agent.process.wait()
    (left,) = agent.run_dir.glob("*/watching-*.sock")
    arguments = ("--pods", tmp_path / "pods.json", "--node-cgroup", node.path)
    with LiveAgent(tmp_path, *arguments, "--enforce", "--executor", "cgroup") as acting:
        acting.started().becomes_ready()
        assert not left.exists()
        with LiveAgent(tmp_path, *arguments) as watching:  # two on one node: who acts is asked
            watching.started().becomes_ready()
            command = [sys.executable, "-m", "koordebpf", "explain", "--json", "--run-dir", str(acting.run_dir)]
            assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""
            names = sorted(path.name.partition("-")[0] for path in acting.run_dir.glob("*/*.sock"))
            assert names == ["acting.sock", "watching"]
            assert watching.stop() == 0
        assert acting.stop() == 0
        assert not list(acting.run_dir.glob("*/*.sock"))
