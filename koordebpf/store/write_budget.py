"""What is recorded of files that change all the time: some changes of a file at once, then one a minute. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from koordebpf.act.writer.change import WriteResult
from koordebpf.store.sink import FileChanged
from koordebpf.units import NS_PER_S

_EACH_NS: Final = 60 * NS_PER_S
_AT_ONCE: Final = 5  # Why: a value in two steps, another one after it, and what was there at first
# Of all files, beside these. Why: a quota that follows the load each second, and some pods' limits besides. A line has
# 400 bytes, so an audit of 64 MiB reaches a day back whatever tenants do.
_MORE_EACH_NS: Final = NS_PER_S // 2
_MORE_AT_ONCE: Final = 120
_POLL_NS: Final = 5 * NS_PER_S  # Why: a pass over the files of 110 pods takes a millisecond
_MAX_FILES: Final = 20_000  # Why: 110 pods with ten containers, 15 files each; one takes 0.3 KiB
_Key = tuple[str, WriteResult, bool]


class Bucket(msgspec.Struct):
    """A token bucket that begins full.

    `each_ns`  until there is one more.
    `most`     that may be spent at once.
    `full_ns`  when that many are there again.
    """

    each_ns: int
    most: int
    full_ns: int = 0

    def spend(self, now_ns: int) -> bool:
        """Spend one; tell whether there was one."""
        full_ns = max(self.full_ns, now_ns) + self.each_ns
        if full_ns - now_ns > self.most * self.each_ns:
            return False
        self.full_ns = full_ns
        return True


class _File:
    __slots__ = ("bucket", "last", "left_out")

    def __init__(self) -> None:
        self.bucket = Bucket(_EACH_NS, _AT_ONCE)
        self.left_out = 0
        self.last: FileChanged | None = None  # of those left out

    def pop(self) -> list[FileChanged]:
        if self.last is None:
            return []
        found = _with_others(self.last, self.left_out - 1)
        self.left_out, self.last = 0, None
        return [found]


class WriteBudget:
    """Lets five changes of a file pass at once and one a minute, and of all files two more a second.

    Of the others the last one comes later, with their number.

    A tenant changes an annotation, or its load, each second, and with it dozens of files. How a change ended counts
    apart: no number of writes hides that one was refused, or that another process had changed the file.
    """

    def __init__(self) -> None:
        self._files: dict[_Key, _File] = {}
        self._more = Bucket(_MORE_EACH_NS, _MORE_AT_ONCE)
        self._polled_ns = 0

    def add(self, event: FileChanged) -> list[FileChanged]:
        """Return what is recorded now; what is not stays until `due`."""
        change = event.change
        key = (change.path, change.result, change.is_correction)
        pushed_out: list[FileChanged] = []
        file = self._files.get(key)
        if file is None:
            if len(self._files) >= _MAX_FILES:
                pushed_out = self._files.pop(next(iter(self._files))).pop()
            file = self._files[key] = _File()
        file.left_out += 1
        file.last = event
        if file.bucket.spend(change.now_ns) or self._more.spend(change.now_ns):
            return pushed_out + file.pop()
        return pushed_out

    def due(self, now_ns: int) -> list[FileChanged]:
        """Return the last changes of files that have a change left again."""
        if now_ns - self._polled_ns < _POLL_NS:
            return []
        self._polled_ns = now_ns
        found: list[FileChanged] = []
        for key, file in list(self._files.items()):
            if file.last is None:
                if file.bucket.full_ns <= now_ns:
                    del self._files[key]
            elif file.bucket.spend(now_ns):
                found += file.pop()
        return found

    def rest(self) -> list[FileChanged]:
        """Return the last change of each file that has not come yet."""
        return [each for file in self._files.values() for each in file.pop()]


def _with_others(event: FileChanged, count: int) -> FileChanged:
    if not count:
        return event
    change = event.change
    said = f"{change.reason} (after {count} changes of the file that are left out)"
    return replace(event, change=replace(change, reason=said))
