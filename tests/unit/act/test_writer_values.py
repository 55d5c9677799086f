"""What is wanted of files: values that are refused before the kernel sees them, sysctls, and why a write is blocked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.policy.reconcile import CgroupWrite, DesiredState, SysctlWrite, plan_writes, wanted_values
from koordebpf.units import PAGE_BYTES

CPUS = CgroupFile.CPUSET_CPUS
QUOTA = CgroupFile.CPU_QUOTA
MIN_FREE = Sysctl.MIN_FREE_KBYTES


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        ([CgroupWrite("be", QUOTA, 20)], "be/cpu.cfs_quota_us: 20: must be 1000 to"),
        ([CgroupWrite("/be", QUOTA, 2000)], "must be a path below the mount"),
        ([CgroupWrite("be/../..", QUOTA, 2000)], "must be a path below the mount"),
        ([CgroupWrite("be", QUOTA, 2000), CgroupWrite("be", QUOTA, 3000)], "must have one value, 2000 is wanted too"),
    ],
)
def test_a_value_that_cannot_be_written_is_an_error_with_its_file(writes, message):
    with pytest.raises(ConfigError, match=message):
        wanted_values(DesiredState("a test", tuple(writes)))


def test_a_sysctl_out_of_its_range_is_an_error():
    with pytest.raises(ConfigError, match=r"vm\.min_free_kbytes: 5: must be 10240 to 10485760"):
        wanted_values(DesiredState("a test", sysctls=(SysctlWrite(MIN_FREE, 5),)))


def test_what_is_desired_is_recorded_and_read_back():
    desired = DesiredState(
        "a test",
        (CgroupWrite("be", CPUS, frozenset({3, 1})), CgroupWrite("be", QUOTA, None)),
        (SysctlWrite(MIN_FREE, 70_000),),
    )
    assert msgspec.json.decode(msgspec.json.encode(desired), type=DesiredState) == desired


def test_a_block_names_the_cgroup_in_the_way_and_the_cpus():
    current = {("a", CPUS): frozenset({0, 1}), ("a/b", CPUS): frozenset({0, 1}), ("a/b/c", CPUS): frozenset({1})}
    plan = plan_writes(current, {("a/b", CPUS): frozenset({0})}, {"cpuset": 1})
    assert [(block.key, block.why) for block in plan.blocked] == [(("a/b", CPUS), "the child /a/b/c has CPU 1")]
    plan = plan_writes(current, {("a/b", CPUS): frozenset({1, 2, 3})}, {"cpuset": 1})
    assert [block.why for block in plan.blocked] == ["the parent /a has not CPU 2-3"]
    assert plan.writes == ()


def test_the_root_of_a_hierarchy_grows_before_its_children():
    before, after = frozenset({0}), frozenset({0, 1})
    plan = plan_writes(
        dict.fromkeys([("", CPUS), ("a", CPUS)], before), {("a", CPUS): after, ("", CPUS): after}, {"cpuset": 1}
    )
    assert [write.key[0] for write in plan.writes] == ["", "a"]


def test_what_could_not_be_read_is_left_out():
    assert plan_writes({}, {("a", CPUS): frozenset({0})}, {"cpuset": 1}).writes == ()


# A directory in place of /proc/sys, whose files are the machine's. Numbers of one length: a file of a disk keeps what
# is behind the last byte written.
class TestSysctl:
    @pytest.fixture
    def proc_sys(self, tmp_path: Path) -> Path:
        (tmp_path / "sys/vm").mkdir(parents=True)
        (tmp_path / "sys/vm/min_free_kbytes").write_text("67584\n")
        return tmp_path / "sys"

    def test_it_is_written_on_difference_and_restored(self, proc_sys: Path, tmp_path: Path) -> None:
        desired = DesiredState("a test", sysctls=(SysctlWrite(MIN_FREE, 70_000),))
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(Places({}, proc_sys), journal, enforce=True)
            assert not writer.is_dry_run and not writer.is_journalled
            (change,) = writer.apply(desired, 0).changes
            assert writer.is_journalled
            assert (change.result, change.old, change.new) == (WriteResult.WRITTEN, "67584", "70000")
            assert writer.apply(desired, 1).changes == ()
            assert (proc_sys / "vm/min_free_kbytes").read_text() == "70000\n"
            assert writer.restore(2).left == ()
        assert (proc_sys / "vm/min_free_kbytes").read_text() == "67584\n"

    def test_one_that_the_kernel_has_not_is_unsupported(self, proc_sys: Path) -> None:
        desired = DesiredState("a test", sysctls=(SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, 20),))
        (change,) = CgroupWriter(Places({}, proc_sys), None).apply(desired, 0).changes
        assert (change.result, change.path) == (
            WriteResult.UNSUPPORTED,
            str(proc_sys / "vm/watermark_scale_factor"),
        )


# Koordinator writes these each second on v2, since it compares what it wrote with what the kernel shows.
@pytest.mark.parametrize(
    ("name", "text", "file", "value"),
    [
        ("cpu.max", "max 100000\n", QUOTA, None),
        ("cpu.max", "20000 50000\n", QUOTA, 20_000),
        ("cpu.weight", "39\n", CgroupFile.CPU_SHARES, 1024),
        ("cpu.max.burst", "0\n", CgroupFile.CPU_BURST, 0),
        ("cpuset.cpus", "0-2,5\n", CPUS, frozenset({0, 1, 2, 5})),
        ("cpuset.cpus", "\n", CPUS, frozenset()),
        ("memory.high", "max\n", CgroupFile.MEMORY_HIGH, None),
        ("memory.low", f"{10 * PAGE_BYTES}\n", CgroupFile.MEMORY_LOW, 10 * PAGE_BYTES + 7),
    ],
)
def test_on_v2_a_file_that_shows_the_value_in_its_own_words_is_not_written(tmp_path, name, text, file, value):
    (tmp_path / "cgroup/be").mkdir(parents=True)
    path = tmp_path / "cgroup/be" / name
    path.write_text(text)
    mount = ControllerMount(2, tmp_path / "cgroup")
    with Journal(tmp_path / "journal") as journal:
        writer = CgroupWriter(Places(dict.fromkeys(("cpu", "cpuset", "memory"), mount)), journal, enforce=True)
        assert writer.apply(DesiredState("a test", (CgroupWrite("be", file, value),)), 0).changes == ()
        assert not journal.originals
    assert path.read_text() == text


def test_a_host_without_the_controller_has_no_such_file() -> None:
    desired = DesiredState("a test", (CgroupWrite("be", CPUS, frozenset({0})),))
    (change,) = CgroupWriter(Places({}), None).apply(desired, 0).changes
    assert (change.result, change.path) == (WriteResult.UNSUPPORTED, "be/cpuset.cpus")


def test_a_dry_run_has_no_file_to_restore() -> None:
    writer = CgroupWriter(Places({}), None)
    assert writer.is_dry_run and not writer.is_journalled


def test_nothing_is_enforced_without_a_journal() -> None:
    with pytest.raises(ConfigError, match="to restore them"):
        CgroupWriter(Places({}), None, enforce=True)
