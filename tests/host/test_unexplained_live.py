"""A machine that is short because of a driver's buffers, which no cgroup is charged: no neighbour is evicted for them.

The buffers are those of packet sockets. The agent watches the machine and evicts nothing: it is a dry run.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.proc.meminfo import Meminfo
from tests.conftest import OTHER_MACHINE
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
BLOCK_BYTES, FRAME_BYTES = 4 * MIB, 2048
SHARE = 0.2  # of the machine, in rings: twice of what is usual
HOG_SHARE = 0.04
SOL_PACKET, PACKET_RX_RING = 263, 5  # include/linux/socket.h, include/uapi/linux/if_packet.h


def memory() -> tuple[int, int]:
    """Return how much the machine has, and how much of it is in use."""
    with Meminfo() as file:
        values = file.read()
    return values.mem_total_bytes, values.used_bytes


@pytest.fixture
def rings() -> Iterator[None]:
    total, used = memory()
    if used > total * 0.5:
        pytest.skip(f"{OTHER_MACHINE}more than half of its memory is in use")
    blocks = int(total * SHARE) // BLOCK_BYTES
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as ring:
        frames = BLOCK_BYTES // FRAME_BYTES * blocks
        ring.setsockopt(SOL_PACKET, PACKET_RX_RING, struct.pack("IIII", BLOCK_BYTES, blocks, FRAME_BYTES, frames))
        yield


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, memory()[0] // 2) as made:
        yield made


def first_plan(node: NodeCgroup, folder: Path) -> dict[str, Any]:
    """Return the first plan with victims of an agent whose threshold is a percent below what is in use now."""
    total, used = memory()
    percent = used * 100 // total - 1
    manifest, audit = node.write_manifest(folder / "pods.json", percent, percent - 1), folder / "audit.jsonl"
    command = [sys.executable, "-m", "koordebpf", "run", "--pods", manifest, "--cgroup-root", f"/{node.path.name}"]
    command += ["--listen", "", "--audit", audit, "--run-dir", folder / "run", "--recorder-folder", "none"]
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True) as agent:
        try:
            deadline = time.monotonic() + patience(30)
            while time.monotonic() < deadline and agent.poll() is None:
                for line in audit.read_bytes().split(b"\n")[:-1] if audit.exists() else ():
                    if (plan := json.loads(line)).get("outcomes"):
                        return dict(plan)
                time.sleep(0.05)
        finally:
            agent.terminate()
            _, said = agent.communicate()
    raise AssertionError(f"no plan within 30 s: {said}")


@pytest.mark.usefixtures("rings")
def test_quiet_pods_are_held_and_a_hog_is_not(node: NodeCgroup, tmp_path: Path) -> None:
    total, _ = memory()
    with ExitStack() as stack:
        for number in range(3):
            (container,) = node.add_pod(f"quiet-{number}")
            stack.callback(Holder(container, "anon", 20, "--hold", "600").stop)
        (tmp_path / "quiet").mkdir()
        plan = first_plan(node, tmp_path / "quiet")
        assert {each["result"] for each in plan["outcomes"]} == {"held"}
        assert {"in use are in no pod and no known cgroup" in each["detail"] for each in plan["outcomes"]} == {True}
        (container,) = node.add_pod("hog")
        stack.callback(Holder(container, "anon", int(total * HOG_SHARE) // MIB, "--hold", "600").stop)
        (tmp_path / "hog").mkdir()
        plan = first_plan(node, tmp_path / "hog")
        assert [(each["name"], each["result"]) for each in plan["outcomes"]] == [("hog", "dry_run")]
