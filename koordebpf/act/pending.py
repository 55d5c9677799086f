"""Which pods were told to go and have not given their memory back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.act.outcome import Outcome, Result
from koordebpf.decide.evict.pending import still_pending
from koordebpf.state.view import PendingRelease, PodView, StrayMeasure

_WITHDRAWN = frozenset({Result.REFUSED, Result.FAILED, Result.HELD, Result.DRY_RUN})


def note_told(
    pending: Iterable[PendingRelease], *, uid: str, credit_bytes: int, now_ns: int
) -> tuple[PendingRelease, ...]:
    """Return the list with this pod on it; told again, its time starts again."""
    others = tuple(entry for entry in pending if entry.uid != uid)
    return (*others, PendingRelease(uid=uid, since_ns=now_ns, credit_bytes=credit_bytes))


def note_outcome(pending: Iterable[PendingRelease], outcome: Outcome) -> tuple[PendingRelease, ...]:
    """Return the list after an answer: a pod that will not go is not waited for.

    A pod that the API server knows no more stays on it: its processes are on their way out, and to evict another one
    for the memory they still hold would be one too many. A cgroup that is gone has given everything back.
    """
    is_empty = outcome.result is Result.GONE and outcome.executor in ("cgroup", "cri")
    if outcome.result not in _WITHDRAWN and not is_empty:
        return tuple(pending)
    return tuple(entry for entry in pending if entry.uid != outcome.uid)


def expire(
    pending: Iterable[PendingRelease],
    pods: Iterable[PodView],
    strays: Iterable[StrayMeasure] = (),
    *,
    now_ns: int,
    max_ns: int,
) -> tuple[tuple[PendingRelease, ...], tuple[PendingRelease, ...], tuple[PendingRelease, ...]]:
    """Split into what is still waited for, what has given its memory back and what took longer than `max_ns`."""
    entries = tuple(pending)
    waiting = still_pending(entries, pods, strays)
    waiting_uids = {entry.uid for entry in waiting}
    late = tuple(entry for entry in waiting if now_ns - entry.since_ns > max_ns)
    return (
        tuple(entry for entry in waiting if now_ns - entry.since_ns <= max_ns),
        tuple(entry for entry in entries if entry.uid not in waiting_uids),
        late,
    )
