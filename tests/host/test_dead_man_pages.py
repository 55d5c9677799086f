"""The dead man's switch makes pages of bytes by the page shift of its order, and by no size of its own."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.kernel.bpf.deadman import DeadMan, support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy
from koordebpf.units import PAGE_SHIFT
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.thrashing_node import HELD_MIB, NODE_MIB, ThrashingNode
from tests.host.test_dead_man import order
from tests.support.bpf_ids import OtherMap
from tests.support.nodes import MIB
from tests.support.patience import patience

pytestmark = pytest.mark.slow  # the kernel adds up a cgroup each two seconds, and two sums have to agree
_SHIFT, _SHIFT_AT = struct.Struct("<I"), 76  # in koord_deadman_order, bpf/include/koord_deadman.h
_LEFT_MIB = 10  # to a limit above 64 MiB: 16 MiB and less are no room, but more than 4 MiB
_SLAB_MIB = 48

# Looks for names that do not exist: each one leaves an entry in the kernel's cache of names, which is reclaimable slab.
_NAMES = """
import os, sys, time
procs, used, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(procs, "w") as file:
    file.write("0")
number = 0
while True:
    with open(used) as file:
        text = file.read()
    slab = int(text) if text.strip().isdigit() else int(dict(line.split() for line in text.splitlines())["slab"])
    if slab > limit:
        time.sleep(0.1)
        continue
    for number in range(number, number + 2000):
        try:
            os.stat(f"/var/tmp/{'x' * 100}{number}")
        except OSError:
            pass
"""


def slab_bytes(used: Path) -> int:
    text = used.read_text()
    return int(text) if used.name != "memory.stat" else int(text.partition("\nslab ")[2].split()[0])


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[ThrashingNode]:
    found = support_of_dead_man()
    if not found.works:
        pytest.skip(f"{OTHER_MACHINE}{found.reason}")
    with ThrashingNode(hierarchy) as node:
        yield node


def test_the_order_of_an_agent_has_the_shift_of_this_kernels_pages(node: ThrashingNode, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\ndeadMan: {action: count}\n")
    manifest = node.write_manifest(tmp_path)
    with LiveAgent(tmp_path, "--config", config, "--pods", manifest, "--node-cgroup", node.node.path) as agent:
        until(lambda: agent.metric("koordebpf_dead_man_armed") == 1, lambda: f"armed, but: {agent.log}")
        with closing(OtherMap(agent.process.pid, "deadman_order")) as ordered:
            (shift,) = _SHIFT.unpack_from(ordered.first(), _SHIFT_AT)
        assert 1 << shift == os.sysconf("SC_PAGE_SIZE")
        assert agent.stop() == 0


def test_what_a_waiting_pod_may_have_left_is_made_pages_by_the_orders_shift(
    node: ThrashingNode, hierarchy: MemoryHierarchy
) -> None:
    with DeadMan() as programs:
        node.walks(NODE_MIB)
        node.grows()
        with (
            CgroupMemory(node.be.parent, hierarchy.version) as be,
            CgroupMemory(node.ls.parent, hierarchy.version) as ls,
        ):
            until(lambda: be.usage_bytes() > HELD_MIB * MIB, "a pod that stalls no more", 20)
            until(lambda: node.times_full() > 0, "a node that thrashes", 20)
            time.sleep(patience(1))
            used = ls.usage_bytes()
        node.node.set_limit(node.ls.parent, used + _LEFT_MIB * MIB)
        programs.order(time.monotonic_ns(), order(node, "count"))
        time.sleep(patience(4))
        report = programs.report()
        assert (report.late_stalls, report.fired) == (0, 0)
        # Of pages that are four times as large, 16 MiB are a quarter of the number: here that is 4 MiB.
        programs.order(time.monotonic_ns(), replace(order(node, "count"), page_shift=PAGE_SHIFT + 2))
        until(lambda: programs.report().fired == 1, lambda: f"a shot, but: {programs.report()}", 20)
    assert node.times_full(node.ls.parent) == 0


def test_reclaimable_slab_is_made_pages_by_the_orders_shift(node: ThrashingNode) -> None:
    folder = node.be.parent
    used = next(path for path in (folder / "memory.kmem.usage_in_bytes", folder / "memory.stat") if path.exists())
    command = [sys.executable, "-c", _NAMES, str(node.be / "cgroup.procs"), str(used), str(_SLAB_MIB * MIB)]
    names = subprocess.Popen(command)
    in_use: list[int] = []
    try:
        with DeadMan() as programs:
            node.walks(NODE_MIB)
            node.walks(NODE_MIB)
            until(lambda: node.times_full() > 0, "a node that thrashes", 20)
            for shift in (PAGE_SHIFT, PAGE_SHIFT + 2):
                fired = len(in_use)
                until(lambda: slab_bytes(used) > _SLAB_MIB * 3 // 4 * MIB, "slab", 60)
                given = replace(order(node, "count"), above_pages=16, page_shift=shift)
                programs.order(time.monotonic_ns(), given)
                until(lambda: programs.report().fired > fired, lambda: f"a shot, but: {programs.report()}", 20)  # noqa: B023
                in_use.append(programs.report().pages * mmap.PAGESIZE // MIB)
    finally:
        names.kill()
        names.wait()
    right, of_large_pages = in_use
    # Three quarters of it are in use then, less what is reclaimed before it fires.
    assert right + _SLAB_MIB // 4 < of_large_pages
