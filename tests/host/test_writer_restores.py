"""What the writer restores on the running kernel: what others wrote last, and what cgroups made meanwhile get."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.restore import WAIT_S, restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import Sysctl, format_cpu_list
from koordebpf.policy.reconcile import DesiredState, SysctlWrite
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.host.provoke import MACHINE_BYTES, MIB
from tests.host.rigs.cgroups import CPUS, QUOTA, SHARES, TREE, Cgroups, be_tree, desired, two_cpus
from tests.support.patience import patience

REFRESH_NS = 10 * NS_PER_S


@pytest.fixture
def writer(cgroups: Cgroups, journal: Journal) -> CgroupWriter:
    return CgroupWriter(cgroups.places, journal, enforce=True)


class TestOthers:
    def test_what_they_wrote_since_the_last_look_stays(
        self, cgroups: Cgroups, journal: Journal, writer: CgroupWriter
    ) -> None:
        for path in ("be", "be/pod"):
            cgroups.make(path)
        before = cgroups.text("be", QUOTA)
        writer.apply(desired(cgroups, ("be", QUOTA, 50_000), ("be/pod", QUOTA, 20_000)), 0)
        cgroups.put("be/pod", QUOTA, "15000")
        report = writer.restore(1)
        assert cgroups.text("be/pod", QUOTA).startswith("15000")
        assert cgroups.text("be", QUOTA) == before
        yielded = [change.path for change in report.changes if change.result is WriteResult.YIELDED]
        assert yielded == [str(cgroups.file("be/pod", QUOTA))]
        assert not journal.originals

    def test_what_they_wrote_after_it_was_as_before_stays(self, cgroups: Cgroups, writer: CgroupWriter) -> None:
        cgroups.make("be")
        writer.apply(desired(cgroups, ("be", QUOTA, 50_000)), 0)
        writer.apply(desired(cgroups, ("be", QUOTA, None)), 1)
        writer.apply(desired(cgroups, ("be", SHARES, 2)), 2)  # the quota is not wanted any more
        cgroups.put("be", QUOTA, "70000")
        writer.restore(3)
        assert cgroups.text("be", QUOTA).startswith("70000")

    def test_it_stays_too_when_the_file_was_held_once_more(self, cgroups: Cgroups, writer: CgroupWriter) -> None:
        cgroups.make("be")
        writer.apply(desired(cgroups, ("be", QUOTA, 50_000)), 0)
        writer.apply(desired(cgroups, ("be", QUOTA, None)), 1)
        writer.apply(desired(cgroups, ("be", SHARES, 2)), 2)
        cgroups.put("be", QUOTA, "70000")
        writer.apply(desired(cgroups, ("be", QUOTA, 50_000)), 3)
        assert cgroups.text("be", QUOTA).startswith("50000")
        writer.restore(4)
        assert cgroups.text("be", QUOTA).startswith("70000")

    def test_a_quota_that_was_cut_and_is_their_own_again_is_theirs(
        self, cgroups: Cgroups, writer: CgroupWriter
    ) -> None:
        for path in ("be", "be/pod"):
            cgroups.make(path)
        cgroups.put("be/pod", QUOTA, "40000")
        for now_ns, quota in enumerate((20_000, None)):
            writer.apply(desired(cgroups, ("be", QUOTA, quota)), now_ns)
        assert cgroups.text("be/pod", QUOTA).startswith("40000")
        cgroups.put("be/pod", QUOTA, "80000")  # a resize
        writer.restore(2)
        assert cgroups.text("be/pod", QUOTA).startswith("80000")

    def test_a_cut_quota_that_they_change_twice_is_what_they_made_it_last(
        self, cgroups: Cgroups, writer: CgroupWriter
    ) -> None:
        for path in ("be", "be/pod"):
            cgroups.make(path)
        cgroups.put("be/pod", QUOTA, "40000")
        writer.apply(desired(cgroups, ("be", QUOTA, 20_000)), 0)
        for now_ns, (resized, quota) in enumerate((("15000", 21_000), ("18000", 22_000)), start=1):
            cgroups.put("be/pod", QUOTA, resized)
            writer.apply(desired(cgroups, ("be", QUOTA, quota)), now_ns)
            assert cgroups.text("be/pod", QUOTA).startswith(resized)
        writer.restore(3)
        assert cgroups.text("be/pod", QUOTA).startswith("18000")

    def test_what_they_wrote_to_a_file_that_was_refused_stays(self, cgroups: Cgroups, writer: CgroupWriter) -> None:
        if cgroups.version == 2:
            pytest.skip(f"{OTHER_MACHINE}on v2 a child may have a larger quota than its parent")
        for path in ("be", "be/pod"):
            cgroups.make(path)
        cgroups.put("be", QUOTA, "50000")
        wanted = desired(cgroups, ("be/pod", QUOTA, 60_000))
        (change,) = writer.apply(wanted, 0).changes
        assert change.result is WriteResult.REFUSED
        cgroups.put("be/pod", QUOTA, "30000")
        writer.apply(wanted, REFRESH_NS)
        writer.restore(REFRESH_NS + 1)
        assert cgroups.text("be/pod", QUOTA) == "30000\n"


def test_a_dry_run_forgets_the_cgroups_that_are_no_longer_wanted(cgroups: Cgroups) -> None:
    writer = CgroupWriter(cgroups.places, None)
    for number in range(3):
        cgroups.make(f"pod{number}")
        writer.apply(desired(cgroups, (f"pod{number}", QUOTA, 50_000)), number * 60 * NS_PER_S)
    assert list(writer.seen.last) == [(cgroups.path("pod2"), QUOTA)]


@pytest.fixture
def held(cgroups: Cgroups, writer: CgroupWriter) -> tuple[int, int]:
    """A best-effort tree of two CPUs that is held to the first of them; on v1 a cgroup is made with its parent's."""
    if cgroups.version == 2:
        pytest.skip(f"{OTHER_MACHINE}on v2 a cgroup is made without a set, which is its parent's")
    first, second = two_cpus()
    be_tree(cgroups, (first, second))
    hold(cgroups, writer, 0, first)
    return first, second


def hold(cgroups: Cgroups, writer: CgroupWriter, now_ns: int, cpu: int, *more: str) -> None:
    paths = (*TREE, *more)
    report = writer.apply(desired(cgroups, *((path, CPUS, frozenset({cpu})) for path in paths)), now_ns)
    assert {change.result for change in report.changes} <= {WriteResult.WRITTEN}
    assert {cgroups.text(path, CPUS) for path in paths} == {f"{cpu}\n"}


def create_cgroup(cgroups: Cgroups, path: str) -> None:
    """Make a cgroup as runc and kubelet do: with its parent's CPUs."""
    cgroups.make(path)
    cgroups.put(path, CPUS, cgroups.text(path.rpartition("/")[0], CPUS).strip())


class TestBorn:
    def test_what_is_born_while_those_above_are_held_gets_what_these_get(
        self, cgroups: Cgroups, journal: Journal, writer: CgroupWriter, held: tuple[int, int]
    ) -> None:
        _, second = held
        whole = format_cpu_list(held) + "\n"
        create_cgroup(cgroups, "be/pod/moved")
        hold(cgroups, writer, 1, second, "be/pod/moved")
        create_cgroup(cgroups, "be/new")
        create_cgroup(cgroups, "be/new/right")
        hold(cgroups, writer, 2, second, "be/pod/moved", "be/new", "be/new/right")
        # One that was not read yet, in a container that makes its own cgroups.
        create_cgroup(cgroups, "be/new/right/unseen")
        report = writer.restore(3)
        assert report.left == ()
        paths = (*TREE, "be/pod/moved", "be/new", "be/new/right", "be/new/right/unseen")
        assert {path: cgroups.text(path, CPUS) for path in paths} == dict.fromkeys(paths, whole)
        assert not journal.originals

    def test_one_that_had_no_cpus_yet_gets_them_too(
        self, cgroups: Cgroups, writer: CgroupWriter, held: tuple[int, int]
    ) -> None:
        first, _ = held
        cgroups.make("be/pod/early")
        hold(cgroups, writer, 1, first, "be/pod/early")
        cgroups.populate("be/pod/early")
        assert writer.restore(2).left == ()
        assert cgroups.text("be/pod/early", CPUS) == format_cpu_list(held) + "\n"

    def test_what_is_born_after_the_agent_was_killed_is_restored_by_the_journal(
        self, cgroups: Cgroups, tmp_path: Path, journal: Journal, writer: CgroupWriter, held: tuple[int, int]
    ) -> None:
        create_cgroup(cgroups, "be/late")
        create_cgroup(cgroups, "be/late/c1")
        left = tmp_path / "left.journal"
        left.write_bytes(journal.path.read_bytes())
        shown = restore_journal(left, cgroups.places, 0, dry_run=True)
        assert {change.path for change in shown.changes} == {
            str(cgroups.file(path, CPUS)) for path in (*TREE, "be/late", "be/late/c1")
        }
        assert restore_journal(left, cgroups.places, 0).left == ()
        assert cgroups.text("be/late/c1", CPUS) == format_cpu_list(held) + "\n"

    def test_a_set_of_its_own_stays(self, cgroups: Cgroups, writer: CgroupWriter, held: tuple[int, int]) -> None:
        first, second = held
        writer.restore(1)
        cgroups.put("be/pod/c1", CPUS, str(first))
        hold(cgroups, writer, 2, first)  # as it has it
        hold(cgroups, writer, 3, second)
        hold(cgroups, writer, 4, first)
        assert writer.restore(5).left == ()
        assert cgroups.text("be/pod/c1", CPUS) == f"{first}\n"
        assert cgroups.text("be/pod/c2", CPUS) == format_cpu_list(held) + "\n"


def test_a_cpu_that_is_no_more_keeps_no_pod_from_what_is_left(
    cgroups: Cgroups, journal: Journal, writer: CgroupWriter, held: tuple[int, int]
) -> None:
    # GIVEN a tree that is held WHEN the second CPU goes offline: on v1 it leaves every set, for good
    first, _ = held
    cgroups.put("", CPUS, str(first))
    report = writer.restore(1)
    assert (report.left, dict(journal.originals)) == ((), {})
    assert {cgroups.text(path, CPUS) for path in TREE} == {f"{first}\n"}


def test_a_file_whose_controller_was_turned_off_is_done_with(
    cgroups: Cgroups, journal: Journal, writer: CgroupWriter
) -> None:
    if cgroups.version == 1:
        pytest.skip(f"{OTHER_MACHINE}on v1 a controller has its files in every cgroup")
    cgroups.make("be")
    writer.apply(desired(cgroups, ("be", QUOTA, 50_000)), 0)
    quota = cgroups.file("be", QUOTA)
    (quota.parent.parent / "cgroup.subtree_control").write_text("-cpu")
    assert not quota.exists()
    report = writer.restore(1)
    assert [(change.path, change.result) for change in report.changes] == [(str(quota), WriteResult.GONE)]
    assert not report.left
    assert not journal.originals


def test_a_sysctl_that_procfs_has_renumbered_is_restored(journal: Journal, writer: CgroupWriter) -> None:
    if MACHINE_BYTES > 4096 * MIB:
        pytest.skip(f"{OTHER_MACHINE}others work on it")
    file = Path("/proc/sys/vm/watermark_scale_factor")
    before, inode = file.read_text(), file.stat().st_ino
    value = int(before) + 100
    writer.apply(DesiredState("a test", sysctls=(SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, value),)), 0)
    assert file.read_text() == f"{value}\n"
    for _ in range(20):  # as when memory is short
        Path("/proc/sys/vm/drop_caches").write_text("2")
    assert file.stat().st_ino != inode
    writer.restore(1)
    assert file.read_text() == before
    assert not journal.originals


def test_a_quota_above_a_cgroup_that_was_just_removed_is_restored(cgroups: Cgroups, journal: Journal) -> None:
    if cgroups.version != 1:
        pytest.skip(f"{OTHER_MACHINE}of v2 no quota is refused for one below it")
    for _ in range(20):
        for path in ("pod", "pod/c"):
            cgroups.make(path)
            cgroups.put(path, QUOTA, "5000")
        writer = CgroupWriter(cgroups.places, journal, enforce=True)
        writer.apply(desired(cgroups, ("pod", QUOTA, 15_000), ("pod/c", QUOTA, 15_000)), 0)
        cgroups.remove("pod/c")
        assert writer.restore(1, wait_s=WAIT_S).left == ()
        assert cgroups.text("pod", QUOTA) == "5000\n"
        cgroups.remove("pod")


def test_one_that_stays_refused_is_waited_for_only_so_long(cgroups: Cgroups, journal: Journal) -> None:
    if cgroups.version != 1:
        pytest.skip(f"{OTHER_MACHINE}of v2 no quota is refused for one below it")
    cgroups.make("pod")
    cgroups.put("pod", QUOTA, "5000")
    writer = CgroupWriter(cgroups.places, journal, enforce=True)
    writer.apply(desired(cgroups, ("pod", QUOTA, 15_000)), 0)
    cgroups.make("pod/c")
    cgroups.put("pod/c", QUOTA, "15000")
    for wait_s in (0, WAIT_S):
        since_s = time.monotonic()
        (left,) = writer.restore(1, wait_s=wait_s).left
        assert left[0].endswith("/pod")
        assert wait_s <= time.monotonic() - since_s < wait_s + patience(5)
