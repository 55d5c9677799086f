"""What files held when they were last seen here, so that what others do afterwards is known for theirs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from koordebpf.kernel.cgroup.files import Value, Version
from koordebpf.policy.reconcile.values import FileKey

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

    def note(self, key: FileKey, value: Value) -> None:
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
