"""Node and pods measured on files and out of scans: growth, the scan that serves twice, and what is gone."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.errors import CgroupGone, ConfigError
from koordebpf.kernel.host.uncharged import UnchargedFiles
from koordebpf.state.measured import Measured, StallParts, UnchargedMemory
from koordebpf.state.stalls.windows import NODE
from koordebpf.units import NS_PER_S, PAGE_BYTES
from tests.support.played_signals import StalledNode, memcg

LIMIT = 1 << 20


class Rig(StalledNode):
    def __init__(self, root: Path) -> None:
        super().__init__(root, 2, "cgroup")
        (root / "memory.max").write_text(f"{LIMIT}\n")
        self.hold("", 900, 100, 200, 30, 40, 50, slab=60)

    def hold(self, path: str, usage: int, *lru: int, slab: int = 0) -> None:
        names = ["inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"]
        text = "".join(f"{name} {number}\n" for name, number in zip(names, lru, strict=True))
        (self.root / path / "memory.stat").write_text(f"{text}slab_reclaimable {slab}\n")
        (self.root / path / "memory.current").write_text(f"{usage}\n")

    def scanned(self, node: int, web: int) -> None:
        self.signals.scans = [
            memcg(self.ids[""], 0, node, 1),
            memcg(self.ids["kubepods"], self.ids[""], web),
            memcg(self.id("web"), self.ids["kubepods"], web, limit=80),
            memcg(self.id("web", "a"), self.id("web"), web, web, swap=5),
        ]

    def everything(self, **stalls: StallParts) -> Measured:
        return self.collector.everything(stalls, (), None)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def test_below_the_threshold_the_usage_with_page_cache_is_enough(rig: Rig):
    below = rig.collector.node(901)
    assert (below.used_bytes, below.total_bytes, below.memory) == (900, LIMIT, None)
    at = rig.collector.node(900)
    assert at.memory is not None
    assert at.used_bytes == 900 - 30 - 40 - 60  # without page cache and reclaimable slab
    always = rig.collector.node()
    assert always.used_bytes == at.used_bytes


def test_growth_of_both_readings_is_kept_apart(rig: Rig):
    rig.collector.node(901)
    rig.collector.node()
    rig.clock.ns += NS_PER_S
    rig.hold("", 1400, 100, 200, 30, 40, 50, slab=60)
    assert [rig.collector.node(limit).growth_bytes_per_s for limit in (2000, None)] == [500, 500]


def test_a_limit_that_is_gone_is_an_error_and_a_node_that_is_gone_another(rig: Rig):
    (rig.root / "memory.max").write_text("max\n")
    with pytest.raises(ConfigError, match="lost its memory limit"):
        rig.collector.node()
    (rig.root / "memory.max").write_text(f"{LIMIT}\n")
    rig.scanned(100, 20)
    rig.signals.scans = []
    with pytest.raises(CgroupGone):
        rig.collector.node()


def test_pods_and_strays_are_measured_with_their_stalls(rig: Rig):
    rig.watch.index.set_pods(rig.pods[:1])
    rig.hold(rig.path("web"), 300, 10, 20, 3, 4, 5)
    rig.hold(rig.path("batch"), 200, 30, 40, 6, 7, 60)
    stall = StallParts(window_ns=NS_PER_S, global_ns=1, limit_ns=2)
    measured = rig.everything(web=stall)
    ((pod,), (stray,)) = measured.pods, measured.strays
    assert (pod.uid, pod.cgroup_id, pod.stall) == ("web", rig.id("web"), stall)
    assert pod.memory is not None and pod.memory.usage_bytes == 300
    assert (stray.uid, stray.cgroup_id) == ("batch", rig.id("batch"))
    assert stray.memory is not None and stray.memory.usage_bytes == 200
    assert measured.node.stall is None


def test_a_pod_that_was_away_grows_from_nothing_known(rig: Rig):
    rig.hold(rig.path("web"), 300, 10, 20, 3, 4, 5)
    rig.everything()
    rig.clock.ns += NS_PER_S
    rig.hold(rig.path("web"), 900, 610, 20, 3, 4, 5)
    web = {pod.uid: pod for pod in rig.everything().pods}["web"]
    assert web.growth_bytes_per_s == 600
    rig.watch.index.set_pods(rig.pods[1:])
    rig.everything()
    rig.watch.index.set_pods(rig.pods)
    rig.clock.ns += NS_PER_S
    web = {pod.uid: pod for pod in rig.everything().pods}["web"]
    assert web.growth_bytes_per_s is None


def test_one_whose_files_are_gone_has_no_memory(rig: Rig):
    shutil.rmtree(rig.root / rig.path("web"))
    measured = {pod.uid: pod.memory for pod in rig.everything().pods}
    assert measured["web"] is None
    assert measured["batch"] is not None


def test_the_scan_of_the_node_serves_for_the_pods_once(rig: Rig):
    rig.scanned(100, 20)
    node = rig.collector.node()
    began_ns = rig.clock.ns
    rig.clock.ns += NS_PER_S
    rig.scanned(200, 40)
    assert rig.signals.scans is not None
    measured = rig.collector.everything({}, (), None, node)
    assert measured.since_ns == began_ns
    assert measured.now_ns == rig.clock.ns
    assert measured.node.used_bytes == node.used_bytes
    # It was used up: the same value again is another scan's.
    again = rig.collector.everything({}, (), None, node)
    assert again.since_ns == rig.clock.ns
    assert again.node.memory is not None
    assert again.node.memory.usage_bytes == 200 * PAGE_BYTES


def test_what_the_last_scan_says_beside_pods(rig: Rig):
    assert (rig.collector.sums, rig.collector.swap_bytes(rig.id("web")), rig.collector.limited([])) == (
        (0, None),
        0,
        [],
    )
    rig.scanned(100, 20)
    rig.everything()
    taken, sums = rig.collector.sums
    assert (taken, sums is not None) == (1, True)
    assert rig.collector.swap_bytes(rig.id("web", "a")) == 5 * PAGE_BYTES
    assert rig.collector.swap_bytes(None) == 0
    (limited,) = rig.collector.limited([rig.id("web")])
    assert (limited.uid, limited.limit_bytes) == ("web", 80 * PAGE_BYTES)


def test_tasks_and_processes_are_those_of_the_files(rig: Rig):
    one, two = rig.id("web", "a"), rig.id("batch", "c")
    (rig.root / rig.path("web", "a") / "cgroup.procs").write_text("7\n")
    (rig.root / rig.path("web", "a") / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (rig.root / rig.path("batch", "c") / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert rig.collector.populated([one, two, 99]) == {one}
    (rig.root / rig.path("web", "a") / "cgroup.threads").write_text("7\n8\n")
    (rig.root / rig.path("web", "a") / "pids.current").write_text("2\n")
    assert set(rig.collector.task_counts([one, 99])) <= {one}


def test_a_machine_is_measured_by_meminfo(tmp_path: Path):
    rig = StalledNode(tmp_path, 2)
    (tmp_path / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\nSwapTotal: 90 kB\nSwapFree: 60 kB\nHugetlb: 20 kB\n"
        "SUnreclaim: 5 kB\nKernelStack: 6 kB\nPageTables: 7 kB\nPercpu: 8 kB\nSReclaimable: 900 kB\n"
    )
    (tmp_path / "sys/block/zram0").mkdir(parents=True)
    (tmp_path / "sys/block/zram0/mm_stat").write_text("3000 0 1000\n")
    collector = MemoryCollector(
        rig.watch.scope, rig.signals, rig.watch.index, rig.clock, tmp_path / "meminfo",
        UnchargedFiles(tmp_path, tmp_path / "sys"),
    )  # fmt: skip
    stall = StallParts(window_ns=NS_PER_S, global_ns=1, limit_ns=2)
    measured = collector.everything({NODE: stall}, (), stall)
    assert (measured.node.scope, measured.node.stall, measured.node.memory) == ("machine", stall, None)
    assert (measured.node.total_bytes, measured.node.used_bytes) == (1000 << 10, 600 << 10)
    assert measured.node.uncharged == UnchargedMemory(1000, 3000, 30 << 10, 0, 20 << 10, 26 << 10, 0)
    sampled = collector.node()
    assert (sampled.total_bytes, sampled.uncharged) == (1000 << 10, None)
    collector.close()
    rig.close()
