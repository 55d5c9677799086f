"""Scan rows summed by pod and for the node."""

from koordebpf.state.sums import ScanSums, cgroup_used_bytes
from koordebpf.state.view import MemoryParts

ROWS = [
    (1, 0, 100, 1000, 1, 2, 3, 4, 5),  # the node
    (2, 1, 60, 1 << 51, 10, 0, 0, 0, 0),  # pod a
    (3, 2, 50, 1 << 51, 20, 1, 7, 0, 2),  # its container
    (4, 1, 9, 1 << 51, 0, 0, 0, 8, 0),  # nobody's
]
POD_OF = {2: "a", 3: "a"}.get


def test_a_pod_is_its_subtree() -> None:
    sums = ScanSums(ROWS, POD_OF, 10)
    assert sums.pod("a", 2) == MemoryParts(600, 300, 10, 70, 0, 20)
    assert sums.pod("b", 4) is None
    assert sums.pod("a", 99) is None


def test_the_node_is_everything_under_its_root() -> None:
    node = ScanSums(ROWS, POD_OF, 10).all(1)
    assert node == MemoryParts(1000, 310, 30, 100, 120, 70)
    assert cgroup_used_bytes(node) == 1000 - 220


def test_a_node_that_is_gone_is_none() -> None:
    assert ScanSums([], POD_OF, 10).all(1) is None


def test_reclaimable_slab_counts_as_free_where_it_is_known() -> None:
    assert cgroup_used_bytes(MemoryParts(100, 0, 0, 30, 0, 0, slab_reclaimable_bytes=20)) == 50
    assert cgroup_used_bytes(MemoryParts(10, 0, 0, 30, 0, 0)) == 0
