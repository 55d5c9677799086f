"""Limits by key in one cgroup file: a row for each device, as in blkio.throttle.* and io.max.

Source:  Documentation/admin-guide/cgroup-v2.rst, "Format": flat keyed and nested keyed files;
         Documentation/admin-guide/cgroup-v1/blkio-controller.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from koordebpf.errors import KernelFileError

_DEVICE = re.compile(r"[0-9]{1,9}:[0-9]{1,9}")
MAX_ROWS = 4096  # more devices than a machine has; annotations and configuration have such tables too


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


def tighter(first: Table, second: Table) -> Table:
    """Return the table with the lower limit of each device."""
    limits = dict(first.rows)
    for device, limit in second.rows:
        limits[device] = min(limit, limits.get(device, limit))
    return Table.of(limits)


def broken_table_rule(table: Table, minimum: int, maximum: int) -> str | None:
    """Return the rule that the table breaks, None where it may be written."""
    if table != Table.of(table.rows) or len(table.rows) > MAX_ROWS:
        return f"must name each device once, in ascending order, and no more than {MAX_ROWS}"
    if not all(_DEVICE.fullmatch(device) for device, _ in table.rows):
        return "must have devices as major:minor"
    if not all(minimum <= limit <= maximum for _, limit in table.rows):
        return f"limits must be {minimum} to {maximum}"
    return None


def parse_table(text: str, column: str | None, path: str) -> Table:
    """Return the limits that a file of this text has.

    Args:
        text: of the file.
        column: of a nested keyed file, such as rbps; None: the file is flat keyed.
        path: for the error.
    Raises:  KernelFileError: not such a file.
    """
    limits: dict[str, int] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        device, *words = line.split()
        if column is None:
            value = words[0] if len(words) == 1 else None
        else:
            columns = dict(word.partition("=")[::2] for word in words)
            value = columns.get(column, "max")
        if not _DEVICE.fullmatch(device) or value is None or not (value == "max" or value.isdecimal()):
            raise KernelFileError(path, text, "must have a device and its limit in each line")
        if value != "max" and (limit := int(value)):
            limits[device] = limit
    return Table.of(limits)


def format_rows(now: Table, wanted: Table, column: str | None) -> tuple[str, ...]:
    """Return the lines that change a file from one table to another; the kernel takes one in each write(2).

    >>> format_rows(Table.of({"8:0": 5, "8:16": 7}), Table.of({"8:0": 9}), "rbps")
    ('8:0 rbps=9', '8:16 rbps=max')
    >>> format_rows(Table(), Table.of({"8:0": 9}), None)
    ('8:0 9',)
    """
    before, after = dict(now.rows), dict(wanted.rows)
    changed = sorted(device for device in before.keys() | after.keys() if before.get(device) != after.get(device))
    if column is None:
        return tuple(f"{device} {after.get(device, 0)}" for device in changed)
    return tuple(f"{device} {column}={after.get(device, 'max')}" for device in changed)
