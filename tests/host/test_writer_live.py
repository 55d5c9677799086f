"""The writer on the running kernel: what it writes, what the kernel says against it, and what others do meanwhile."""

from __future__ import annotations

import os
import random
import resource
import signal
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange, WriteReport, WriteResult
from koordebpf.act.writer.foreign import ForeignPolicy
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.restore import restore
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile, Value, format_cpu_list, parse_cpu_list
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.host.rigs.cgroups import CPUS, IDLE, QUOTA, SHARES, TREE, Cgroups, be_tree, desired, two_cpus

REFRESH_NS = 10 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S


def writer_of(cgroups: Cgroups, journal: Journal | None, **options: object) -> CgroupWriter:
    return CgroupWriter(cgroups.places, journal, enforce=journal is not None, **options)  # type: ignore[arg-type]


def results(report: WriteReport) -> list[WriteResult]:
    return [change.result for change in report.changes]


def restore_all(cgroups: Cgroups, journal: Journal) -> list[FileChange]:
    report = restore(cgroups.places, dict(journal.originals), 0, enforce=True)
    journal.forget(report.done)
    return [change for change in report.changes if change.result is not WriteResult.WRITTEN]


class TestWriting:
    def test_a_tree_moves_from_one_cpu_to_another_with_every_write_taken(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        first, second = two_cpus()
        be_tree(cgroups, frozenset({first, second}))
        cgroups.populate("be/pod/c1")
        checked = []

        def check(change: FileChange) -> None:
            sets = {path: parse_cpu_list(cgroups.text(path, CPUS), path) for path in ("", *TREE)}
            assert all(sets[path] <= sets[path.rpartition("/")[0]] for path in TREE)
            checked.append(change)

        writer = writer_of(cgroups, journal, audit=check)
        for now_ns, cpu in enumerate((first, second, first)):
            report = writer.apply(desired(cgroups, *((path, CPUS, frozenset({cpu})) for path in TREE)), now_ns)
            assert set(results(report)) == {WriteResult.WRITTEN}
            assert {cgroups.text(path, CPUS) for path in TREE} == {f"{cpu}\n"}
            assert [change for change in report.changes if change.old == change.new] == []
        assert len(checked) == 4 + 8 + 8

    def test_nothing_is_written_or_read_where_nothing_changes(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        writer = writer_of(cgroups, journal)
        wanted = desired(cgroups, ("be", QUOTA, 50_000), ("be", SHARES, 2), ("be", CPUS, frozenset(two_cpus())))
        cgroups.put("", CPUS, format_cpu_list(two_cpus()))
        assert len(results(writer.apply(wanted, 0))) == 3
        attempts = writer.counts.total()
        for now_ns in range(NS_PER_S, 3 * REFRESH_NS, NS_PER_S):
            assert writer.apply(wanted, now_ns) == WriteReport()
        assert writer.counts.total() == attempts

    def test_a_change_says_what_the_file_held_and_holds(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        audited: list[FileChange] = []
        report = writer_of(cgroups, journal, audit=audited.append).apply(desired(cgroups, ("be", QUOTA, 50_000)), 7)
        no_limit = "-1" if cgroups.version == 1 else "max 100000"
        assert report.changes == tuple(audited)
        assert audited == [
            FileChange(
                path=str(cgroups.file("be", QUOTA)),
                old=no_limit,
                new="50000",
                result=WriteResult.WRITTEN,
                reason="a test",
                now_ns=7,
            )
        ]

    def test_a_dry_run_says_it_and_writes_nothing(self, cgroups: Cgroups) -> None:
        cgroups.make("be")
        before = cgroups.text("be", QUOTA)
        writer = writer_of(cgroups, None)
        wanted = desired(cgroups, ("be", QUOTA, 50_000))
        assert results(writer.apply(wanted, 0)) == [WriteResult.DRY_RUN]
        assert results(writer.apply(wanted, HOUR_NS)) == []  # it only repeats itself
        assert cgroups.text("be", QUOTA) == before

    def test_idle_resets_the_shares_and_both_are_restored(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        if not cgroups.file("be", IDLE).exists():
            pytest.skip(f"{OTHER_MACHINE}its kernel has no cpu.idle (since 5.15)")
        cgroups.put("be", SHARES, "700")
        before = cgroups.text("be", SHARES)
        writer = writer_of(cgroups, journal)
        assert results(writer.apply(desired(cgroups, ("be", IDLE, 1)), 0)) == [WriteResult.WRITTEN]
        assert cgroups.text("be", SHARES) != before
        assert results(writer.apply(desired(cgroups, ("be", IDLE, 1), ("be", SHARES, 30)), 1)) == [WriteResult.BLOCKED]
        assert results(writer.apply(desired(cgroups, ("be", IDLE, 0), ("be", SHARES, 300)), 2)) == [
            WriteResult.WRITTEN,
            WriteResult.WRITTEN,
        ]
        assert restore_all(cgroups, journal) == []
        assert (cgroups.text("be", IDLE), cgroups.text("be", SHARES)) == ("0\n", before)


class TestRefusals:
    def test_a_child_that_was_unknown_keeps_its_parent_busy_until_it_is_known(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        if cgroups.version == 2:
            pytest.skip(f"{OTHER_MACHINE}on v2 kernels differ in whether a parent may have fewer CPUs")
        first, second = two_cpus()
        be_tree(cgroups, frozenset({first, second}))
        writer = writer_of(cgroups, journal)
        narrow = frozenset({first})
        report = writer.apply(desired(cgroups, ("be", CPUS, narrow)), 0)
        assert [(change.result, change.detail) for change in report.changes] == [(WriteResult.BUSY, "EBUSY")]
        assert results(writer.apply(desired(cgroups, ("be", CPUS, narrow)), 1)) == []
        assert writer.counts["cpuset.cpus", WriteResult.BUSY] == 2
        report = writer.apply(desired(cgroups, *((path, CPUS, narrow) for path in TREE)), 2)
        assert set(results(report)) == {WriteResult.WRITTEN}

    def test_cpus_that_the_parent_has_not_are_not_tried(self, cgroups: Cgroups, journal: Journal) -> None:
        if cgroups.version == 2:
            pytest.skip(f"{OTHER_MACHINE}on v2 a child may have more CPUs than its parent")
        first, second = two_cpus()
        cgroups.make("be")
        cgroups.put("", CPUS, str(first))
        report = writer_of(cgroups, journal).apply(desired(cgroups, ("be", CPUS, frozenset({second}))), 0)
        assert [(change.result, change.detail) for change in report.changes] == [
            (WriteResult.BLOCKED, f"the parent /{cgroups.path()} has not CPU {second}")
        ]

    def test_tasks_keep_a_set_from_being_empty(self, cgroups: Cgroups, journal: Journal) -> None:
        if cgroups.version == 2:
            pytest.skip(f"{OTHER_MACHINE}on v2 kernels differ in whether it may be")
        first, _ = two_cpus()
        cgroups.make("be")
        for path in ("", "be"):
            cgroups.put(path, CPUS, str(first))
        cgroups.populate("be")
        report = writer_of(cgroups, journal).apply(desired(cgroups, ("be", CPUS, frozenset())), 0)
        assert [(change.result, change.detail) for change in report.changes] == [(WriteResult.REFUSED, "ENOSPC")]
        assert cgroups.text("be", CPUS) == f"{first}\n"

    def test_a_quota_above_the_parents_is_tried_again_after_a_while(self, cgroups: Cgroups, journal: Journal) -> None:
        if cgroups.version == 2:
            pytest.skip(f"{OTHER_MACHINE}on v2 a child may have a larger quota than its parent")
        for path in ("be", "be/pod"):
            cgroups.make(path)
        cgroups.put("be", QUOTA, "50000")
        writer = writer_of(cgroups, journal)
        wanted = desired(cgroups, ("be/pod", QUOTA, 60_000))
        report = writer.apply(wanted, 0)
        assert [(change.result, change.detail) for change in report.changes] == [(WriteResult.REFUSED, "EINVAL")]
        assert results(writer.apply(wanted, REFRESH_NS - 1)) == []
        assert writer.counts["cpu.cfs_quota_us", WriteResult.REFUSED] == 1
        cgroups.put("be", QUOTA, "70000")
        assert results(writer.apply(wanted, REFRESH_NS)) == [WriteResult.WRITTEN]

    def test_quotas_below_are_cut_to_what_the_parent_has_and_get_it_back(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        for path in (*TREE, "be/free"):
            cgroups.make(path)
        for path, quota in (("be/pod", "40000"), ("be/pod/c1", "30000"), ("be/pod/c2", "10000")):
            cgroups.put(path, QUOTA, quota)
        before = {path: cgroups.text(path, QUOTA) for path in (*TREE, "be/free")}

        def quotas() -> list[str]:
            return [cgroups.text(path, QUOTA).split()[0] for path in ("be", "be/pod", "be/pod/c1", "be/pod/c2")]

        writer = writer_of(cgroups, journal)
        for now_ns, (quota, cut) in enumerate(
            [
                (60_000, ["60000", "40000", "30000", "10000"]),
                (20_000, ["20000", "20000", "20000", "10000"]),
                (5_000, ["5000", "5000", "5000", "5000"]),
                (35_000, ["35000", "35000", "30000", "10000"]),
                (None, ["-1", "40000", "30000", "10000"]),
            ]
        ):
            report = writer.apply(desired(cgroups, ("be", QUOTA, quota)), now_ns)
            assert set(results(report)) == {WriteResult.WRITTEN}
            if cgroups.version == 1:
                assert quotas() == cut
            else:  # the kernel takes the less of both
                assert quotas() == ["max" if quota is None else str(quota), "40000", "30000", "10000"]
            if now_ns == 2:
                # A successor knows from the journal what they were.
                writer = writer_of(cgroups, journal)
        assert restore_all(cgroups, journal) == []
        assert {path: cgroups.text(path, QUOTA) for path in (*TREE, "be/free")} == before

    def test_a_quota_that_others_give_in_the_meantime_is_the_cgroups_own(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        for path in ("be", "be/pod"):
            cgroups.make(path)
        cgroups.put("be/pod", QUOTA, "40000")
        writer = writer_of(cgroups, journal)
        writer.apply(desired(cgroups, ("be", QUOTA, 20_000)), 0)
        cgroups.put("be/pod", QUOTA, "15000")  # a resize
        writer.apply(desired(cgroups, ("be", QUOTA, 30_000)), 1)
        assert cgroups.text("be/pod", QUOTA).startswith("15000")
        assert restore_all(cgroups, journal) == []
        assert cgroups.text("be/pod", QUOTA).startswith("15000")

    def test_a_cut_is_by_the_share_of_the_period(self, cgroups: Cgroups, journal: Journal) -> None:
        if cgroups.version == 2:
            pytest.skip(f"{OTHER_MACHINE}on v2 no quota is cut")
        for path in ("be", "be/pod"):
            cgroups.make(path)
        cgroups.put("be/pod", CgroupFile.CPU_PERIOD, "50000")
        cgroups.put("be/pod", QUOTA, "25000")
        writer_of(cgroups, journal).apply(desired(cgroups, ("be", QUOTA, 20_000)), 0)
        assert (cgroups.text("be", QUOTA), cgroups.text("be/pod", QUOTA)) == ("20000\n", "10000\n")

    def test_a_cpu_that_is_not_there_is_refused(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        report = writer_of(cgroups, journal).apply(desired(cgroups, ("", CPUS, frozenset({8191}))), 0)
        (change,) = report.changes
        assert change.result in (WriteResult.REFUSED, WriteResult.BLOCKED)

    def test_a_file_that_the_kernel_has_not_is_unsupported(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        writer = writer_of(cgroups, journal)
        # No memory.high on v1; on v2 no cgroup of these has the memory controller.
        wanted = desired(cgroups, ("be", CgroupFile.MEMORY_HIGH, None))
        assert results(writer.apply(wanted, 0)) == [WriteResult.UNSUPPORTED]
        assert results(writer.apply(wanted, 1)) == []

    def test_what_cannot_be_journalled_is_not_written(self, cgroups: Cgroups, tmp_path: Path) -> None:
        cgroups.make("be")
        before = cgroups.text("be", QUOTA)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                with Journal(tmp_path / "journal") as journal:
                    size = (tmp_path / "journal").stat().st_size
                    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, size + 10))
                    report = writer_of(cgroups, journal).apply(desired(cgroups, ("be", QUOTA, 50_000)), 0)
                    held = [(change.result, "could not be put on record" in change.detail) for change in report.changes]
                    code = 0 if held == [(WriteResult.HELD, True)] and not journal.originals else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert cgroups.text("be", QUOTA) == before


class TestVanishing:
    def test_a_cgroup_removed_between_two_levels_is_gone_and_the_others_are_written(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        first, second = two_cpus()
        be_tree(cgroups, frozenset({first}))
        cgroups.put("", CPUS, format_cpu_list((first, second)))

        def remove_the_last(change: FileChange) -> None:
            if change.path == str(cgroups.file("be/pod", CPUS)) and not change.is_final:
                cgroups.remove("be/pod/c2")

        writer = writer_of(cgroups, journal, audit=remove_the_last)
        wanted = desired(cgroups, *((path, CPUS, frozenset({second})) for path in TREE))
        report = writer.apply(wanted, 0)
        gone = [change.path for change in report.changes if change.result is WriteResult.GONE]
        assert gone == [str(cgroups.file("be/pod/c2", CPUS))]
        assert {cgroups.text(path, CPUS) for path in TREE if path != "be/pod/c2"} == {f"{second}\n"}
        assert results(writer.apply(wanted, 1)) == []

    def test_one_that_is_made_again_between_two_levels_is_left_alone(self, cgroups: Cgroups, journal: Journal) -> None:
        for path, quota in (("be", "20000"), ("be/pod", "10000")):
            cgroups.make(path)
            cgroups.put(path, QUOTA, quota)

        def make_again(change: FileChange) -> None:
            if change.path == str(cgroups.file("be", QUOTA)):
                cgroups.remove("be/pod")
                cgroups.make("be/pod")
                cgroups.put("be/pod", QUOTA, "30000")

        writer = writer_of(cgroups, journal, audit=make_again)
        report = writer.apply(desired(cgroups, ("be", QUOTA, 50_000), ("be/pod", QUOTA, 40_000)), 0)
        assert [(change.path, change.result) for change in report.changes] == [
            (str(cgroups.file("be", QUOTA)), WriteResult.WRITTEN),
            (str(cgroups.file("be/pod", QUOTA)), WriteResult.GONE),
        ]
        assert cgroups.text("be/pod", QUOTA).startswith("30000")

    def test_one_of_the_same_name_is_another_cgroup(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        writer = writer_of(cgroups, journal)
        wanted = desired(cgroups, ("be", QUOTA, 50_000))
        writer.apply(wanted, 0)
        cgroups.remove("be")
        cgroups.make("be")
        cgroups.put("be", QUOTA, "70000")
        # No correction is undone here: this file was never written.
        (change,) = writer.apply(wanted, REFRESH_NS).changes
        assert (change.old, change.is_correction) == ("70000" if cgroups.version == 1 else "70000 100000", False)
        assert restore_all(cgroups, journal) == []
        assert cgroups.text("be", QUOTA).startswith("70000")

    def test_a_removed_cgroup_leaves_the_journal(self, cgroups: Cgroups, journal: Journal) -> None:
        for path in ("be", "be/pod"):
            cgroups.make(path)
        writer = writer_of(cgroups, journal)
        writer.apply(desired(cgroups, ("be", QUOTA, 50_000), ("be/pod", QUOTA, 20_000)), 0)
        assert len(journal.originals) == 2
        cgroups.remove("be/pod")
        writer.apply(desired(cgroups, ("be", QUOTA, 50_000)), 60 * NS_PER_S)
        assert list(journal.originals) == [(cgroups.path("be"), QUOTA)]

    def test_the_journal_of_a_removed_cgroup_is_not_written_to_its_namesake(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        cgroups.make("be")
        writer_of(cgroups, journal).apply(desired(cgroups, ("be", QUOTA, 50_000)), 0)
        cgroups.remove("be")
        cgroups.make("be")
        cgroups.put("be", QUOTA, "70000")
        assert [change.result for change in restore_all(cgroups, journal)] == [WriteResult.GONE]
        assert cgroups.text("be", QUOTA).startswith("70000")
        assert not journal.originals


class TestKeptOpen:
    def test_what_is_looked_at_again_is_kept_open_until_it_is_restored(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        cgroups.make("be")
        writer = writer_of(cgroups, journal)
        before = open_files(cgroups)
        for look in range(3):
            writer.apply(desired(cgroups, ("be", SHARES, 2)), look * REFRESH_NS)
        assert open_files(cgroups) == before + 1
        cgroups.put("be", SHARES, "50")
        report = writer.apply(desired(cgroups, ("be", SHARES, 2)), 3 * REFRESH_NS)
        assert [change.is_correction for change in report.changes] == [True]
        writer.restore(3 * REFRESH_NS)
        assert open_files(cgroups) == before

    def test_a_cgroup_that_is_made_again_is_opened_again(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        writer = writer_of(cgroups, journal)
        for look in range(3):
            writer.apply(desired(cgroups, ("be", SHARES, 2)), look * REFRESH_NS)
        cgroups.remove("be")
        cgroups.make("be")
        assert cgroups.text("be", SHARES) != text_of_two_shares(cgroups)
        writer.apply(desired(cgroups, ("be", SHARES, 2)), 3 * REFRESH_NS)
        assert cgroups.text("be", SHARES) == text_of_two_shares(cgroups)


def open_files(cgroups: Cgroups) -> int:
    links = list(Path("/proc/self/fd").iterdir())
    return sum(f"/{cgroups.name}/" in str(link.readlink()) for link in links if link.is_symlink())


def text_of_two_shares(cgroups: Cgroups) -> str:
    return "2\n" if cgroups.version == 1 else "1\n"


class TestOthers:
    def test_a_file_that_is_reset_each_time_is_corrected_so_often_and_then_left(
        self, cgroups: Cgroups, journal: Journal
    ) -> None:
        cgroups.make("be")
        settings = WriterSettings(refresh_ns=REFRESH_NS, foreign=ForeignPolicy(corrections_per_hour=3))
        writer = writer_of(cgroups, journal, settings=settings)
        wanted = desired(cgroups, ("be", QUOTA, 50_000))
        assert results(writer.apply(wanted, 0)) == [WriteResult.WRITTEN]
        seen = []
        for number in range(1, 60):
            cgroups.put("be", QUOTA, "80000")
            seen += writer.apply(wanted, number * REFRESH_NS).changes
        assert [(change.result, change.is_correction) for change in seen] == [
            *[(WriteResult.WRITTEN, True)] * 3,
            (WriteResult.YIELDED, False),
        ]
        assert "another process" in seen[-1].detail
        assert list(writer.yielded) == [(cgroups.path("be"), QUOTA)]
        assert cgroups.text("be", QUOTA).startswith("80000")
        # It is theirs: there is nothing to restore.
        assert not journal.originals
        # An hour later it is tried again, and what they wrote is what they get back.
        assert results(writer.apply(wanted, 70 * REFRESH_NS + HOUR_NS)) == [WriteResult.WRITTEN]
        assert restore_all(cgroups, journal) == []
        assert cgroups.text("be", QUOTA).startswith("80000")

    def test_with_no_corrections_the_first_change_of_others_stands(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        settings = WriterSettings(foreign=ForeignPolicy(corrections_per_hour=0))
        writer = writer_of(cgroups, journal, settings=settings)
        wanted = desired(cgroups, ("be", QUOTA, 50_000))
        writer.apply(wanted, 0)
        cgroups.put("be", QUOTA, "80000")
        assert results(writer.apply(wanted, REFRESH_NS)) == [WriteResult.YIELDED]
        assert cgroups.text("be", QUOTA).startswith("80000")

    def test_what_others_wrote_last_is_what_is_restored(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        writer = writer_of(cgroups, journal)
        wanted = desired(cgroups, ("be", QUOTA, 50_000))
        writer.apply(wanted, 0)
        cgroups.put("be", QUOTA, "80000")
        (change,) = writer.apply(wanted, REFRESH_NS).changes
        assert change.is_correction
        restore_all(cgroups, journal)
        assert cgroups.text("be", QUOTA).startswith("80000")

    def test_a_cpu_that_was_taken_away_is_no_wish_of_others(self, cgroups: Cgroups, journal: Journal) -> None:
        first, second = two_cpus()
        cgroups.make("be")
        cgroups.put("", CPUS, format_cpu_list((first, second)))
        cgroups.put("be", CPUS, str(second))
        writer = writer_of(cgroups, journal)
        wanted = desired(cgroups, ("be", CPUS, frozenset({first, second})))
        writer.apply(wanted, 0)
        cgroups.put("be", CPUS, str(first))  # as the kernel does on v1 when the second CPU goes offline
        assert results(writer.apply(wanted, REFRESH_NS)) == [WriteResult.WRITTEN]
        assert restore_all(cgroups, journal) == []
        # On v2 the kernel takes none away: there another process did.
        assert cgroups.text("be", CPUS) == f"{second if cgroups.version == 1 else first}\n"

    def test_others_who_want_the_same_are_no_others(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        writer = writer_of(cgroups, journal, settings=WriterSettings(foreign=ForeignPolicy(corrections_per_hour=0)))
        writer.apply(desired(cgroups, ("be", QUOTA, 50_000)), 0)
        cgroups.put("be", QUOTA, "80000")
        assert results(writer.apply(desired(cgroups, ("be", QUOTA, 80_000)), 1)) == []
        assert not writer.yielded
        assert restore_all(cgroups, journal) == []
        assert cgroups.text("be", QUOTA).startswith("80000")


class TestRestoring:
    def test_every_byte_is_as_before_after_any_writes(self, cgroups: Cgroups, journal: Journal) -> None:
        chance = random.Random(7)
        cpus = two_cpus()
        be_tree(cgroups, frozenset(cpus))
        cgroups.populate("be/pod/c1")
        files = [file for file in (CPUS, QUOTA, SHARES, IDLE) if cgroups.file("be", file).exists()]
        for start in range(8):
            for path in TREE:
                cgroups.put(path, SHARES, str(chance.randint(2, 10_000)))
            before = {(path, file): cgroups.text(path, file) for path in TREE for file in files}
            writer = writer_of(cgroups, journal)
            for now_ns in range(6):
                narrow = frozenset(chance.sample(cpus, chance.randint(1, 2)))
                quota = chance.choice([None, 20_000, 50_000])
                wanted: list[tuple[str, CgroupFile, Value]] = [(path, CPUS, narrow) for path in TREE]
                wanted += [(path, QUOTA, quota) for path in TREE]
                wanted += [("be", SHARES, chance.randint(2, 1000))]
                if IDLE in files:
                    wanted += [("be/pod", IDLE, chance.randint(0, 1))]
                report = writer.apply(desired(cgroups, *wanted), start * 10 + now_ns)
                assert set(results(report)) <= {WriteResult.WRITTEN}
            assert restore_all(cgroups, journal) == []
            assert {(path, file): cgroups.text(path, file) for path in TREE for file in files} == before
            assert not journal.originals

    def test_a_period_beside_the_quota_is_restored_too(self, cgroups: Cgroups, journal: Journal) -> None:
        if cgroups.version == 1:
            pytest.skip(f"{OTHER_MACHINE}on v1 the period has a file of its own")
        cgroups.make("be")
        cgroups.put("be", QUOTA, "80000 50000")
        writer_of(cgroups, journal).apply(desired(cgroups, ("be", QUOTA, 20_000)), 0)
        assert cgroups.text("be", QUOTA) == "20000 50000\n"
        cgroups.put("be", QUOTA, "20000 90000")
        assert restore_all(cgroups, journal) == []
        assert cgroups.text("be", QUOTA) == "80000 50000\n"

    def test_a_set_with_tasks_that_was_the_parents_gets_the_parents(self, cgroups: Cgroups, journal: Journal) -> None:
        if cgroups.version == 1:
            pytest.skip(f"{OTHER_MACHINE}on v1 no set is the parent's")
        first, second = two_cpus()
        cgroups.put("", CPUS, format_cpu_list((first, second)))
        for path in TREE:
            cgroups.make(path)
        pid = cgroups.populate("be/pod/c1")
        assert {cgroups.text(path, CPUS) for path in TREE} == {"\n"}
        narrow = frozenset({first})
        writer_of(cgroups, journal).apply(desired(cgroups, *((path, CPUS, narrow) for path in TREE)), 0)
        assert os.sched_getaffinity(pid) == narrow
        assert restore_all(cgroups, journal) == []
        assert os.sched_getaffinity(pid) == {first, second}
        assert {cgroups.text(path, CPUS) for path in TREE} <= {"\n", f"{format_cpu_list((first, second))}\n"}

    def test_the_writer_restores_what_it_wrote_and_audits_it(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        before = cgroups.text("be", QUOTA)
        audited: list[FileChange] = []
        writer = writer_of(cgroups, journal, audit=audited.append)
        wanted = desired(cgroups, ("be", QUOTA, 50_000))
        writer.apply(wanted, 0)
        report = writer.restore(1)
        assert (report.done, report.left) == (((cgroups.path("be"), QUOTA),), ())
        assert cgroups.text("be", QUOTA) == before
        assert [change.new for change in audited] == ["50000", before.strip()]
        assert writer.counts == {("cpu.cfs_quota_us", WriteResult.WRITTEN): 2}
        # No other process's change is seen in it.
        (change,) = writer.apply(wanted, 2).changes
        assert not change.is_correction

    def test_a_dry_run_gives_nothing_back(self, cgroups: Cgroups, journal: Journal) -> None:
        cgroups.make("be")
        writer_of(cgroups, journal).apply(desired(cgroups, ("be", QUOTA, 50_000)), 0)
        report = restore(cgroups.places, dict(journal.originals), 0)
        assert [change.result for change in report.changes] == [WriteResult.DRY_RUN]
        assert report.left == tuple(journal.originals)
        assert cgroups.text("be", QUOTA).startswith("50000")


def test_a_real_process_is_held_to_what_was_written(cgroups: Cgroups, journal: Journal) -> None:
    first, second = two_cpus()
    be_tree(cgroups, frozenset({first, second}))
    pid = cgroups.populate("be/pod/c1")
    writer = writer_of(cgroups, journal)
    for now_ns, cpu in enumerate((first, second)):
        writer.apply(desired(cgroups, *((path, CPUS, frozenset({cpu})) for path in TREE)), now_ns)
        assert os.sched_getaffinity(pid) == {cpu}
    assert restore_all(cgroups, journal) == []
    assert os.sched_getaffinity(pid) == {first, second}
