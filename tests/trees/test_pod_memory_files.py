"""Kept memory files of pods, on trees of both cgroup versions: missing, gone, odd, and of a pod that is made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.memory.files import LruStat, PodFiles, anon_bytes, file_bytes, file_pages
from koordebpf.collect.memory.pressure import PressureFiles
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.cache.objects import ClusterState, ObjectMeta, Pod, PodStatus

STAT = {
    "inactive_anon": 1, "active_anon": 20, "inactive_file": 300, "active_file": 4000, "unevictable": 5,
    "workingset_refault_anon": 7, "workingset_refault_file": 30, "workingset_activate": 9, "pgfault": 11,
}  # fmt: skip
PSI = "some avg10={0}.50 avg60=2.00 avg300=1.00 total=1200\nfull avg10=1.25 avg60=0.00 avg300=0.00 total=3\n"


def rows(prefix: str = "", factor: int = 1) -> str:
    return "".join(f"{prefix}{name} {number * factor}\n" for name, number in STAT.items())


@pytest.mark.parametrize(
    ("version", "text", "usage"),
    [(1, rows() + rows("total_", 10), "memory.usage_in_bytes"), (2, rows("", 10), "memory.current")],
)
def test_lists_and_refaults_are_those_with_children(tree, version: Literal[1, 2], text: str, usage: str):
    with LruStat(tree({"memory.stat": text, usage: "123\n"}), version) as stat:
        found = stat.rows()
        assert (anon_bytes(found), file_bytes(found), stat.usage_bytes()) == (210, 43000, 123)
        assert file_pages(found, b"workingset_refault") == 300
        assert file_pages(found, b"workingset_activate") == 90  # before Linux 5.9
        assert file_pages(found, b"workingset_restore") is None
        assert b"pgfault" not in found
    stat.close()  # twice is harmless


def test_an_odd_memory_stat_has_the_rows_that_can_be_read(tree):
    text = "inactive_anon x\nactive_anon 5 6\n\ninactive_file 7\nactive_file"
    with LruStat(tree({"memory.stat": text, "memory.current": "\n"}), 2) as stat:
        assert stat.rows() == {b"inactive_file": 7}
        assert (anon_bytes(stat.rows()), file_bytes(stat.rows())) == (0, 7)
        with pytest.raises(KernelFileError, match="whole number"):
            stat.usage_bytes()
    with pytest.raises(FileNotFoundError):
        LruStat(tree({}) / "gone", 2)


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.index, self.known = CgroupIndex(), ClusterView()
        self.pods = [(uid, phase) for uid, phase in (("a", "Running"), ("b", "Running"), ("c", "Succeeded"))]
        self.index.replace_all([
            (1, 0, ""), (2, 1, "kubepods"), *((3 + at, 2, f"kubepods/pod{uid}") for at, uid in enumerate("abc")),
        ])  # fmt: skip
        pods = tuple(
            Pod(ObjectMeta(uid, "team", uid), status=PodStatus(phase, qosClass="BestEffort"))
            for uid, phase in (*self.pods, ("no-cgroup", "Running"))
        )
        self.index.set_pods(pods)
        self.known.learn(ClusterState(1, 1, pods=pods))
        for uid in "abc":
            directory = root / f"kubepods/pod{uid}"
            directory.mkdir(parents=True)
            (directory / "memory.stat").write_text(rows())
            (directory / "memory.current").write_text("9\n")
            (directory / "memory.pressure").write_text(PSI.format(4))
        hierarchy = MemoryHierarchy(2, root, 0)
        self.files = PodFiles(self.index, self.known, hierarchy)
        self.pressure = PressureFiles(NodeScope("cgroup", hierarchy, root, 1), self.index)
        self.pressure.are_there = True  # whatever this machine has

    def write(self, uid: str, text: str, name: str = "memory.pressure") -> None:
        (self.root / f"kubepods/pod{uid}" / name).write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.files.close()
    made.pressure.close()


def test_running_pods_with_a_cgroup_are_found(node: Node):
    assert [(facts.uid, number, path) for facts, number, path in node.files.running()] == [
        ("a", 3, "kubepods/poda"), ("b", 4, "kubepods/podb"),
    ]  # fmt: skip


def test_what_is_kept_open_is_the_same_cgroup_until_it_is_left_out(node: Node):
    first = node.files.stat(3, "kubepods/poda")
    assert node.files.stat(3, "kubepods/poda") is first
    assert node.files.stalled_us(3, "kubepods/poda") == 1200
    node.files.keep_only({3})
    assert node.files.stat(3, "kubepods/poda") is first
    node.files.keep_only({4})
    with pytest.raises(OSError, match="Bad file"):
        first.rows()
    node.write("a", PSI.format(4).replace("total=1200", "total=5"))
    assert node.files.stalled_us(3, "kubepods/poda") == 5


@pytest.mark.parametrize("text", ["", "some avg10=x\n", None], ids=["empty", "odd", "missing"])
def test_pressure_that_cannot_be_read_is_not_known(node: Node, text: str | None):
    if text is None:
        (node.root / "kubepods/poda/memory.pressure").unlink()
    else:
        node.write("a", text)
    assert node.files.stalled_us(3, "kubepods/poda") is None
    assert node.files.stalled_us(4, "kubepods/podb") == 1200
    with pytest.raises(OSError, match="No such file"):
        node.files.stat(9, "kubepods/gone")


def test_the_shares_of_a_pod_are_those_of_its_file(node: Node):
    shares = node.pressure.of(3)
    assert shares is not None and shares.full is not None
    assert (shares.some.avg10, shares.some.avg60, shares.some.avg300, shares.some.total_us) == (4.5, 2.0, 1.0, 1200)
    assert shares.full.avg10 == 1.25
    assert not shares.derived
    node.write("a", PSI.format(8))
    again = node.pressure.of(3)
    assert again is not None and again.some.avg10 == 8.5
    assert node.pressure.of(99) is None


def test_a_pod_that_is_gone_has_none_and_one_that_is_left_out_is_opened_again(node: Node):
    path = node.root / "kubepods/poda/memory.pressure"
    path.unlink()
    assert node.pressure.of(3) is None
    node.write("a", PSI.format(1))
    assert node.pressure.of(3) is not None
    path.rename(node.root / "old")
    node.write("a", PSI.format(7))
    node.pressure.keep_only([3])
    kept = node.pressure.of(3)
    assert kept is not None and kept.some.avg10 == 1.5  # the fd that is open
    node.pressure.keep_only([4])
    again = node.pressure.of(3)
    assert again is not None and again.some.avg10 == 7.5


def test_a_node_that_is_a_cgroup_has_its_own_lines_and_v1_has_none(node: Node):
    assert node.pressure.node() == (None, None)
    (node.root / "memory.pressure").write_text(PSI.format(3))
    scope = NodeScope("cgroup", MemoryHierarchy(2, node.root, 0), node.root, 1)
    files = PressureFiles(scope, node.index)
    some, full = files.node()
    assert some is not None and full is not None
    assert (some.avg10, full.avg10) == (3.5, 1.25)
    files.close()
    v1 = PressureFiles(NodeScope("cgroup", MemoryHierarchy(1, node.root, 0), node.root, 1), node.index)
    assert (v1.node(), v1.are_there) == ((None, None), False)
