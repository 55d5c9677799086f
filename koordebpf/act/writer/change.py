"""What became of writes: one value per change, which is also the audit's line; and what files held when last seen."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

import msgspec

from koordebpf.kernel.cgroup.files import Value, Version
from koordebpf.policy.reconcile import FileKey

# Why: a cgroup is looked at within two rounds of its mkdir; in that time the one above it is written four times a round
_LATELY = 16


def is_wish(before: Value, now: Value, cpuset: Version | None) -> bool:
    """Tell whether a file that held `before` was changed by another process.

    Fewer CPUs are none where `cpuset` is of v1: there the kernel takes an offlined CPU out of every set.
    """
    is_less = isinstance(now, frozenset) and isinstance(before, frozenset) and now.issubset(before)
    return now != before and not (is_less and cpuset == 1)


class Seen:
    """The values of files, the last ones of each."""

    def __init__(self) -> None:
        self._values: dict[FileKey, tuple[Value, ...]] = {}

    def record(self, key: FileKey, value: Value) -> None:
        """Say what a file holds now."""
        values = self._values.get(key, ())
        if values[-1:] != (value,):
            self._values[key] = (*values, value)[-_LATELY:]

    def lately(self, key: FileKey) -> tuple[Value, ...]:
        """Return what it held, the last value last; nothing where it was not seen."""
        return self._values.get(key, ())

    def begin(self, keys: Iterable[FileKey]) -> None:
        """Forget what these held before: they are journalled now."""
        for key in keys:
            if key in self._values:
                self._values[key] = self._values[key][-1:]

    def forget(self, keys: Iterable[FileKey]) -> None:
        """Say that it is not known what these hold."""
        for key in keys:
            self._values.pop(key, None)

    def keep(self, *kept: Collection[FileKey]) -> None:
        """Forget all others."""
        self.forget(set(self._values).difference(*kept))

    @property
    def last(self) -> dict[FileKey, Value]:
        """What each file held when it was last seen."""
        return {key: values[-1] for key, values in self._values.items()}


class WriteResult(enum.Enum):
    """How one write ended."""

    WRITTEN = "written"
    DRY_RUN = "dry_run"  # would have been written
    GONE = "gone"  # the cgroup is no more, or is another one now
    UNSUPPORTED = "unsupported"  # this kernel or cgroup version has no such file
    REFUSED = "refused"  # the kernel does not take the value: EINVAL, ENOSPC, EACCES, …
    BUSY = "busy"  # not now: a child has CPUs that the parent is to lose
    BLOCKED = "blocked"  # not tried: the kernel would refuse it
    YIELDED = "yielded"  # another process keeps writing the file: left to it for a while
    HELD = "held"  # not tried: what the file held could not be journalled


# What may be over at the next call. The rest is tried again after the refresh interval.
_TRANSIENT = frozenset({WriteResult.BUSY, WriteResult.BLOCKED, WriteResult.HELD, WriteResult.GONE})


class Failure(msgspec.Struct, frozen=True):
    """The last write of a value that failed, and until when it is not tried again."""

    value: Value
    result: WriteResult
    detail: str
    until_ns: int

    def is_final(self, value: Value, now_ns: int) -> bool:
        """Tell whether it makes no sense to write the value now."""
        return self.value == value and self.result not in _TRANSIENT and now_ns < self.until_ns


class FileChange(msgspec.Struct, frozen=True):
    """One write, done or not. `old` and `new` are what the file held and was to hold, as on disk."""

    path: str  # of the file
    old: str | None  # None: it could not be read
    new: str
    result: WriteResult
    reason: str  # why it was wanted
    now_ns: int
    detail: str = ""  # why it was not done, or what is remarkable
    is_final: bool = True  # False: a step on the way, made exact by a later change
    is_correction: bool = False  # the file had been changed by another process
    owner: str = ""  # the strategy that wanted it


class WriteReport(msgspec.Struct, frozen=True):
    """What one call changed, in order. Failures that only repeat themselves are counted and not listed."""

    changes: tuple[FileChange, ...] = ()

    @property
    def writes(self) -> int:
        """How many writes the kernel took."""
        return sum(change.result is WriteResult.WRITTEN for change in self.changes)
