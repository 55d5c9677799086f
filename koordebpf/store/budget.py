"""The evictions of the last minute, kept where the next agent finds them: a start must not bring a fresh budget."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from koordebpf.kernel.io.regular_file import KeptFile
from koordebpf.state.decision_memory import Budget
from koordebpf.state.view import PastEviction
from koordebpf.store.audit_record import AuditRecord

log = logging.getLogger("koordebpf")


class KeptBudget:
    """Owns the file at `path`, on a tmpfs; None: nothing is kept.

    Written by the thread that decides, after the kill: small, not synced, and left out where there is no room.
    CLOCK_MONOTONIC continues when a process ends and restarts at boot, as a tmpfs does.

    Args:
        interrupted: decisions that an agent was ended in the middle of. Every pod that they may have evicted counts.
        now_ns: CLOCK_MONOTONIC.
    Cost:    0.1 ms for each eviction.
    """

    def __init__(self, path: Path | None, interrupted: Iterable[AuditRecord] = (), now_ns: int = 0) -> None:
        self._file = KeptFile(path, "a start would bring a fresh budget")
        kept = (*_read(self._file), *_evictions_of(interrupted))
        found = {(each.uid, each.at_ns): each for each in kept if each.at_ns <= now_ns}
        self.budget = Budget(Budget(tuple(found.values())).recent(now_ns))
        if self.budget.evictions:
            log.info("%d evictions of the last minute count from the agent before", len(self.budget.evictions))

    def keep(self, budget: Budget) -> bool:
        """Put the budget into the file in place of the one before; tell whether it is there."""
        self.budget = budget
        return self._file.replace(msgspec.json.encode(budget))

    def close(self, now_ns: int) -> None:
        """Leave nothing behind that counts no more."""
        if not self.budget.recent(now_ns):
            self._file.remove()


def _read(file: KeptFile) -> tuple[PastEviction, ...]:
    raw = file.read()
    try:
        return () if raw is None else msgspec.json.decode(raw, type=Budget).evictions
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # of another version, and a minute old soon
        return ()


def _evictions_of(records: Iterable[AuditRecord]) -> Iterator[PastEviction]:
    for record in records:
        stayed = {each.uid for each in record.outcomes if not each.was_sent}
        known = {each.uid: each for feature in record.features for each in feature.ranking}
        for uid in {uid for feature in record.features for uid in feature.victims} - stayed:
            pod = known.get(uid)
            yield PastEviction(record.decided_ns, uid, pod.namespace if pod else "", pod.workload if pod else None)
