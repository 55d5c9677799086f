"""Which pods were told to go and have not given their memory back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from koordebpf.act.outcome import Outcome, Result
from koordebpf.policy.evict.pending import still_pending
from koordebpf.state.view import PendingRelease, PodView, Problem, StrayMeasure
from koordebpf.units import NS_PER_S

# Why: a cgroup is seen empty, and a container stopped, after its tasks have dropped their memory; what is left are the
# kernel's own per-CPU counts, a few milliseconds old.
EMPTY_DUE_NS = NS_PER_S
# Why: a kubelet that learns of a deletion by force signals at once and kills two seconds later.
GONE_DUE_NS = 4 * NS_PER_S

_BY_SIGNAL = frozenset({"cgroup", "cri"})


class Settled(msgspec.Struct, frozen=True):
    """What became of the pods that were told to go: `pending` holds those whose memory is not back, late ones too."""

    pending: tuple[PendingRelease, ...]
    released: tuple[PendingRelease, ...]  # their memory is back
    late: tuple[PendingRelease, ...]  # nothing more is expected of them


def note_told(
    pending: Iterable[PendingRelease], *, uid: str, credit_bytes: int, now_ns: int
) -> tuple[PendingRelease, ...]:
    """Return the list with this pod on it; told again, its time starts again."""
    others = tuple(entry for entry in pending if entry.uid != uid)
    return (*others, PendingRelease(uid=uid, since_ns=now_ns, credit_bytes=credit_bytes))


def note_outcome(pending: Iterable[PendingRelease], outcome: Outcome, now_ns: int) -> tuple[PendingRelease, ...]:
    """Return the list after an answer.

    A pod that was refused, or whose request may be sent again, is not waited for. One whose eviction brought nothing
    stays as a failed one. A pod whose processes are gone has little time for its memory; so has one that the API
    server knows no more: its processes are on their way out, and to evict another one for the memory they still hold
    would be one too many.
    """
    result, by_signal = outcome.result, outcome.executor in _BY_SIGNAL
    if result is Result.DONE and by_signal:
        if outcome.killed_tasks == 0:
            return _changed(
                pending, outcome, due_ns=now_ns, problem="no_process", why="no process was there to be killed"
            )
        why = "every process of it is gone, and its cgroup still holds memory, as a tmpfs that outlives them"
        return _changed(pending, outcome, due_ns=now_ns + EMPTY_DUE_NS, problem="memory_stays", why=why)
    if result is Result.GONE and not by_signal:
        why = f"the API server knows it no more, and its cgroup still holds memory: {outcome.detail}"
        return _changed(pending, outcome, due_ns=now_ns + GONE_DUE_NS, problem="gone", why=why)
    if is_fruitless(outcome):
        problem: Problem = "gone" if result is Result.GONE else "failed"
        if outcome.killed_tasks == 0 and not outcome.was_sent:
            problem = "no_process"
        return _changed(pending, outcome, failed_ns=now_ns, problem=problem, why=outcome.detail)
    if result in (Result.DONE, Result.SENT):
        return tuple(pending)
    return tuple(entry for entry in pending if entry.uid != outcome.uid)


def is_fruitless(outcome: Outcome) -> bool:
    """Tell whether an answer already says that this eviction brought nothing, and that another try would not either.

    A request that failed is tried again at a time of its own (`retry_at_ns`); a signal that was sent is not.
    """
    if outcome.executor not in _BY_SIGNAL:
        return False
    if outcome.result is Result.FAILED:
        return outcome.sent_ns is not None or outcome.retry_at_ns is None
    return outcome.result is Result.GONE


def settle(
    pending: Iterable[PendingRelease],
    pods: Iterable[PodView],
    strays: Iterable[StrayMeasure] = (),
    *,
    now_ns: int,
    max_ns: int,
) -> Settled:
    """Return who is still waited for, who has given the memory back, and of whom nothing more is expected.

    That is whose eviction brought nothing, whose memory was due, and who took longer than `max_ns`. The late stay on
    the list: forgotten, a pod that cannot die would be counted on anew.
    """
    entries = tuple(pending)
    waiting = tuple(_judged(entry, now_ns) for entry in still_pending(entries, pods, strays))
    waiting_uids = {entry.uid for entry in waiting}
    return Settled(
        pending=waiting,
        released=tuple(entry for entry in entries if entry.uid not in waiting_uids),
        late=tuple(entry for entry in waiting if entry.failed_ns is not None or now_ns - entry.since_ns > max_ns),
    )


def _judged(entry: PendingRelease, now_ns: int) -> PendingRelease:
    is_due = entry.failed_ns is None and entry.due_ns is not None and now_ns >= entry.due_ns
    return replace(entry, failed_ns=now_ns) if is_due else entry


def _changed(
    pending: Iterable[PendingRelease],
    outcome: Outcome,
    *,
    problem: Problem,
    why: str,
    due_ns: int | None = None,
    failed_ns: int | None = None,
) -> tuple[PendingRelease, ...]:
    return tuple(
        replace(entry, due_ns=due_ns, failed_ns=failed_ns, problem=problem, why=why)
        if entry.uid == outcome.uid
        else entry
        for entry in pending
    )
