"""What cgroups outside of pods hold, by a scan and by files of both versions: whose it is, and what is left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from koordebpf.collect.memory import collector
from koordebpf.collect.memory.files import largest
from koordebpf.state.measured import Measured, OutsideMeasure
from koordebpf.units import MIB, NS_PER_S, PAGE_BYTES
from tests.support.played_signals import StalledNode, memcg

LRU = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
PAGES = MIB // PAGE_BYTES
SYSTEM, SERVICE = "system.slice", "system.slice/containerd.service"


class Node(StalledNode):
    def __init__(self, root: Path, version: Literal[1, 2], kind: Literal["machine", "cgroup"] = "cgroup") -> None:
        super().__init__(root, version, kind)
        self.version = version
        for path in (SYSTEM, SERVICE):
            self.make(path)
        self.watch.rescan()
        (root / "memory.max").write_text(f"{1 << 30}\n")
        (root / "memory.limit_in_bytes").write_text(f"{1 << 30}\n")

    def hold(self, path: str, usage: int, *lru: int, slab: int = 0) -> None:
        """Let files say it, in MiB with what is below."""
        prefix = "total_" if self.version == 1 else ""
        text = "".join(f"{prefix}{name} {number * MIB}\n" for name, number in zip(LRU, lru, strict=True))
        if self.version == 2:
            text += f"slab_reclaimable {slab * MIB}\n"
        (self.root / path / "memory.stat").write_text(text)
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        (self.root / path / name).write_text(f"{usage * MIB}\n")

    def measured(self) -> dict[str, int]:
        """Return what each holds, in MiB."""
        return self.held(self.collector.everything({}, (), None))

    def held(self, measured: Measured) -> dict[str, int]:
        assert measured.outside is not None
        return {each.path: each.held_bytes // MIB for each in measured.outside}


@pytest.fixture(params=[1, 2])
def node(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(collector, "_OUTSIDE_NS", 0)  # each reading is of that moment
    with contextlib.closing(Node(tmp_path, request.param)) as made:
        yield made


def test_in_the_hundred_rounds_a_second_of_a_shortage_it_is_read_a_few_times(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.hold(SYSTEM, 300, 10, 20, 100, 50, 5)
    first = node.measured()
    node.hold(SYSTEM, 400, 110, 20, 100, 50, 5)
    monkeypatch.setattr(collector, "_OUTSIDE_NS", NS_PER_S)
    assert node.measured() == first
    node.make("new.slice")
    node.watch.rescan()
    assert node.measured()[SYSTEM] == first[SYSTEM] + 100


def test_files_say_what_each_child_of_the_node_holds_without_page_cache_and_pods(node: Node):
    node.hold("", 900, 100, 200, 30, 40, 50)
    node.hold(SYSTEM, 300, 10, 20, 100, 50, 5)
    node.hold("kubepods", 500, 60, 150, 0, 0, 40)
    node.hold(node.path("web"), 300, 40, 100, 0, 0, 10)
    node.hold(node.path("batch"), 150, 15, 45, 0, 0, 25)
    # system: 35 on lists, and 300 - 185 of the kernel. kubepods: 5 + 5 + 5, and 500 - 450 - 15 that removed pods left.
    assert node.measured() == {SYSTEM: 150, "kubepods": 50, "": (100 - 70) + (200 - 170) + 5 + (100 - 65)}
    node.hold(node.path("batch"), 200, 20, 50, 0, 0, 30)
    assert node.measured() == {SYSTEM: 150, "": 30 + 30 + 5 + 35}
    node.watch.index.set_pods(())  # they are strays now, which are not outside either
    assert node.measured() == {SYSTEM: 150, "": 30 + 30 + 5 + 35}


def test_reclaimable_slab_is_not_held(tmp_path: Path):
    with contextlib.closing(Node(tmp_path, 2)) as node:
        node.hold(SYSTEM, 300, 10, 20, 100, 50, 5, slab=100)
        assert node.measured() == {SYSTEM: 50}


def test_a_directory_that_is_gone_is_left_out_and_one_that_is_made_is_found(node: Node):
    node.hold(SYSTEM, 30, 10, 20, 0, 0, 0)
    (node.root / "user.slice").mkdir()
    node.watch.rescan()
    assert node.measured() == {SYSTEM: 30}
    node.make("user.slice")
    node.hold("user.slice", 7, 7, 0, 0, 0, 0)
    assert node.measured() == {SYSTEM: 30, "user.slice": 7}
    (node.root / SYSTEM / "memory.stat").write_text("odd\n")
    assert node.measured() == {"user.slice": 7}


def test_the_machines_own_processes_are_those_of_the_root_though_it_has_no_usage_on_v2(tmp_path: Path):
    with contextlib.closing(Node(tmp_path, 2, "machine")) as node:
        node.hold("", 0, 100, 20, 30, 40, 50)
        (node.root / "memory.current").unlink()
        node.hold(SYSTEM, 90, 60, 20, 0, 0, 10)
        assert node.measured() == {SYSTEM: 90, "": 40 + 40}


def scanned(node: Node, *, kernel: int) -> None:
    """Let a scan have it, in MiB: each cgroup's usage is with what is below, its lists are its own."""
    ids, web = node.ids, node.id("web")
    rows = [
        (ids[""], 0, 900, 1),
        (ids[SYSTEM], ids[""], 300 + kernel, 3, 0, 50),
        (ids[SERVICE], ids[SYSTEM], 240, 40, 0, 200),
        (ids["kubepods"], ids[""], 105, 2),
        (web, ids["kubepods"], 100, 3),
        (node.id("web", "a"), web, 90, 80),
    ]
    node.signals.scans = [
        memcg(cgroup_id, parent_id, usage * PAGES, *(each * PAGES for each in lru))
        for cgroup_id, parent_id, usage, *lru in rows
    ]


def test_a_scan_says_the_same(node: Node):
    scanned(node, kernel=0)
    found = node.measured()
    # Of system 300 - 3 - 50 - 240 are the kernel's, and all of its service's memory is on lists.
    assert found == {SYSTEM: 3 + 40 + 7, "kubepods": 5, "": 900 - 300 - 105}


def test_page_cache_of_removed_cgroups_is_not_held_though_the_scan_has_it_on_no_list(node: Node):
    scanned(node, kernel=400)
    node.hold(SYSTEM, 700, 43, 0, 600, 0, 0)  # 350 of it are on lists that the scan does not see
    node.hold("", 900, 500, 0, 700, 0, 0)
    found = node.measured()
    assert found[SYSTEM] == 3 + 40 + 7 + 400 - 350
    assert node.held(node.collector.everything({}, (), None)) == found


def elsewhere(node: Node) -> tuple[dict[str, int], dict[str, int]]:
    """Return what pods hold outside of their own cgroups, and what else is outside, in MiB."""
    measured = node.collector.everything({}, (), None)
    pods = {each.uid: each.memory.elsewhere_bytes // MIB for each in measured.pods if each.memory is not None}
    return pods, node.held(measured)


def test_a_virtual_machine_is_its_pods_and_is_not_outside(node: Node):
    vm = f"kata_overhead/{'d' * 64}"
    for path in ("kata_overhead", vm, f"{node.path('web')}/kata_{'d' * 64}"):
        node.make(path)
    node.watch.rescan()
    node.hold("kata_overhead", 260, 210, 0, 30, 0, 0)
    node.hold(vm, 250, 200, 0, 30, 0, 0)
    # 20 of the kernel's are the machine's, and 10 of the directory itself are no pod's.
    assert elsewhere(node) == ({"web": 220, "batch": 0}, {"kata_overhead": 10})
    web = {each.uid: each.memory for each in node.collector.everything({}, (), None).pods}["web"]
    assert web is not None and (web.usage_bytes, web.koordinator_used_bytes) == (0, 0)
    node.make(f"{node.path('batch')}/kata_{'d' * 64}")
    node.watch.rescan()
    assert elsewhere(node) == ({"web": 0, "batch": 0}, {"kata_overhead": 230})


def test_a_scan_says_the_same_of_a_virtual_machine(node: Node):
    vm = f"kata_overhead/{'d' * 64}"
    for path in ("kata_overhead", vm, f"{vm}/vcpus", f"{node.path('web')}/kata_{'d' * 64}"):
        node.make(path)
    node.watch.rescan()
    node.signals.scans = [
        memcg(node.ids[""], 0, 300 * PAGES),
        memcg(node.ids["kubepods"], node.ids[""], 0),
        memcg(node.id("web"), node.ids["kubepods"], 0),
        memcg(node.ids["kata_overhead"], node.ids[""], 260 * PAGES, 10 * PAGES),
        memcg(node.ids[vm], node.ids["kata_overhead"], 250 * PAGES, 0, 0, 30 * PAGES),
        memcg(node.ids[f"{vm}/vcpus"], node.ids[vm], 205 * PAGES, 200 * PAGES),
    ]
    assert elsewhere(node) == ({"web": 220}, {"kata_overhead": 10, "": 40})


def test_the_largest_are_told_apart_and_the_rest_is_one():
    held = [OutsideMeasure(f"s{number:02}", number, number % 2) for number in range(1, 20)]
    found = largest([*held, OutsideMeasure("none", 0)])
    assert found[0] == OutsideMeasure("s19", 19, 1)
    assert len(found) == 17
    assert found[-1] == OutsideMeasure("others", 1 + 2 + 3, 1 + 0 + 1)
    assert sum(each.held_bytes for each in found) == sum(each.held_bytes for each in held)
