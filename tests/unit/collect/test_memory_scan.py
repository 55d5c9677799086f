"""One scan of all memory cgroups, and the files where there is none: sums, what is gone, and what was made again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.collect.memory.collector import MemcgScan
from koordebpf.collect.memory.files import memcg_samples
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory
from koordebpf.units import PAGE_BYTES
from tests.support.played_signals import StalledNode, memcg

ROWS = ["inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"]


class Rig(StalledNode):
    def __init__(self, root: Path) -> None:
        super().__init__(root, 2, "cgroup")
        self.node_files = CgroupMemory(root, 2)
        self.scan = MemcgScan(self.watch.scope, self.signals, self.watch.index, self.node_files)

    def scanned(self, *lru: int) -> None:
        """Let the scan have the node, and one container of `web` with these pages."""
        self.signals.scans = [
            memcg(self.ids[""], 0, 100, 1, 2, 3, 4, 5, limit=1000),
            memcg(self.ids["kubepods"], self.ids[""], 60),
            memcg(self.id("web"), self.ids["kubepods"], 50, limit=80, swap=3),
            memcg(self.id("web", "a"), self.id("web"), 40, *lru),
        ]

    def hold(self, path: str, usage: int, *lru: int) -> None:
        """Let files say it, in bytes."""
        text = "".join(f"{name} {number}\n" for name, number in zip(ROWS, lru, strict=True))
        (self.root / path / "memory.stat").write_text(text)
        (self.root / path / "memory.current").write_text(f"{usage}\n")

    def close(self) -> None:
        self.scan.close()
        self.node_files.close()
        super().close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def test_a_scan_sums_up_pods_and_the_node(rig: Rig):
    rig.scanned(10, 20, 30, 40, 50)
    assert rig.scan.can_scan
    assert rig.scan.last is None
    pod = rig.scan.full().pod("web", rig.id("web"))
    assert pod is not None
    assert pod.usage_bytes == 50 * PAGE_BYTES
    assert pod.inactive_anon_bytes == 10 * PAGE_BYTES
    node = rig.scan.node()
    assert node is not None
    assert node.usage_bytes == 100 * PAGE_BYTES
    assert (pod.swap_bytes, node.swap_bytes) == (3 * PAGE_BYTES, 0)
    lists = (node.inactive_anon_bytes, node.active_anon_bytes, node.inactive_file_bytes, node.active_file_bytes)
    assert [each // PAGE_BYTES for each in (*lists, node.unevictable_bytes)] == [11, 22, 33, 44, 55]
    assert rig.scan.taken == 1  # that of the node alone is no full one


def test_what_reads_the_same_is_not_summed_again_until_a_pod_or_a_number_is_another(rig: Rig):
    rig.scanned(10, 20, 30, 40, 50)
    first = rig.scan.full()
    assert rig.scan.full() is first
    assert rig.scan.again() is first
    assert rig.scan.taken == 3
    rig.scanned(10, 20, 30, 40, 51)
    second = rig.scan.again()
    assert second is not first
    assert rig.scan.last is second
    rig.watch.index.set_pods(rig.pods[1:])
    assert rig.scan.full() is not second


def test_a_node_that_is_gone_has_no_memory(rig: Rig):
    rig.scanned(1, 1, 1, 1, 1)
    assert rig.signals.scans is not None
    del rig.signals.scans[0]
    assert rig.scan.node() is None
    rig.signals.scans = []
    assert rig.scan.node() is None


def test_cgroups_that_the_scan_could_not_hold_are_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture):
    rig.scanned(1, 1, 1, 1, 1)
    rig.scan.full()
    assert not caplog.text
    rig.signals.missed = 7
    rig.scan.full()
    rig.scan.full()
    assert caplog.text.count("7 memory cgroups are not measured") == 1


def test_files_say_pods_and_of_the_node_what_pods_do_not_have(rig: Rig):
    rig.hold("", 1000, 100, 200, 30, 40, 50)
    rig.hold(rig.path("web"), 300, 10, 20, 3, 4, 5)
    rig.hold(rig.path("batch"), 200, 30, 40, 6, 7, 60)
    assert not rig.scan.can_scan
    sums = rig.scan.full()
    web = sums.pod("web", rig.id("web"))
    assert web is not None
    assert (web.usage_bytes, web.inactive_anon_bytes, web.unevictable_bytes) == (300, 10, 5)
    node = rig.scan.node()
    assert node is not None
    assert node.usage_bytes == 1000
    # Its own memory.stat lags behind: where pods have more than it, the node has what pods have.
    assert (node.inactive_anon_bytes, node.active_file_bytes, node.unevictable_bytes) == (100, 40, 65)


def test_files_say_what_is_in_swap_and_nothing_of_it_where_swap_is_not_accounted(rig: Rig):
    rig.hold(rig.path("web"), 300, 10, 20, 3, 4, 5)
    rig.hold(rig.path("batch"), 200, 30, 40, 6, 7, 60)
    swap = rig.root / rig.path("web") / "memory.swap.current"
    swap.write_text("77\n")
    (rig.root / rig.path("batch") / "memory.swap.current").write_text("odd\n")
    (rig.root / "memory.swap.current").write_text("odd\n")

    def held() -> dict[str, tuple[int, int]]:
        sums = rig.scan.full()
        pods = {uid: sums.pod(uid, rig.id(uid)) for uid in ("web", "batch")}
        assert rig.scan.node() is not None
        return {uid: (pod.usage_bytes, pod.swap_bytes) for uid, pod in pods.items() if pod is not None}

    assert held() == {"web": (300, 77), "batch": (200, 0)}
    assert {each.cgroup_id: each.swap_bytes for each in memcg_samples(rig.watch)}[rig.id("web")] == 77
    swap.write_text("78\n")
    assert held()["web"] == (300, 78)
    (rig.root / rig.path("batch") / "memory.swap.current").unlink()
    assert held()["batch"] == (200, 0)


def test_a_pod_whose_files_are_gone_is_left_out_and_found_again_when_it_is_made_again(rig: Rig):
    rig.hold(rig.path("web"), 300, 10, 20, 3, 4, 5)
    shutil.rmtree(rig.root / rig.path("batch"))
    first = rig.scan.full()
    assert first.pod("web", rig.id("web")) is not None
    assert first.pod("batch", rig.id("batch")) is None
    old = rig.id("web")
    shutil.move(rig.root / rig.path("web"), rig.root / "kubepods" / "moved")
    (rig.root / "kubepods" / "moved" / "memory.stat").unlink()
    rig.make(rig.path("web"))
    rig.hold(rig.path("web"), 77, 1, 1, 1, 1, 1)
    rig.watch.rescan()
    sums = rig.scan.full()
    assert sums.pod("web", old) is None
    again = sums.pod("web", rig.id("web"))
    assert again is not None
    assert again.usage_bytes == 77


def test_samples_have_their_children_in_every_list(rig: Rig):
    rig.scanned(10, 20, 30, 40, 50)
    node, kubepods, pod, container = memcg_samples(rig.watch)
    assert [each.inactive_anon_bytes // PAGE_BYTES for each in (node, kubepods, pod, container)] == [11, 10, 10, 10]
    assert [each.unevictable_bytes // PAGE_BYTES for each in (node, pod)] == [55, 50]
    assert [each.usage_bytes // PAGE_BYTES for each in (node, pod)] == [100, 50]
    assert (pod.parent_id, pod.max_bytes, container.max_bytes) == (kubepods.cgroup_id, 80 * PAGE_BYTES, None)


def test_samples_by_files_have_parents_first_and_their_events(rig: Rig):
    rig.hold(rig.path("web"), 300, 10, 20, 3, 4, 5)
    (rig.root / rig.path("web") / "memory.events").write_text("low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\n")
    (rig.root / rig.path("batch") / "memory.current").unlink()
    found = {each.cgroup_id: each for each in memcg_samples(rig.watch)}
    web = found[rig.id("web")]
    assert (web.parent_id, web.usage_bytes, web.active_anon_bytes, web.swap_bytes) == (rig.ids["kubepods"], 300, 20, 0)
    assert (web.high_events, web.max_events, web.oom_events, web.oom_kill_events) == (1, 2, 3, 4)
    assert found[rig.ids[""]].parent_id == 0
    assert rig.id("batch") not in found
    assert list(found)[:2] == [rig.ids[""], rig.ids["kubepods"]]
