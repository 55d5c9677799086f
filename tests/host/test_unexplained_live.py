"""A machine that is short because of memory that is on no pod's lists: no neighbour is evicted for it.

A driver's buffers, which no cgroup is charged, are those of packet sockets; a hog's pages are in zram. The agent
watches the machine and evicts nothing: it is a dry run.
"""

from __future__ import annotations

import json
import os
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
SWAPPED_SHARE = 0.1
RANDOM = "import os, sys, time; held = [os.urandom(1 << 20) for _ in range(int(sys.argv[1]))]; print(); time.sleep(600)"
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


@pytest.fixture
def zram() -> Iterator[None]:
    """Give the machine swap in zram alone, which pages that cannot be compressed take whole."""
    if "KOORDEBPF_OWN_MACHINE" not in os.environ:
        pytest.skip(f"{OTHER_MACHINE}its swap is not the tests' to change")
    # The tests run in a chroot that has the host's modules; a kernel that has it built in knows no such module.
    subprocess.run(["chroot", "/proc/1/root", "modprobe", "zram"], check=False, capture_output=True)
    subprocess.run(["swapoff", "-a"], check=True)
    control = Path("/sys/class/zram-control")
    number = (control / "hot_add").read_text().strip()
    device = f"/dev/zram{number}"
    Path(f"/sys/block/zram{number}/disksize").write_text(str(memory()[0] // 2))
    subprocess.run(["mkswap", "-q", device], check=True)
    subprocess.run(["swapon", device], check=True)
    yield
    subprocess.run(["swapoff", device], check=True)
    (control / "hot_remove").write_text(number)


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


def swap_out(container: Path, version: int) -> None:
    """Reclaim a container's memory until most of it is in swap."""
    name, text = ("memory.force_empty", "0") if version == 1 else ("memory.reclaim", "4G")
    current = "memory.usage_in_bytes" if version == 1 else "memory.current"
    before, deadline = int((container / current).read_text()), time.monotonic() + patience(60)
    while int((container / current).read_text()) > before // 10 and time.monotonic() < deadline:
        try:
            (container / name).write_text(text)
        except OSError:  # as long as something is left
            time.sleep(0.1)


def test_the_hog_whose_pages_are_in_zram_is_evicted_and_not_its_neighbours(
    zram: None, node: NodeCgroup, tmp_path: Path
) -> None:
    total, _ = memory()
    with ExitStack() as stack:
        for number in range(3):
            (container,) = node.add_pod(f"quiet-{number}")
            stack.callback(Holder(container, "anon", int(total * 0.01) // MIB, "--hold", "600").stop)
        (hog,) = node.add_pod("hog")
        command = [sys.executable, "-c", RANDOM, str(int(total * SWAPPED_SHARE) // MIB)]
        joins = ["sh", "-c", f'echo $$ > {hog}/cgroup.procs; exec "$@"', "sh", *command]
        with subprocess.Popen(joins, stdout=subprocess.PIPE) as process:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            swap_out(hog, node.version)
            (tmp_path / "run").mkdir()
            plan = first_plan(node, tmp_path)
            process.kill()
    assert [(each["name"], each["result"]) for each in plan["outcomes"]] == [("hog", "dry_run")]
