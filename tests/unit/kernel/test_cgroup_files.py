"""Names and formats of the files that are written, on cgroup v1 and v2."""

from __future__ import annotations

import pytest

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import (
    CgroupFile,
    Sysctl,
    broken_rule,
    broken_sysctl_rule,
    file_name,
    format_cpu_list,
    format_value,
    parse_cpu_list,
    parse_value,
    settled,
    shares_of_weight,
    weight_of_shares,
)
from koordebpf.units import PAGE_BYTES

CPUS = CgroupFile.CPUSET_CPUS
QUOTA = CgroupFile.CPU_QUOTA
SHARES = CgroupFile.CPU_SHARES
HIGH = CgroupFile.MEMORY_HIGH
LIMIT = CgroupFile.MEMORY_LIMIT
SOFT = CgroupFile.MEMORY_SOFT_LIMIT


@pytest.mark.parametrize(
    ("file", "v1", "v2"),
    [
        (CPUS, "cpuset.cpus", "cpuset.cpus"),
        (QUOTA, "cpu.cfs_quota_us", "cpu.max"),
        (SHARES, "cpu.shares", "cpu.weight"),
        (CgroupFile.CPU_BURST, "cpu.cfs_burst_us", "cpu.max.burst"),
        (LIMIT, "memory.limit_in_bytes", "memory.max"),
        (HIGH, None, "memory.high"),
        (SOFT, "memory.soft_limit_in_bytes", None),
        (CgroupFile.MEMORY_WMARK_RATIO, "memory.wmark_ratio", "memory.wmark_ratio"),
        (CgroupFile.MEMORY_PRIORITY, "memory.priority", "memory.priority"),
        (CgroupFile.MEMORY_PAGECACHE_SIZE, None, "memory.pagecache_limit.size"),
    ],
)
def test_names(file, v1, v2):
    assert (file_name(file, 1), file_name(file, 2)) == (v1, v2)


@pytest.mark.parametrize(
    ("file", "version", "value", "text"),
    [
        (CPUS, 1, frozenset({0, 1, 2, 5}), "0-2,5"),
        (CPUS, 1, frozenset(), "\n"),  # write(2) of no bytes would not reach the kernel
        (QUOTA, 1, None, "-1"),
        (QUOTA, 2, None, "max"),
        (QUOTA, 2, 20_000, "20000"),
        (SHARES, 1, 1024, "1024"),
        (SHARES, 2, 1024, "39"),
        (SHARES, 2, 2, "1"),
        (SHARES, 2, 262_144, "10000"),
        (HIGH, 2, None, "max"),
        (HIGH, 2, 3 * PAGE_BYTES + 5, str(3 * PAGE_BYTES)),
        (LIMIT, 1, None, "-1"),
        (SOFT, 1, None, "-1"),
        (SOFT, 1, 3 * PAGE_BYTES + 5, str(3 * PAGE_BYTES)),
        (CgroupFile.MEMORY_WMARK_MIN_ADJ, 2, -25, "-25"),
    ],
)
def test_what_is_written(file, version, value, text):
    assert format_value(file, version, value) == text


@pytest.mark.parametrize(
    ("file", "version", "text", "value"),
    [
        (CPUS, 2, "\n", frozenset()),
        (CPUS, 1, "0-2,5\n", frozenset({0, 1, 2, 5})),
        (QUOTA, 1, "-1\n", None),
        (QUOTA, 2, "max 100000\n", None),
        (QUOTA, 2, "20000 100000\n", 20_000),
        (SHARES, 1, "1024\n", 1024),
        (SHARES, 2, "39\n", 999),
        (SHARES, 2, "0\n", 3),  # idle
        (LIMIT, 1, "9223372036854771712\n", None),
        (SOFT, 1, "9223372036854771712\n", None),
        (SOFT, 1, "0\n", 0),
        (CgroupFile.MEMORY_WMARK_MIN_ADJ, 2, "-25\n", -25),
        (LIMIT, 2, "max\n", None),
        (LIMIT, 1, "4096\n", 4096),
    ],
)
def test_what_is_read(file, version, text, value):
    assert parse_value(file, version, text, "a file") == value


@pytest.mark.parametrize("file", [QUOTA, SHARES, HIGH, LIMIT])
@pytest.mark.parametrize("text", ["", "\n", "much\n", "0x10\n", "1_0\n", "²\n", f"{1 << 64}\n"])
def test_garbage_names_the_file(file, text):
    with pytest.raises(KernelFileError, match="cgroup/file"):
        parse_value(file, 2, text, "cgroup/file")


@pytest.mark.parametrize("text", ["a", "0-", "-3", "3-1", "0-8192", "9999999999", "0-1-2", "²", "1٣", "0-8191,0"])
def test_what_is_no_list_of_cpus(text):
    with pytest.raises(KernelFileError, match="list of CPUs"):
        parse_cpu_list(text, "a file")


@pytest.mark.parametrize("text", ["", "0", "0-8191", "1,3,5-7,4095"])
def test_a_list_of_cpus_is_printed_as_it_was_read(text):
    assert format_cpu_list(parse_cpu_list(text, "a file")) == text


def test_a_weight_comes_back_as_itself_and_shares_as_the_least_of_the_same_weight():
    for weight in range(1, 10_001):
        shares = shares_of_weight(weight)
        assert weight_of_shares(shares) == weight
        assert weight == 1 or weight_of_shares(shares - 1) == weight - 1


def test_limits_are_whole_pages():
    assert settled(HIGH, 2, 10 * PAGE_BYTES + 1) == 10 * PAGE_BYTES
    assert settled(LIMIT, 1, (1 << 63) - 1) is None


@pytest.mark.parametrize(
    ("file", "value", "rule"),
    [
        (QUOTA, 999, "must be 1000 to"),
        (QUOTA, frozenset({1}), "must be a number"),
        (SHARES, 1, "must be 2 to 262144"),
        (SHARES, None, "must have a value"),
        (CPUS, 3, "must be a set of CPUs"),
        (CPUS, None, "must have a value"),
        (CPUS, frozenset({8192}), "CPUs must be 0 to 8191"),
        (CgroupFile.CPU_IDLE, 2, "must be 0 to 1"),
        (HIGH, -1, "must be 0 to"),
    ],
)
def test_what_a_file_cannot_hold(file, value, rule):
    assert (broken_rule(file, value) or "").startswith(rule)


def test_what_a_file_can_hold():
    assert broken_rule(QUOTA, None) is None
    assert broken_rule(QUOTA, 1000) is None
    assert broken_rule(CPUS, frozenset()) is None
    assert broken_sysctl_rule(Sysctl.WATERMARK_SCALE_FACTOR, 400) is None
    assert broken_sysctl_rule(Sysctl.WATERMARK_SCALE_FACTOR, 401) == "must be 10 to 400"
