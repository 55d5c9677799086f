"""Nodes of other kinds: one CPU, NUMA nodes, the cgroup driver cgroupfs, swap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries, say_line
from tests.node.agent import GuestAgent
from tests.node.guest import Machine
from tests.node.image import Image
from tests.node.node import GuestNode
from tests.node.stories import expect_eviction

PROVISION = Path(__file__).parents[2] / "vagrant/provision"
SWAP_MIB = 256
# The machine, and how many CPUs, NUMA nodes and directories called kubepods or kubepods.slice are seen in it.
KINDS = {
    "one CPU": (Machine(cpus=1), "1 1 kubepods.slice"),
    "NUMA": (Machine(cpus=2, boot_options=("numa=fake=2",)), "2 2 kubepods.slice"),
    "cgroupfs": (Machine(cgroup_driver="cgroupfs"), "4 1 kubepods"),
}
SEEN = "echo $(nproc) $(ls -d /sys/devices/system/node/node[0-9]* | wc -l) $(cd /sys/fs/cgroup && ls -d kubepods*)"


@pytest.fixture(params=KINDS)
def kind(
    request: pytest.FixtureRequest, node_image: Image, binaries: Binaries, own_network: None
) -> Iterator[tuple[GuestNode, str]]:
    """A node of another kind, booted for one test, and what is seen in it."""
    machine, seen = KINDS[request.param]
    with GuestNode.booted(node_image, binaries.kubernetes, machine, say_line) as node:
        yield node, seen


def test_on_nodes_of_other_kinds_only_the_hog_is_evicted(kind: tuple[GuestNode, str]) -> None:
    node, seen = kind
    assert node.guest.check(SEEN).strip() == seen
    agent = node.agent("--enforce", "--executor", "cgroup")
    expect_eviction(node, agent)
    agent.stop()


@pytest.mark.parametrize("script", ["swap.sh", "zram.sh"])
def test_with_swap_only_the_hog_is_evicted(node: GuestNode, agent: Callable[..., GuestAgent], script: str) -> None:
    # GIVEN the swap that vagrant's machines have
    for name in ("files.sh", script):
        node.guest.write(f"/root/provision/{name}", (PROVISION / name).read_bytes(), "700")
    first, again = (node.guest.check(f"/root/provision/{script} {SWAP_MIB}") for _ in range(2))
    assert "swap is on" in first
    assert again == ""
    assert len(node.guest.check("cat /proc/swaps").splitlines()) == 2
    expect_eviction(node, agent("enforce"))
