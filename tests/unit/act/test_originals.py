"""The value that each file is restored to: the first one, or what another process wrote since; plain files here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.originals import Originals, touches
from koordebpf.act.writer.places import Held, Original, Places
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile import FileKey
from koordebpf.units import NS_PER_S

CPUS = CgroupFile.CPUSET_CPUS
QUOTA, SET = ("be", CgroupFile.CPU_QUOTA), ("be", CPUS)
READ = ("be", CgroupFile.IO_READ_BPS)
ROWS, NOW = Table.of({"8:0": 5, "8:16": 7}), Table.of({"8:0": 6, "8:16": 7})


@dataclasses.dataclass
class Rig:
    root: Path
    journal: Journal

    def __post_init__(self) -> None:
        mount = ControllerMount(1, self.root)
        self.places = Places(dict.fromkeys(("cpu", "cpuset", "blkio"), mount), sysfs=self.root / "sys")
        self.originals = self.successor()

    def successor(self, *, is_dry_run: bool = False) -> Originals:
        return Originals(self.places, None if is_dry_run else self.journal)

    def holds(self, key: FileKey, value: Value) -> None:
        path = self.places.locate(key)
        assert path is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"{device} {limit}\n" for device, limit in value.rows) if isinstance(value, Table) else None
        path.write_text(f"{self.places.format(key, value)}\n" if rows is None else rows)

    def look(self, key: FileKey, *, is_ours: bool = False) -> Held:
        held = self.originals.read(key, 0)
        held.is_ours = is_ours
        return held

    # What a strategy writes, with what the file held before in the journal.
    def write(self, key: FileKey, value: Value, owner: str = "cpuBurst") -> None:
        held = self.look(key)
        self.originals.record({key: held}, {key: value}, lambda _: (owner,))
        self.holds(key, value)
        self.originals.seen.record(key, value)

    def original(self, key: FileKey) -> Value:
        return self.places.parse(key, self.journal.originals[key].text)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Journal(tmp_path / "journal") as journal:
        made = Rig(tmp_path / "cgroup", journal)
        made.holds(QUOTA, 100_000)
        made.holds(SET, frozenset({0, 1}))
        made.holds(READ, ROWS)
        yield made


class TestRecord:
    def test_the_first_value_stays_and_each_owner_is_added(self, rig: Rig) -> None:
        for value, owner in ((200_000, "cpuBurst"), (300_000, "cpuBurst"), (400_000, "other")):
            rig.write(QUOTA, value, owner)
        assert rig.original(QUOTA) == 100_000
        assert rig.journal.originals[QUOTA].owners == ("cpuBurst", "other")

    def test_a_cgroup_that_is_made_again_has_a_first_value_of_its_own(self, rig: Rig) -> None:
        rig.write(QUOTA, 200_000)
        (rig.root / "be").rename(rig.root / "old")
        rig.holds(QUOTA, 300_000)
        rig.originals.seen.forget([QUOTA])
        rig.write(QUOTA, 400_000)
        assert rig.original(QUOTA) == 300_000

    def test_what_was_not_looked_at_is_not_recorded(self, rig: Rig) -> None:
        rig.originals.record({}, {QUOTA: 1}, lambda _: ())
        assert rig.journal.originals == {}

    def test_of_a_table_the_devices_that_are_ours_are_recorded(self, rig: Rig) -> None:
        rig.write(READ, NOW)
        assert rig.journal.originals[READ].devices == ("8:0",)
        rig.write(READ, Table.of({"8:0": 6, "8:16": 8}))
        assert rig.journal.originals[READ].devices == ("8:0", "8:16")
        rig.write(QUOTA, 200_000)
        assert rig.journal.originals[QUOTA].devices is None

    def test_a_dry_run_records_nothing(self, rig: Rig) -> None:
        rig.originals = rig.successor(is_dry_run=True)
        rig.write(QUOTA, 200_000)
        rig.write(READ, NOW)
        assert rig.originals.adopt(QUOTA, 1, rig.look(QUOTA)) is None
        assert (rig.look(QUOTA).value, rig.originals.drop_gone((), 0), rig.journal.originals) == (200_000, [], {})


class TestLook:
    def test_what_another_process_wrote_in_place_of_the_original_is_the_original(self, rig: Rig) -> None:
        rig.write(QUOTA, 200_000)
        for value in (100_000, 300_000):
            rig.holds(QUOTA, value)
            rig.look(QUOTA)
        assert rig.original(QUOTA) == 300_000

    def test_what_it_wrote_over_ours_is_left_to_the_writer(self, rig: Rig) -> None:
        rig.write(QUOTA, 200_000)
        rig.holds(QUOTA, 300_000)
        rig.look(QUOTA)
        assert rig.original(QUOTA) == 100_000

    def test_a_file_that_is_not_in_the_journal_is_not_put_there(self, rig: Rig) -> None:
        rig.look(QUOTA)
        rig.holds(QUOTA, 300_000)
        rig.look(QUOTA)
        assert rig.journal.originals == {}

    def test_a_cpu_that_went_offline_is_no_wish(self, rig: Rig) -> None:
        rig.write(SET, frozenset({0}))
        for cpus in ({0, 1}, {1}):
            rig.holds(SET, frozenset(cpus))
            rig.look(SET)
        assert rig.original(SET) == frozenset({0, 1})

    def test_of_a_table_that_was_not_written_since_each_changed_row_is_taken(self, rig: Rig) -> None:
        rig.write(READ, NOW)
        rig.holds(READ, Table.of({"8:0": 6, "8:16": 9}))
        rig.look(READ)
        assert rig.original(READ) == Table.of({"8:0": 5, "8:16": 9})

    @pytest.mark.parametrize(("is_ours", "limit"), [(True, 7), (False, 9)])
    def test_of_one_that_is_ours_none_is(self, rig: Rig, is_ours: bool, limit: int) -> None:
        rig.write(READ, NOW)
        before = rig.look(READ, is_ours=is_ours)
        rig.holds(READ, Table.of({"8:0": 6, "8:16": 9}))
        rig.originals.read(READ, 1, before)
        assert rig.original(READ) == Table.of({"8:0": 5, "8:16": limit})

    def test_of_one_that_the_agent_before_has_written_each_row_that_is_not_ours(self, rig: Rig) -> None:
        rig.write(READ, NOW)
        rig.holds(READ, Table.of({"8:0": 8, "8:16": 9}))
        (rig.root / "sys/dev/block/8:0").mkdir(parents=True)
        rig.originals = rig.successor()
        rig.look(READ)
        assert rig.original(READ) == Table.of({"8:0": 5, "8:16": 9})

    def test_of_a_number_that_it_has_written_nothing(self, rig: Rig) -> None:
        rig.write(QUOTA, 200_000)
        rig.originals = rig.successor()
        rig.look(QUOTA)
        assert rig.original(QUOTA) == 100_000


class TestAdopt:
    def test_what_is_adopted_is_restored(self, rig: Rig) -> None:
        rig.write(QUOTA, 200_000)
        rig.holds(QUOTA, 300_000)
        assert rig.originals.adopt(QUOTA, 200_000, rig.look(QUOTA)) is None
        assert rig.original(QUOTA) == 300_000
        assert rig.journal.originals[QUOTA].owners == ("cpuBurst",)

    def test_what_is_as_it_was_is_not(self, rig: Rig) -> None:
        rig.write(QUOTA, 200_000)
        assert rig.originals.adopt(QUOTA, 200_000, rig.look(QUOTA)) is None
        assert rig.original(QUOTA) == 100_000

    def test_one_that_was_not_in_the_journal_is_now(self, rig: Rig) -> None:
        held = rig.look(READ)
        rig.originals.adopt(READ, NOW, held)
        assert rig.journal.originals == {READ: Original(held.text, held.inode)}

    def test_one_that_cannot_be_recorded_says_why(self, rig: Rig) -> None:
        held = rig.look(QUOTA)
        rig.journal.close()
        assert isinstance(rig.originals.adopt(QUOTA, 1, held), OSError)


def test_a_slice_that_holds_what_it_held_at_first_was_reset(rig: Rig) -> None:
    for path, is_reset in (("be.slice", True), ("be", False)):
        key = (path, CgroupFile.CPU_QUOTA)
        rig.holds(key, 100_000)
        assert not rig.originals.is_reset(key, rig.look(key))
        rig.write(key, 200_000)
        assert not rig.originals.is_reset(key, rig.look(key))
        rig.holds(key, 100_000)
        assert rig.originals.is_reset(key, rig.look(key)) is is_reset


def test_of_a_device_s_limits_the_lower_one_counts_and_other_rows_stay(rig: Rig) -> None:
    rig.write(READ, NOW)
    held = rig.look(READ)
    assert rig.originals.target(READ, Table.of({"8:0": 9}), held) == ROWS
    assert rig.originals.target(READ, Table.of({"8:0": 3}), held) == Table.of({"8:0": 3, "8:16": 7})
    assert rig.originals.target(QUOTA, 7, held) == 7


@pytest.mark.parametrize(
    ("wanted", "before", "now", "is_touched"),
    [
        (Table.of({"8:0": 1}), ROWS, NOW, True),
        (Table.of({"8:16": 1}), ROWS, NOW, False),
        (Table.of({"8:32": 1}), ROWS, NOW, False),
        (Table.of({"8:32": 1, "8:0": 1}), ROWS, NOW, True),
        (Table.of({"8:16": 1}), None, NOW, True),
        (Table.of({"8:16": 1}), ROWS, None, True),
        (1, ROWS, NOW, True),
    ],
)
def test_a_change_concerns_a_table_by_its_wanted_rows(
    wanted: Value, before: Value, now: Value, is_touched: bool
) -> None:
    assert touches(wanted, before, now) is is_touched


class TestDropGone:
    KEYS = tuple((f"pod{number}", CgroupFile.CPU_QUOTA) for number in range(100))

    @pytest.fixture
    def journalled(self, rig: Rig) -> Callable[[int, float], list[FileKey]]:
        for key in self.KEYS:
            rig.holds(key, 100_000)
            rig.write(key, 200_000)

        def drop(count: int, second: float) -> list[FileKey]:
            for path, _ in self.KEYS[:count]:
                if (rig.root / path).exists():
                    (rig.root / path).rename(rig.root / f"gone-{path}")
            return rig.originals.drop_gone([], int(second * NS_PER_S))

        return drop

    def test_a_part_of_all_is_looked_at_in_each_call(self, rig: Rig, journalled: Callable[..., list[FileKey]]) -> None:
        counts = [len(journalled(100, second)) for second in range(4)]
        assert (counts, rig.journal.originals) == ([48, 48, 4, 0], {})

    def test_those_that_are_there_stay_and_are_due_again_in_a_minute(
        self, rig: Rig, journalled: Callable[..., list[FileKey]]
    ) -> None:
        for second in range(3):
            assert journalled(0, 100 + second) == []
        assert journalled(1, 159.9) == []
        assert journalled(1, 160) == [self.KEYS[0]]
        assert len(rig.journal.originals) == 99

    def test_what_is_neither_wanted_nor_journalled_is_forgotten_then(self, rig: Rig) -> None:
        rig.look(QUOTA)
        rig.look(SET)
        rig.originals.drop_gone([SET], 0)
        assert list(rig.originals.seen.last) == [SET]

    def test_what_the_agent_before_has_written_is_looked_at(self, rig: Rig) -> None:
        rig.write(QUOTA, 200_000)
        rig.originals = rig.successor()
        assert rig.originals.drop_gone([], 0) == []
        assert rig.originals.seen.last == {QUOTA: 200_000}
        # and is then the writer's to look at
        rig.holds(QUOTA, 300_000)
        rig.originals.drop_gone([], 60 * NS_PER_S)
        assert rig.originals.seen.last == {QUOTA: 200_000}

    def test_of_very_many_all_are_looked_at_in_a_minute(self, rig: Rig) -> None:
        keys: list[FileKey] = [(f"pod{number}", CgroupFile.CPU_QUOTA) for number in range(3000)]
        for key in keys:
            rig.holds(key, 100_000)
        inodes = {key: (rig.root / key[0] / "cpu.cfs_quota_us").stat().st_ino for key in keys}
        rig.journal.record({key: Original("1\n", inode) for key, inode in inodes.items()})
        rig.originals.drop_gone([], 0)
        assert len(rig.originals.seen.last) == 51


class TestBelow:
    """A cgroup that is made below one that is held has a copy of its CPUs."""

    def below(self, rig: Rig, first: set[int], copied: set[int]) -> Value | None:
        """Return what one below is to be restored to, that held these CPUs when it was looked at."""
        rig.holds(SET, frozenset(first))
        rig.write(SET, frozenset({0}))
        pod = ("be/pod", CPUS)
        rig.holds(pod, frozenset(copied))
        held = {pod: rig.look(pod)}
        rig.originals.record(held, {}, lambda _: (), [pod])
        return rig.original(pod) if pod in rig.journal.originals else None

    @pytest.mark.parametrize("copied", [{0}, set()])
    def test_a_copy_is_restored_to_what_its_parent_is(self, rig: Rig, copied: set[int]) -> None:
        assert self.below(rig, {0, 1}, copied) == frozenset({0, 1})
        assert rig.journal.originals["be/pod", CPUS].owners == ("cpuBurst",)

    def test_its_own_is_its_own(self, rig: Rig) -> None:
        assert self.below(rig, {0, 1, 2}, {1}) == frozenset({1})

    def test_below_one_that_is_not_held_nothing_is_recorded(self, rig: Rig) -> None:
        pod = ("be/pod", CPUS)
        rig.holds(pod, frozenset({1}))
        rig.originals.record({pod: rig.look(pod)}, {}, lambda _: (), [pod, QUOTA])
        assert rig.journal.originals == {}

    def test_what_is_below_in_turn_follows_its_parent(self, rig: Rig) -> None:
        rig.write(SET, frozenset({0}))
        keys = [("be/pod", CPUS), ("be/pod/c", CPUS)]
        for key in keys:
            rig.holds(key, frozenset({0}))
        held = {key: rig.look(key) for key in keys}
        rig.originals.record(held, {}, lambda _: (), reversed(keys))
        assert [rig.original(key) for key in keys] == [frozenset({0, 1})] * 2

    def test_so_does_one_that_is_made_while_its_parent_is_first_held(self, rig: Rig) -> None:
        pod = ("be/pod", CPUS)
        rig.holds(pod, frozenset({0, 1}))
        held = {key: rig.look(key) for key in (SET, pod)}
        rig.originals.record(held, {SET: frozenset({0})}, lambda _: ("cpuBurst",), [SET, pod])
        assert rig.original(pod) == frozenset({0, 1})
        assert rig.journal.originals[pod].owners == ("cpuBurst",)

    def test_what_it_was_at_first_stays(self, rig: Rig) -> None:
        assert self.below(rig, {0, 1, 2}, {1}) == frozenset({1})
        pod = ("be/pod", CPUS)
        rig.holds(pod, frozenset({0}))
        rig.originals = rig.successor()
        rig.originals.record({key: rig.look(key) for key in (SET, pod)}, {}, lambda _: (), [SET, pod])
        assert rig.original(pod) == frozenset({1})

    def test_only_sets_of_cpus_that_could_be_read_are_copies(self, rig: Rig) -> None:
        rig.write(SET, frozenset({0}))
        rig.write(QUOTA, 200_000)
        quota = ("be/pod", CgroupFile.CPU_QUOTA)
        rig.holds(quota, 100_000)
        rig.originals.record({quota: rig.look(quota)}, {}, lambda _: (), [quota, ("be/gone", CPUS)])
        assert rig.journal.originals.keys() == {SET, QUOTA}
