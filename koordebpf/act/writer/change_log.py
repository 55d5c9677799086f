"""Counts attempts to write by owner, file and result, and passes each change on to the audit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from koordebpf.act.writer.change import FileChange, WriteResult


class ChangeLog:
    """What became of every attempt since the start. `audit` gets each change as it happens; None: nothing does."""

    def __init__(self, audit: Callable[[FileChange], None] | None) -> None:
        self._audit = audit
        self._counts: dict[str, Counter[tuple[str, WriteResult]]] = defaultdict(Counter)

    @property
    def counts(self) -> Counter[tuple[str, WriteResult]]:
        """Every attempt by file name and result; from any thread."""
        return sum((each.copy() for each in self._counts.copy().values()), Counter())

    def counts_of(self, owner: str) -> Counter[tuple[str, WriteResult]]:
        """The attempts for one owner."""
        return self._counts[owner]

    def count(self, owner: str, file: str, result: WriteResult) -> None:
        """Count an attempt that is no news."""
        self._counts[owner][file, result] += 1

    def add(self, change: FileChange, file: str) -> None:
        """Count an attempt for its owner and report it."""
        self.count(change.owner, file, change.result)
        if self._audit is not None:
            self._audit(change)
