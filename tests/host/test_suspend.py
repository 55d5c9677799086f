"""A machine that slept: CLOCK_BOOTTIME runs ahead of CLOCK_MONOTONIC, here by a time namespace the agent moves into."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroupfs import MemoryHierarchy
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT
from tests.loads import Hog
from tests.nodes import MIB, NodeCgroup
from tests.patience import patience

SLEPT_S = 3600

# An agent that sleeps for an hour when it gets SIGUSR1. Nothing listens: only a process of one thread may move.
AGENT = """
import ctypes, os, signal, sys
from pathlib import Path
from koordebpf.agent.config import AgentConfig
from koordebpf.agent.run import run_agent
from koordebpf.report.logs import set_up_logging

CLONE_NEWTIME = 0x80
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWTIME):
    sys.exit(77)
Path("/proc/self/timens_offsets").write_text(f"boottime {sys.argv[3]} 0")

def sleep(number, frame):
    fd = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
    if libc.setns(fd, CLONE_NEWTIME):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(fd)

signal.signal(signal.SIGUSR1, sleep)
set_up_logging(json=False)
run_agent(AgentConfig(files=(Path(sys.argv[1]),), node_cgroup=Path(sys.argv[2]), listen="", lock_memory=False))
"""


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


def test_after_a_suspend_nothing_is_evicted_until_pods_are_known_again(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    manifest = node.write_manifest(tmp_path / "pods.json")
    log = tmp_path / "log"
    hog = Hog(container, 200, rate_mib_s=400, hold_s=600)
    command = [sys.executable, "-c", AGENT, str(manifest), str(node.path), str(SLEPT_S)]
    with log.open("wb") as out:
        agent = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)

    def has_said(text: str) -> bool:
        if agent.poll() == 77:
            pytest.skip(f"{OTHER_MACHINE}no time namespaces: Linux 5.6 with CONFIG_TIME_NS")
        assert agent.poll() is None, log.read_text()
        return text in log.read_text()

    try:
        until(lambda: has_said("evicting default/hog"), "the first plan")
        assert "suspended" not in log.read_text()
        agent.send_signal(signal.SIGUSR1)
        sentence = f"the machine was suspended for {SLEPT_S} s: cgroups and pods are read anew"
        until(lambda: has_said(sentence), "the guard")
        assert "Traceback" not in log.read_text()
        agent.terminate()
        assert agent.wait(patience(30)) == 0
    finally:
        agent.kill()
        agent.wait()
        hog.stop()
