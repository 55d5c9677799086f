"""CPU counters of cgroups: rows of a pass, and files where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from koordebpf.errors import CgroupGone
from koordebpf.events.layout import CPU_WORDS
from koordebpf.jobs.usage_series import cpu as module
from koordebpf.jobs.usage_series.cpu import FileCpu, ScannedCpu, counters_of
from koordebpf.jobs.usage_series.groups import UsageGroup
from koordebpf.kernel.bpf.iterators import CpuHierarchy
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id

PASS = 7


def rows(*each: tuple[int, int, int, int, int]) -> memoryview:
    """Return struct koord_cpu of: pass of the usage, usage, pass of the throttling, periods, throttled."""
    words = (number for row in each for number in (*row, *(0,) * (CPU_WORDS - 5)))
    return memoryview(b"".join(number.to_bytes(8, "little") for number in words))


def test_what_the_pass_has_seen_is_reported():
    found = counters_of(PASS, rows((PASS, 500, PASS, 10, 2), (PASS, 9, PASS, 1, 0)), [11, 12])
    assert found == ({11: 500, 12: 9}, {11: (10, 2), 12: (1, 0)})


def test_a_row_of_an_older_pass_is_of_a_container_that_is_gone():
    usage, throttling = counters_of(PASS, rows((PASS - 1, 500, PASS - 1, 10, 2), (PASS, 9, PASS, 4, 4)), [11, 12])
    assert (usage, throttling) == ({12: 9}, {12: (4, 4)})


def test_each_hierarchy_has_its_own_pass_in_a_row():
    usage, throttling = counters_of(PASS, rows((PASS - 1, 5, PASS, 10, 2), (PASS, 9, PASS - 1, 4, 4)), [11, 12])
    assert (usage, throttling) == ({12: 9}, {11: (10, 2)})


def test_a_cgroup_without_a_quota_and_a_row_of_none_are_left_out():
    assert counters_of(PASS, rows((PASS, 5, PASS, 0, 0), (PASS, 9, PASS, 4, 4)), [11, 0]) == ({11: 5}, {})


class Passes:
    """In place of `CpuScan`: rows that follow real directories; `used` is by path, `most` the rows that there are."""

    most = 3

    def __init__(self, roots: Iterable[CpuHierarchy], _: object) -> None:
        self.roots, self.number = list(roots), 0
        self.followed: dict[tuple[int, int], int] = {}
        self.values: dict[int, tuple[int, int, int, int, int]] = {}
        self.used: dict[str, int] = {}

    def follow(self, hierarchy: int, own: int, slot: int) -> bool:
        self.followed[hierarchy, own] = slot
        return True

    def unfollow(self, hierarchy: int, own: int) -> None:
        del self.followed[hierarchy, own]

    def run(self, count: int) -> tuple[int, memoryview]:
        self.number += 1
        for path, used in self.used.items():
            for hierarchy, root in enumerate(self.roots):
                try:
                    slot = self.followed.get((hierarchy, cgroup_id(root.root / path)))
                except CgroupGone:
                    continue
                if slot is not None:
                    self.values[slot] = self.number, used, self.number, 4, 1
        return self.number, rows(*(self.values.get(slot, (0, 0, 0, 0, 0)) for slot in range(count)))

    def close(self) -> None:
        """Nothing is open."""


def group(number: int, path: str) -> dict[int, UsageGroup]:
    return {number: UsageGroup(number, path, "container", path)}


@pytest.fixture
def scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CpuScan", Passes)
    for name in "abcd":
        (tmp_path / name).mkdir()
    return ScannedCpu([ControllerMount(2, tmp_path)], "")


def passes(scanned: ScannedCpu) -> Passes:
    made = scanned._scan
    assert isinstance(made, Passes)
    return made


def test_a_cgroup_that_is_made_again_is_found_at_the_next_pass(scanned: ScannedCpu, tmp_path: Path):
    scanned.watch(group(1, "a"))
    passes(scanned).used = {"a": 100}
    assert scanned.read().usage_ns == {1: 100}
    (tmp_path / "a").rename(tmp_path / "old")  # its inode stays in use, so that the new one has another
    assert scanned.read().usage_ns == {}
    assert passes(scanned).followed == {}
    (tmp_path / "a").mkdir()
    passes(scanned).used = {"a": 3}
    found = scanned.read()
    assert (found.usage_ns, found.throttling) == ({1: 3}, {1: (4, 1)})


def test_the_row_of_one_that_is_watched_no_more_serves_another(scanned: ScannedCpu):
    passes(scanned).used = {"a": 100, "b": 200, "c": 300, "d": 400}
    scanned.watch({**group(1, "a"), **group(2, "b"), **group(3, "c"), **group(4, "d")})
    assert scanned.read().usage_ns == {1: 100, 2: 200, 3: 300}  # there are three rows
    scanned.watch({**group(1, "a"), **group(3, "c"), **group(4, "d")})
    assert scanned.read().usage_ns == {1: 100, 3: 300, 4: 400}
    assert sorted(passes(scanned).followed.values()) == [0, 1, 2]


def test_a_group_under_another_path_is_followed_there(scanned: ScannedCpu):
    passes(scanned).used = {"a": 100, "b": 200}
    scanned.watch(group(1, "a"))
    scanned.read()
    scanned.watch(group(1, "b"))
    assert scanned.read().usage_ns == {1: 200}
    assert len(passes(scanned).followed) == 1


def test_of_many_that_are_new_so_many_are_found_at_one_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(module, "CpuScan", Passes)
    monkeypatch.setattr(module, "_RESOLVED_A_PASS", 2)
    monkeypatch.setattr(Passes, "most", 9)
    for name in "abcd":
        (tmp_path / name).mkdir()
    made = ScannedCpu([ControllerMount(2, tmp_path)], "")
    made.watch({number: UsageGroup(number, name, "pod", name) for number, name in enumerate(("gone", *"abcd"), 1)})
    passes(made).used = dict.fromkeys("abcd", 5)
    assert [len(made.read().usage_ns) for _ in range(3)] == [1, 3, 4]  # "gone" is tried again after the others
    made.close()


def write(directory: Path, text: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "cpu.stat").write_text(text)


STAT = "usage_usec {}\nnr_periods {}\nnr_throttled {}\n"


def test_files_say_what_the_pass_says_and_what_is_gone_or_odd_is_left_out(tmp_path: Path):
    write(tmp_path / "a", STAT.format(5, 10, 2))
    write(tmp_path / "b", STAT.format(6, 0, 0))
    write(tmp_path / "c", "")
    write(tmp_path / "d", STAT.format(7, "x", 1))
    files = FileCpu([ControllerMount(2, tmp_path)], "a test")
    files.watch({**group(1, "a"), **group(2, "b"), **group(3, "c"), **group(4, "d"), **group(5, "gone")})
    found = files.read()
    assert found.usage_ns == {1: 5000, 2: 6000, 4: 7000}
    assert found.throttling == {1: (10, 2)}
    assert not files.is_whole
    files.close()


def test_files_of_a_cgroup_that_was_made_again_are_opened_again(tmp_path: Path):
    write(tmp_path / "a", STAT.format(5, 10, 2))
    files = FileCpu([ControllerMount(2, tmp_path)], "a test")
    files.watch(group(1, "a"))
    files.read()
    shutil.rmtree(tmp_path / "a")
    write(tmp_path / "b", STAT.format(1, 0, 0))
    files.watch(group(1, "b"))
    assert files.read().usage_ns == {1: 1000}
    files.watch({})
    assert files.read().usage_ns == {}
