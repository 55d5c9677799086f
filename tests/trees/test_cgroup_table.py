"""Rows of `koordebpf top --level cgroup` and `container`, from a scan and from files of memory pressure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from koordebpf.events.layout import STALL_CAUSES, decode_stall
from koordebpf.report.top import TopRow
from koordebpf.state.measured import PsiLine, StallShares
from koordebpf.state.pods.facts import PodFacts, pod_facts
from koordebpf.tools.top.choice import Level
from koordebpf.tools.top.looks import CgroupTable
from koordebpf.units import NS_PER_S, PAGE_BYTES
from tests.support.played_signals import StalledNode, memcg, stall

PSI = "some avg10=1.50 avg60=2.00 avg300=3.00 total=4\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1\n"


class Rig(StalledNode):
    def __init__(self, root: Path, version: Literal[1, 2] = 2) -> None:
        super().__init__(root, version)
        (root / "system.slice").mkdir()
        self.watch.rescan()
        self.table = CgroupTable(self.watch, self.collector)
        self.now_ns = 1_000 * NS_PER_S

    def sample(self, web: int, *lru: int, limit: int | None = None) -> None:
        """Let a second pass; container a of web has so many pages, with these on its lists."""
        top, kubepods = self.ids[""], self.ids["kubepods"]
        bounded = {} if limit is None else {"limit": limit}
        self.signals.scans = [
            memcg(top, 0, 1000),
            memcg(kubepods, top, 500),
            memcg(self.id("web"), kubepods, web),
            memcg(self.id("web", "a"), self.id("web"), web, *lru, **bounded),
        ]
        self.now_ns += NS_PER_S
        self.table.sample(self.now_ns, [decode_stall(*each) for each in self.signals.stalls()])

    def rows(self, level: Level = "cgroup") -> dict[str, TopRow]:
        return {each.name: each for each in self.table.rows(level, self.facts)}

    @property
    def facts(self) -> list[PodFacts]:
        return [pod_facts(each) for each in self.pods]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


CONTAINER = f"team/web[{'a' * 12}]"


def test_each_cgroup_has_its_name_and_its_pods_qos(rig: Rig) -> None:
    rig.sample(100, 1, 2, 3, 4, 5)
    found = rig.rows()
    assert list(found) == ["the node", "kubepods", "team/web", CONTAINER]
    assert [each.qos for each in found.values()][2:] == ["LS", "LS"]
    assert list(rig.rows("container")) == [CONTAINER]


def test_memory_of_processes_of_files_and_of_the_kernel_are_told_apart(rig: Rig) -> None:
    rig.sample(100, 1, 2, 30, 40, 5, limit=200)
    row = rig.rows()[CONTAINER]
    pages = (row.usage_bytes, row.file_bytes, row.kernel_bytes, row.used_bytes, row.limit_bytes)
    assert [(each or 0) / PAGE_BYTES for each in pages] == [100, 70, 22, 30, 200]
    assert (row.cgroup_id, row.priority, row.growth_bytes_per_s, row.full_in) == (rig.id("web", "a"), None, None, None)
    rig.sample(50, 1, 2, 30, 40, 5)  # more on its lists than is charged: they are counted at other times
    row = rig.rows()[CONTAINER]
    assert (row.kernel_bytes, row.limit_bytes) == (0, None)


def test_growth_leaves_out_page_cache_and_says_when_it_is_full(rig: Rig) -> None:
    for pages in (100, 200, 300):
        rig.sample(pages, pages, limit=1300)
    row = rig.rows()[CONTAINER]
    assert row.growth_bytes_per_s == 100 * PAGE_BYTES
    assert row.full_in is not None and row.full_in.point_ns == pytest.approx(10 * NS_PER_S, rel=0.2)
    for pages in (400, 500, 600):
        rig.sample(pages, 300, 0, pages - 300, 0, limit=1300)
    row = rig.rows()[CONTAINER]
    assert row.growth_bytes_per_s == 0


def test_what_is_gone_has_no_row_and_begins_again(rig: Rig) -> None:
    for pages in (100, 200):
        rig.sample(pages)
    assert rig.signals.scans is not None
    rig.signals.scans = rig.signals.scans[:3]
    rig.table.sample(rig.now_ns + NS_PER_S, [])
    assert CONTAINER not in rig.rows()
    rig.now_ns += NS_PER_S
    rig.sample(900)
    assert rig.rows()[CONTAINER].growth_bytes_per_s is None


def test_shares_are_those_of_the_file_and_without_it_of_the_stalls(rig: Rig) -> None:
    (rig.root / rig.path("web", "a") / "memory.pressure").write_text(PSI)
    rig.sample(100)
    expected = StallShares(PsiLine(1.5, 2.0, 3.0, 4), PsiLine(0.5, 0.0, 0.0, 1), derived=False)
    assert rig.rows()[CONTAINER].shares == expected
    assert rig.rows()["team/web"].shares is None
    rig.signals.rows[rig.id("web", "a")] = stall(NS_PER_S, changed_ns=rig.now_ns)
    (rig.root / rig.path("web", "a") / "memory.pressure").unlink()
    rig.sample(100)
    rig.signals.rows[rig.id("web", "a")] = stall(2 * NS_PER_S, changed_ns=rig.now_ns)
    rig.sample(100)
    shares = rig.rows()[CONTAINER].shares
    assert shares is not None and shares.derived


def test_on_v1_the_file_is_not_looked_for(tmp_path: Path) -> None:
    with contextlib.closing(Rig(tmp_path, 1)) as rig:
        (rig.root / rig.path("web", "a") / "memory.pressure").write_text(PSI)
        rig.sample(100)
        assert rig.rows()[CONTAINER].shares is None


def test_stalls_are_those_of_the_last_seconds_by_cause(rig: Rig) -> None:
    rig.sample(100)
    rig.signals.rows[rig.id("web", "a")] = stall(7, changed_ns=rig.now_ns, **{STALL_CAUSES[0]: 5})
    rig.sample(100)
    row = rig.rows()[CONTAINER]
    assert row.global_stall_ns + row.limit_stall_ns == 5
