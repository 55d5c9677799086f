"""Cgroup files with a row for each key: limits for each device, as in blkio.throttle.* and io.max; memory.numa_stat.

Source:  Documentation/admin-guide/cgroup-v2.rst, "Format": flat keyed and nested keyed files;
         Documentation/admin-guide/cgroup-v1/blkio-controller.rst.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

import msgspec

from koordebpf.kernel.io.table import amount_or_none, columns, field, first_of_each, is_number, nested, raw, report_odd
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.units import PAGE_BYTES

_NODE = re.compile(rb"N([0-9]{1,9})")
# Rows of what is no page cache. v1 counts pages of its LRU lists, with tmpfs among the anonymous ones.
_ROWS = {1: (b"hierarchical_anon", b"hierarchical_unevictable"), 2: (b"anon", b"shmem")}
_DEVICE = re.compile(r"[0-9]{1,9}:[0-9]{1,9}")
_LIMIT = re.compile(rb"([0-9]{1,20})(?:\.[0-9]{1,2})?")  # io.cost.qos prints percents as 95.00
_MOST_LIMIT = (1 << 64) - 1  # of 64 bits, as the kernel keeps it
MAX_ROWS = 4096  # more devices than a machine has; annotations and configuration have such tables too


def numa_held(directory: Path, version: Literal[1, 2]) -> dict[int, int]:
    """Return the bytes that are not page cache, by NUMA node; none where the kernel has no such file.

    Raises:  CgroupGone: the cgroup was removed. OSError: it cannot be read.
    Source:  mm/memcontrol.c, memory_numa_stat_show (v2, since Linux 5.9); memcg_numa_stat_show (v1).
    """
    held: dict[int, int] = {}
    unit = PAGE_BYTES if version == 1 else 1
    path = directory / "memory.numa_stat"
    try:
        data = read_kernel_file(path).data
    except FileNotFoundError:
        return held
    seen = set()
    for first, words in nested(data):
        name, equals, whole = first.partition(b"=")  # v1 has the sum of the nodes behind the name
        if name not in _ROWS[version]:
            continue
        nodes = {found[1]: amount for node, amount in columns(words).items() if (found := _NODE.fullmatch(node))}
        amounts = {int(node): size for node, each in nodes.items() if (size := amount_or_none(each, unit)) is not None}
        has_form = is_number(whole) if version == 1 else not equals
        if name in seen or not has_form or not 0 < len(amounts) == len(words):
            report_odd(path, first)
            continue
        seen.add(name)
        for number, size in amounts.items():
            held[number] = held.get(number, 0) + size
    return held


class Table(msgspec.Struct, frozen=True, gc=False):
    """Device, as major:minor, → limit. What is not there has no limit.

    Shape:   ascending by device as text, each once.
    """

    rows: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, limits: Mapping[str, int] | Iterable[tuple[str, int]]) -> Self:
        """Return the table of these limits."""
        return cls(tuple(sorted(dict(limits).items())))

    def __str__(self) -> str:
        return ", ".join(f"{device} {limit}" for device, limit in self.rows) or "no limit"


class Rows(msgspec.Struct, frozen=True):
    """How the rows of a file are written: `column`, `beside` and `unset` as `format_rows` takes them."""

    column: str | None = None
    beside: str = ""
    unset: str | None = None


def tighter(first: Table, second: Table) -> Table:
    """Return the table with the lower limit of each device."""
    limits = dict(first.rows)
    for device, limit in second.rows:
        limits[device] = min(limit, limits.get(device, limit))
    return Table.of(limits)


def overlaid(before: Table, wanted: Table, *, takes_lower: bool) -> Table:
    """Return the rows of a file that had `before`, with the wanted ones; `takes_lower`: of two limits of one device.

    >>> print(overlaid(Table.of({"8:0": 5, "8:16": 5}), Table.of({"8:0": 9, "8:32": 9}), takes_lower=True))
    8:0 5, 8:16 5, 8:32 9
    """
    limits = dict(before.rows)
    for device, limit in wanted.rows:
        limits[device] = min(limit, limits.get(device, limit)) if takes_lower else limit
    return Table.of(limits)


def with_changes(table: Table, before: Table, after: Table) -> Table:
    """Return the table with those rows that `after` has otherwise than `before`, or no longer has.

    >>> print(with_changes(Table.of({"8:0": 5}), Table.of({"8:0": 5, "8:16": 7}), Table.of({"8:16": 7, "8:32": 9})))
    8:32 9
    """
    limits, was, now = dict(table.rows), dict(before.rows), dict(after.rows)
    for device in was.keys() | now.keys():
        if was.get(device) == now.get(device):
            continue
        if device in now:
            limits[device] = now[device]
        else:
            limits.pop(device, None)
    return Table.of(limits)


def differing(first: Table, second: Table) -> frozenset[str]:
    """Return the devices that have other rows in one table than in the other.

    >>> sorted(differing(Table.of({"8:0": 5, "8:16": 7}), Table.of({"8:16": 7, "8:32": 9})))
    ['8:0', '8:32']
    """
    return frozenset(device for device, _ in set(first.rows) ^ set(second.rows))


def with_rows(table: Table, other: Table, devices: Collection[str]) -> Table:
    """Return the table with the rows that another one has of these devices, or has not.

    >>> print(with_rows(Table.of({"8:0": 5, "8:16": 7, "8:32": 9}), Table.of({"8:0": 6, "8:48": 1}), ["8:0", "8:16"]))
    8:0 6, 8:32 9
    """
    limits = {device: limit for device, limit in table.rows if device not in devices}
    return Table.of(limits | {device: limit for device, limit in other.rows if device in devices})


def broken_table_rule(table: Table, minimum: int, maximum: int) -> str | None:
    """Return the rule that the table breaks, None where it may be written."""
    if table != Table.of(table.rows) or len(table.rows) > MAX_ROWS:
        return f"must name each device once, in ascending order, and no more than {MAX_ROWS}"
    if not all(_DEVICE.fullmatch(device) for device, _ in table.rows):
        return "must have devices as major:minor"
    if not all(minimum <= limit <= maximum for _, limit in table.rows):
        return f"limits must be {minimum} to {maximum}"
    return None


def parse_table(text: str, column: str | None, path: str, beside: str = "") -> Table:
    """Return the limits that a file of this text has.

    Args:
        text: of the file.
        column: of a nested keyed file, such as rbps; None: the file is flat keyed.
        path: for the error.
        beside: words that a row has which counts, such as enable=1; the others have no limit.
    Raises:  KernelFileError: the only row of a device has no limit.
    """
    found = _devices(raw(text), frozenset(raw(beside).split()), None if column is None else raw(column))
    limits = first_of_each(path, found, "must have a device and its limit in each line")
    return Table.of({device: limit for device, limit in limits.items() if limit})


def _devices(data: bytes, needed: frozenset[bytes], column: bytes | None) -> Iterator[tuple[str, int | None, bytes]]:
    for key, words in nested(data):
        # The row `default` is that of devices that have none of their own. A name of another form is no device.
        device = field(key)
        if _DEVICE.fullmatch(device) and needed <= set(words):
            yield device, _limit(words, column), b" ".join((key, *words))


# 0: none; None: the row has another form.
def _limit(words: list[bytes], column: bytes | None) -> int | None:
    if column is None:
        value = words[0] if len(words) == 1 else b""
    else:
        value = columns(words).get(column, b"max") if words and all(b"=" in word for word in words) else b""
    if value == b"max":
        return 0
    return amount_or_none(found[1], most=_MOST_LIMIT) if (found := _LIMIT.fullmatch(value)) else None


def format_rows(
    now: Table, wanted: Table, column: str | None, beside: str = "", unset: str | None = None
) -> tuple[str, ...]:
    """Return the lines that change a file from one table to another; the kernel takes one in each write(2).

    `beside` are words that go into each row with a limit, `unset` is a row without; None: 0, or `max` in the column.

    >>> format_rows(Table.of({"8:0": 5, "8:16": 7}), Table.of({"8:0": 9}), "rbps")
    ('8:0 rbps=9', '8:16 rbps=max')
    >>> format_rows(Table(), Table.of({"8:0": 9}), None)
    ('8:0 9',)
    """
    before, after = dict(now.rows), dict(wanted.rows)
    changed = sorted(device for device in before.keys() | after.keys() if before.get(device) != after.get(device))
    prefix = " ".join(filter(None, (beside, "" if column is None else f"{column}=")))
    if unset is None:
        unset = "0" if column is None else f"{column}=max"
    return tuple(f"{device} {prefix}{after[device]}" if device in after else f"{device} {unset}" for device in changed)
