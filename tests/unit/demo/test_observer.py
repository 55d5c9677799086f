"""What is seen of a demo's node from outside: its usage, by a scan or by its files, and its pods' stalls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.demo.node import CgroupVersion, NodeCgroup
from koordebpf.demo.story import NodeObserver
from koordebpf.demo.verdict import Crossing, PodStalls
from koordebpf.errors import CgroupGone
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from koordebpf.units import MIB, PAGE_BYTES
from tests.support.played_signals import PlayedSignals, memcg, stall

PARTS = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")


class Rig:
    """A node with the pods hog and web on a tree of files."""

    def __init__(self, root: Path, version: CgroupVersion = 2) -> None:
        self.node = NodeCgroup(root, version, 1 << 30, "node")
        self.containers = {name: self.node.add_pod(name)[0] for name in ("hog", "web")}
        for number, path in enumerate((self.node.path, *self.node.pod_paths.values())):
            self.write(path, (100 + number) * MIB)
        self.signals, self.crossing = PlayedSignals(), Crossing(1 << 30, 1 << 29)
        self.observer = NodeObserver(self.node, self.signals, self.crossing)

    def write(self, path: Path, usage: int, *lists: int, slab: int = 0) -> None:
        v1, sizes = self.node.version == 1, (*lists, *[0] * (5 - len(lists)))
        rows = dict(zip(PARTS, sizes, strict=True), slab_reclaimable=slab)
        text = "".join(f"{'total_' if v1 else ''}{name} {size}\n" for name, size in rows.items())
        (path / "memory.stat").write_text(text)
        (path / ("memory.usage_in_bytes" if v1 else "memory.current")).write_text(f"{usage}\n")

    @property
    def root_id(self) -> int:
        return cgroup_id(self.node.path)

    def stalled(self, name: str) -> PodStalls:
        return self.observer.stalls()[name]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with contextlib.closing(made.observer):
        yield made


@pytest.mark.parametrize("version", [1, 2])
def test_usage_comes_of_the_files_where_nothing_can_be_scanned(version: CgroupVersion, tmp_path: Path) -> None:
    rig = Rig(tmp_path, version)
    rig.write(rig.node.path, 100, 1, 2, 30, 40, 5, slab=7)
    seen = rig.observer.sample()
    assert (seen.usage_bytes, seen.used_bytes) == (100, 23 if version == 2 else 30)
    assert (rig.crossing.peak_usage_bytes, rig.crossing.peak_used_bytes) == (100, seen.used_bytes)
    rig.observer.close()


@pytest.mark.parametrize("version", [1, 2])
def test_else_of_the_scan_with_what_it_does_not_have_of_the_files(version: CgroupVersion, tmp_path: Path) -> None:
    rig = Rig(tmp_path, version)
    rig.write(rig.node.path, 1, slab=3 * PAGE_BYTES)
    rig.signals.scans = [memcg(rig.root_id, 0, 100, 1, 2, 30, 40, 5)]
    seen = rig.observer.sample()
    assert seen.usage_bytes == 100 * PAGE_BYTES
    assert seen.used_bytes == (27 if version == 2 else 30) * PAGE_BYTES
    rig.signals.scans = [memcg(1, 0, 100)]
    with pytest.raises(CgroupGone):
        rig.observer.sample()
    rig.observer.close()


def test_each_pod_has_its_raw_usage(rig: Rig) -> None:
    assert rig.observer.pod_usage_bytes() == {"hog": 101 * MIB, "web": 102 * MIB}


def test_stalls_are_unseen_where_a_signal_of_them_does_not_work(rig: Rig) -> None:
    assert rig.observer.stalls_unseen() is None
    first = rig.signals.sources[0]
    rig.signals.sources.append(replace(first, signal="kswapd activity", works=False, reason="no tracepoint"))
    assert rig.observer.stalls_unseen() is None
    rig.signals.sources.append(replace(first, works=False, reason="no BTF"))
    assert rig.observer.stalls_unseen() == "no BTF"


def test_stalls_are_those_of_all_cgroups_of_a_pod_by_what_was_short(rig: Rig) -> None:
    assert rig.observer.stalls() == {"hog": PodStalls(), "web": PodStalls()}
    rig.signals.rows = {
        cgroup_id(rig.node.pod_paths["hog"]): stall(**{"global": 3, "limit": 5}),
        cgroup_id(rig.containers["hog"]): stall(**{"global": 7, "limit": 1, "compaction": 100}),
        rig.root_id: stall(**{"global": 1000}),
    }
    assert rig.stalled("hog") == PodStalls(2, 10, 2, 6)
    assert rig.stalled("web") == PodStalls()
