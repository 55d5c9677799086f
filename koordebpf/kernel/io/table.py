r"""Tables of the kernel as text: flat keyed and nested keyed files, each read by this module alone.

A row ends at its line feed, and at no other byte. A row of a key that is not read is passed over, whatever it holds. Of
two rows of one key the first counts. A row that is read and has another form is reported, by the name of its file in
`koordebpf_odd_kernel_rows_total` and once in the log; it is an error only where no good row has that key.
A counter that ran backwards is reported in the same way (`Rising`).

Source:  Documentation/admin-guide/cgroup-v2.rst, "Format". Tables of mounts have a reader of their own.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from os.path import basename
from pathlib import Path
from typing import TypeVar

import msgspec

from koordebpf.errors import KernelFileError

log = logging.getLogger("koordebpf")
K = TypeVar("K")
V = TypeVar("V")

_ABSENT = frozenset({errno.ENOENT, errno.ENODEV})  # ENODEV: it went offline while the file was open
_MOST_DIGITS = 20  # of 64 bits
# Why 1 EiB: more is a counter that went below zero; sums of several, and what is written of them, stay in 63 bits.
MOST = 1 << 60
RAN_BACKWARDS = "a counter ran backwards, and what it gained is not known"
_MOST_LOGGED = 100  # files, each once; beyond them the metric alone has them


def rows(data: bytes) -> list[bytes]:
    r"""Return the rows of a table, without empty ones.

    >>> rows(b"a 1\nb\r2\n")
    [b'a 1', b'b\r2']
    """
    return [row for row in data.split(b"\n") if row]


def field(data: bytes) -> str:
    """Return a field as text, from which `raw` returns the same bytes."""
    return data.decode(errors="surrogateescape")


def raw(text: str) -> bytes:
    """Return the bytes of a text that `field` returned."""
    return text.encode(errors="surrogateescape")


def shown(data: bytes) -> str:
    """Return bytes for a sentence."""
    return data.decode(errors="backslashreplace")


def is_number(data: bytes) -> bool:
    """Tell whether a field is a whole number as the kernel prints one, of 64 bits and without a sign."""
    return data.isdigit() and len(data) <= _MOST_DIGITS


def amount_or_none(data: bytes, factor: int = 1, most: int = MOST) -> int | None:
    """Return a number times `factor`; None: the field has another form, or the product is above `most`.

    >>> [amount_or_none(each, 4096) for each in (b"2", b"-2", b"9" * 20)]
    [8192, None, None]
    """
    return value if is_number(data) and (value := int(data) * factor) <= most else None


# Files of one line.


def text_or_none(path: Path, *absent: int) -> str | None:
    """Return the file's text without blanks around it; None: there is none.

    `absent` are errnos besides ENOENT and ENODEV that mean the same.

    Raises:  OSError: any other.
    """
    try:
        return field(path.read_bytes().strip())
    except OSError as error:
        if error.errno in _ABSENT or error.errno in absent:
            return None
        raise


# Flat keyed files.


class Keyed(msgspec.Struct, frozen=True, gc=False):
    """The rows that are read of a file. `odd`: rows of the same keys that do not count, for each the key and the row.

    `sep` and `unit`: as for `keyed`.
    """

    path: Path | str
    values: dict[bytes, int]
    sep: bytes = b" "
    unit: bytes = b""
    odd: tuple[tuple[bytes, bytes], ...] = ()

    def required(self, key: bytes) -> int:
        """Return the number of a row.

        Raises:  KernelFileError: there is no such row, or none of its form.
        """
        if (value := self.optional(key)) is None:
            raise odd_row(self.path, b", ".join(self.values), self._rule(key))
        return value

    def optional(self, key: bytes) -> int | None:
        """Return the number of a row, None where there is no such row.

        Raises:  KernelFileError: there is one, and none of its form.
        """
        value = self.values.get(key)
        if value is None and self.odd:
            for name, row in self.odd:
                if name == key:
                    raise KernelFileError(str(self.path), shown(row), self._rule(key))
        return value

    def _rule(self, key: bytes) -> str:
        return f"must have a row {shown(key + self.sep).strip()} <number>{shown(self.unit)}"


def keyed(
    path: Path | str, data: bytes, wanted: Collection[bytes], sep: bytes = b" ", unit: bytes = b"", factor: int = 1
) -> Keyed:
    r"""Return the numbers of the rows that are read.

    Args:
        path: for errors and reports.
        data: of the file.
        wanted: the keys that are read.
        sep: between key and number, with any number of blanks after it.
        unit: behind the number.
        factor: by which each number is multiplied; a product above 2⁶⁰ is odd.
    Cost:    9 µs for memory.stat of cgroup v1, as a regular expression takes.

    >>> keyed("f", b"anon 7\nfile x\nanon 8\n", {b"anon"}).values
    {b'anon': 7}
    """
    values: dict[bytes, int] = {}
    odd: list[tuple[bytes, bytes]] = []
    for row in data.split(b"\n"):
        key, _, value = row.partition(sep)
        if key in wanted:
            if unit:
                value = value.lstrip(b" ").removesuffix(unit) if value.endswith(unit) else b""
            if (
                value.isdigit()
                and len(value) <= _MOST_DIGITS
                and key not in values
                and (count := int(value) * factor) <= MOST
            ):
                values[key] = count
            else:
                odd.append((key, row))
    for _, row in odd:
        report_odd(path, row)
    return Keyed(path, values, sep, unit, tuple(odd))


def number(path: Path | str, data: bytes, rule: str = "must be a whole number", most: int = MOST) -> int:
    """Return the number that a file of one number holds.

    Raises:  KernelFileError: another thing, or more than `most`.
    """
    if (value := amount_or_none(found := data.strip(), most=most)) is None:
        raise odd_row(path, found, rule)
    return value


# Nested keyed files.


def nested(data: bytes, sep: bytes = b" ") -> Iterator[tuple[bytes, list[bytes]]]:
    r"""Yield of each row its key and the words behind it.

    >>> list(nested(b"8:0 rbps=max wbps=7\n"))
    [(b'8:0', [b'rbps=max', b'wbps=7'])]
    """
    for row in data.split(b"\n"):
        words = [word for word in row.split(sep) if word]
        if words:
            yield words[0], words[1:]


def columns(words: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the columns of a row: key → value, of two with one key the first.

    >>> columns([b"rbps=1", b"rbps=2", b"x"])
    {b'rbps': b'1'}
    """
    found: dict[bytes, bytes] = {}
    for word in words:
        key, equals, value = word.partition(b"=")
        if equals:
            found.setdefault(key, value)
    return found


def first_of_each(path: Path | str, found: Iterable[tuple[K, V | None, bytes]], rule: str) -> dict[K, V]:
    """Return of each key the value of its first good row. Of each row: its key, its value (None: another form), itself.

    Raises:  KernelFileError: a key has odd rows alone; `rule` is what they break.
    """
    values: dict[K, V] = {}
    odd: dict[K, bytes] = {}
    for key, value, row in found:
        if key in values or value is None:
            odd[key] = row
            report_odd(path, row)
        else:
            values[key] = value
    for key in odd.keys() - values.keys():
        raise KernelFileError(str(path), shown(odd[key]), rule)
    return values


# What is odd.


_lock = threading.Lock()  # files are read by several threads
_counts: Counter[str] = Counter()
_logged: set[str] = set()


def odd_rows() -> dict[str, int]:
    """Return how many rows this process read that had another form, or a key a second time, by the name of the file."""
    with _lock:
        return dict(_counts)


def report_odd(path: Path | str, row: bytes, why: str = "another row of its key counts, or none") -> None:
    """Count a row that is read and does not count; the log has the first one of each file."""
    text = str(path)
    with _lock:
        _counts[basename(text)] += 1  # noqa: PTH119 - of a text
        is_new = text not in _logged and len(_logged) < _MOST_LOGGED
        if is_new:
            _logged.add(text)
    if is_new:
        log.warning("%s: the row %r does not count: %s", text, shown(row[:80]), why)


class Rising:
    """The counters of one open file, each of which only grows: one that fell is reported as an odd row is.

    A cgroup that is removed and made again under its path is another file, and has counters of its own.
    """

    __slots__ = ("_last", "_path")

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._last: dict[bytes, int] = {}

    def check(self, values: Mapping[bytes, int]) -> None:
        """Compare counters with those of the reading before."""
        for key, value in values.items():
            if value < self._last.get(key, 0):
                row = b"%s %d after %d" % (key, value, self._last[key])
                report_odd(self._path, row, RAN_BACKWARDS)
        self._last.update(values)


def odd_row(path: Path | str, row: bytes, rule: str) -> KernelFileError:
    """Return the error of a row that is read and has another form, and count it."""
    report_odd(path, row, rule)
    return KernelFileError(str(path), shown(row), rule)
