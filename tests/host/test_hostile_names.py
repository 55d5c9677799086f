"""Names that a container gives its processes and cgroups: no terminal and no log of ours obeys them, no agent fails."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.provoke import set_limit
from tests.host.rigs.held_node import HeldNode
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

pytestmark = pytest.mark.usefixtures("require_root")

COMM = b"\x1b]0;pwn\x07\x1b[2J"  # sets a terminal's title and clears it; 15 bytes at most
_PR_SET_NAME = 15


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


def is_killed_at_its_limit(cgroup: Path) -> None:
    """Run a process of that name until the OOM killer ends it."""
    set_limit(cgroup, 8 * MIB)
    pid = os.fork()
    if pid == 0:
        try:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            ctypes.CDLL(None).prctl(_PR_SET_NAME, COMM, 0, 0, 0)
            Path("/proc/self/oom_score_adj").write_text("1000")
            held = [b"x" * MIB for _ in range(64)]
            assert held
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def obeyed(raw: bytes) -> list[str]:
    """Return the lines that have a character in them that a terminal obeys."""
    lines = raw.decode("utf-8", "surrogateescape").split("\n")
    return [line for line in lines if not all(char.isprintable() for char in line)]


def test_a_process_that_is_killed_at_its_limit_writes_to_no_terminal(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hostile")
    manifest = node.write_manifest(tmp_path / "pods.json")
    arguments = ["--pods", str(manifest), "--node-cgroup", str(node.path)]
    trace = [sys.executable, "-m", "koordebpf", "trace", "--kind", "oom_kill", "--count", "1", *arguments]
    with LiveAgent(tmp_path, *arguments) as agent:
        agent.started().becomes_ready()
        with subprocess.Popen(trace, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tracer:
            # It says nothing when it is attached, and ends by itself after the first that it sees.
            end_s = time.monotonic() + patience(30)
            while tracer.poll() is None and time.monotonic() < end_s:
                is_killed_at_its_limit(container)
            out, errors = tracer.communicate(timeout=patience(60))
        line = agent.said("the kernel's OOM killer took")
        assert agent.stop() == 0
    assert r"\x1b]0;pwn\x07\x1b[2J" in line, agent.log
    assert rb"\x1b]0;pwn\x07" in out
    assert obeyed(agent.log.encode()) == obeyed(out) == obeyed(errors) == []


@pytest.mark.slow
def test_cgroups_that_are_no_text_keep_no_agent_from_its_work(held: HeldNode, tmp_path: Path) -> None:
    # GIVEN a container that makes cgroups of its own, in every hierarchy
    names = [b"\xff\xfe", b"\x1b[2J", "\u202e".encode()]
    made: list[Path] = []
    for directory in held.hierarchies.everywhere(held.container):
        made += [directory / os.fsdecode(name) for name in names]
    with contextlib.ExitStack() as stack:
        for each in made:
            each.mkdir()
            stack.callback(each.rmdir)
        # WHEN an agent that acts holds the pod's CPUs
        with LiveAgent(tmp_path, *held.arguments(tmp_path, "cpuset"), "--enforce") as agent:
            agent.started().becomes_ready()
            until(lambda: agent.lines(), lambda: f"a write: {agent.log}")
            time.sleep(3)
            # THEN it continues, says so in JSON that can be read, and prints nothing that is obeyed
            assert agent.metric("koordebpf_failed_ticks_total") == 0, agent.log
            for arguments in (
                ["explain", "--writes", "--run-dir", str(agent.run_dir)],
                ["top", "--once", "--level", "cgroup"],
            ):
                command = [sys.executable, "-m", "koordebpf", *arguments]
                for more in ([], ["--json"]):
                    done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, check=True)
                    assert obeyed(done.stdout) == obeyed(done.stderr) == []
            assert agent.stop() == 0
        assert obeyed(agent.log.encode()) == []
        assert agent.lines()
