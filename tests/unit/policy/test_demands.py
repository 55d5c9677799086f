"""What several strategies together want of a file."""

from __future__ import annotations

import pytest

from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl, Value
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile import CgroupWrite, Demand, DesiredState, SysctlWrite, joined, owners_of, wanted_values

QUOTA, HIGH, FREEZE = CgroupFile.CPU_QUOTA, CgroupFile.MEMORY_HIGH, CgroupFile.FREEZE


def wants(file: CgroupFile, value: Value, path: str = "be/pod") -> DesiredState:
    return DesiredState("a test", (CgroupWrite(path, file, value),))


@pytest.mark.parametrize(
    ("file", "first", "second", "value", "winner"),
    [
        (QUOTA, 10_000, 50_000, 10_000, "a"),
        (QUOTA, 50_000, 10_000, 10_000, "b"),
        (QUOTA, None, 10_000, 10_000, "b"),
        (QUOTA, 10_000, None, 10_000, "a"),
        (HIGH, 4096, 8192, 4096, "a"),
        (FREEZE, 0, 1, 1, "b"),
        (FREEZE, 1, 0, 1, "a"),
    ],
)
def test_the_tightest_limit_wins_and_a_freeze_before_a_thaw(
    file: CgroupFile, first: Value, second: Value, value: Value, winner: str
):
    (demand,) = joined({"a": wants(file, first), "b": wants(file, second)}).values()
    assert demand.value == value
    assert demand.owners[0] == winner
    assert set(demand.owners) == {"a", "b"}


def test_of_two_tables_the_lower_limit_of_each_device_wins():
    file = CgroupFile.IO_READ_BPS
    first, second = (wants(file, Table.of(limits)) for limits in ({"8:0": 5, "8:16": 9}, {"8:0": 7, "8:32": 1}))
    assert joined({"a": first, "b": second}) == {
        ("be/pod", file): Demand(Table.of({"8:0": 5, "8:16": 9, "8:32": 1}), ("a", "b"))
    }


def test_the_same_value_has_both_owners():
    assert joined({"a": wants(QUOTA, 10_000), "b": wants(QUOTA, 10_000)}) == {
        ("be/pod", QUOTA): Demand(10_000, ("a", "b"))
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (wants(CgroupFile.CPUSET_CPUS, frozenset({0})), wants(CgroupFile.CPUSET_CPUS, frozenset({1}))),
        (wants(CgroupFile.CPU_SHARES, 1024), wants(CgroupFile.CPU_SHARES, 2)),
        (
            DesiredState("", (), (SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, 10),)),
            DesiredState("", (), (SysctlWrite(Sysctl.WATERMARK_SCALE_FACTOR, 20),)),
        ),
    ],
)
def test_a_file_of_another_kind_is_the_first_strategys(one: DesiredState, other: DesiredState):
    ((key, value),) = wanted_values(one).items()
    assert joined({"a": one, "b": other}) == {key: Demand(value, ("a", "b"))}


def test_a_quota_that_is_cut_has_the_owners_of_the_one_above():
    demands = joined({"a": wants(QUOTA, 10_000, "be"), "b": wants(QUOTA, 20_000, "be/other")})
    assert owners_of(("be/pod/c1", QUOTA), demands) == ("a",)
    assert owners_of(("be/other/c1", QUOTA), demands) == ("b",)
    assert owners_of(("prod", QUOTA), demands) == ()
    assert owners_of(("be/pod", FREEZE), demands) == ()
