"""A limit for each device: what files of it read as, and the lines that change them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, broken_rule, format_writes, parse_value
from koordebpf.kernel.cgroup.tables import Table, format_rows, parse_table, tighter

READ_BPS, WRITE_IOPS = CgroupFile.IO_READ_BPS, CgroupFile.IO_WRITE_IOPS
IO_MAX = "8:0 rbps=2097152 wbps=max riops=max wiops=120\n8:16 rbps=max wbps=1 riops=max wiops=max\n"
# As kernels print them. What no user has set is the kernel's own choice, and no limit.
COST_QOS = (
    "8:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=4000 min=1.00 max=10000.00\n"
    "8:16 enable=0 ctrl=auto rpct=0.00 rlat=250000 wpct=0.00 wlat=250000 min=1.00 max=10000.00\n"
)
COST_MODEL = (
    "8:0 ctrl=user model=linear rbps=7 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1\n"
    "8:16 ctrl=auto model=linear rbps=174019176 rseqiops=41708 rrandiops=370 wbps=1 wseqiops=1 wrandiops=1\n"
)

tables = st.dictionaries(st.sampled_from(["8:0", "8:16", "254:0"]), st.integers(1, 9)).map(Table.of)


@pytest.mark.parametrize(
    ("file", "version", "text", "limits"),
    [
        (READ_BPS, 1, "", {}),
        (READ_BPS, 1, "8:0 1048576\n254:0 7\n", {"8:0": 1 << 20, "254:0": 7}),
        (READ_BPS, 2, IO_MAX, {"8:0": 2 << 20}),
        (WRITE_IOPS, 2, IO_MAX, {"8:0": 120}),
        (CgroupFile.IO_READ_IOPS, 2, IO_MAX, {}),
        (CgroupFile.IO_WEIGHT, 2, "default 100\n8:0 50\n", {"8:0": 50}),
        (CgroupFile.IO_WEIGHT, 1, "8:0 50\n", {"8:0": 50}),
        (CgroupFile.IO_LATENCY, 2, "8:0 target=3000\n", {"8:0": 3000}),
        (CgroupFile.IO_COST_RPCT, 2, COST_QOS, {"8:0": 95}),
        (CgroupFile.IO_COST_WLAT, 2, COST_QOS, {"8:0": 4000}),
        (CgroupFile.IO_COST_WLAT, 1, COST_QOS, {"8:0": 4000}),  # of Anolis kernels
        (CgroupFile.IO_MODEL_RBPS, 2, COST_MODEL, {"8:0": 7}),
    ],
)
def test_what_is_read(file: CgroupFile, version: int, text: str, limits: dict[str, int]) -> None:
    assert parse_value(file, version, text, "a file") == Table.of(limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["8:0\n", "8:0 x\n", "8:0 5 6\n", "8:0 -1\n", "sda 5\n8:0 x\n"])
def test_what_is_no_table(text: str) -> None:
    with pytest.raises(KernelFileError, match="pod/io"):
        parse_table(text, None, "pod/io")


@given(tables, tables, st.sampled_from([None, "rbps"]))
def test_the_lines_change_a_file_from_one_table_to_the_other(now: Table, wanted: Table, column: str | None) -> None:
    held = dict(now.rows)
    for line in format_rows(now, wanted, column):
        (device, limit), *more = parse_table(line, column, "a line").rows or [(line.split()[0], 0)]
        assert more == []
        held[device] = limit
    assert Table.of({device: limit for device, limit in held.items() if limit}) == wanted
    assert format_rows(wanted, wanted, column) == ()


@given(tables, tables)
def test_the_tighter_table_keeps_both_promises(first: Table, second: Table) -> None:
    limits = dict(tighter(first, second).rows)
    assert limits.keys() == dict(first.rows).keys() | dict(second.rows).keys()
    assert all(limits[device] <= limit for device, limit in (*first.rows, *second.rows))
    assert tighter(first, second) == tighter(second, first)


def test_each_line_is_a_write_of_its_own() -> None:
    wanted = Table.of({"8:0": 5, "8:16": 7})
    assert format_writes(READ_BPS, 1, Table(), wanted) == ("8:0 5", "8:16 7")
    assert format_writes(READ_BPS, 2, wanted, Table.of({"8:16": 7})) == ("8:0 rbps=max",)
    assert format_writes(CgroupFile.CPU_QUOTA, 1, 5000, None) == ("-1",)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (7, "must be a table"),
        (None, "must be a table"),
        (Table((("sda", 5),)), "must have devices"),
        (Table((("8:16", 5), ("8:0", 5))), "must name each device once"),
        (Table((("8:0", 5), ("8:0", 6))), "must name each device once"),
        (Table((("8:0", 0),)), "limits must be 1 to"),
    ],
)
def test_what_a_file_of_devices_cannot_hold(value: int | Table | None, rule: str) -> None:
    assert (broken_rule(READ_BPS, value) or "").startswith(rule)


def test_no_other_file_holds_a_table() -> None:
    assert broken_rule(CgroupFile.CPU_QUOTA, Table()) == "must not be a table"
    assert broken_rule(READ_BPS, Table.of({"8:0": 1})) is None


@pytest.mark.parametrize(
    ("file", "sets", "unsets"),
    [
        (CgroupFile.IO_WEIGHT, "8:0 5", "8:0 default"),
        (CgroupFile.IO_LATENCY, "8:0 target=5", "8:0 target=max"),
        (CgroupFile.IO_COST_RLAT, "8:0 enable=1 ctrl=user rlat=5", "8:0 enable=0 ctrl=auto"),
        (CgroupFile.IO_MODEL_WBPS, "8:0 ctrl=user model=linear wbps=5", "8:0 ctrl=auto"),
    ],
)
def test_a_row_is_set_and_taken_out(file: CgroupFile, sets: str, unsets: str) -> None:
    wanted = Table.of({"8:0": 5})
    assert format_writes(file, 2, Table(), wanted) == (sets,)
    assert format_writes(file, 2, wanted, Table()) == (unsets,)
    assert broken_rule(file, wanted) is None
