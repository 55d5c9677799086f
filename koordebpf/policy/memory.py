"""How `DecisionMemory` changes: one reducer over what happened. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.pending import still_pending
from koordebpf.policy.evict.recurring import still_recurring, with_eviction
from koordebpf.policy.plan import Candidate
from koordebpf.state.amount import MEMORY
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView, PastEviction, PendingRelease, PodView, Problem, RefusedEviction
from koordebpf.units import NS_PER_S

# Why: a cgroup is seen empty, and a container stopped, after its tasks have dropped their memory; what is left are the
# kernel's own per-CPU counts, a few milliseconds old.
EMPTY_DUE_NS = NS_PER_S
# Why: a kubelet that learns of a deletion by force signals at once and kills two seconds later.
GONE_DUE_NS = 4 * NS_PER_S

_LOOK_CLOSELY_NS = NS_PER_S  # a victim's memory comes back in tens of milliseconds, or with its grace period
_BY_SIGNAL = frozenset({"cgroup", "cri"})


class EvictionSent(msgspec.Struct, frozen=True):
    """An eviction was sent. `used_bytes` is the node's use at the decision; `for_use` False: it says nothing of use."""

    candidate: Candidate
    decided_ns: int
    used_bytes: int
    for_use: bool
    for_cpu: bool


class EvictionFailed(msgspec.Struct, frozen=True):
    """An executor failed at once, before anything was sent; `OutcomeArrived` says why."""

    candidate: Candidate
    decided_ns: int


class OutcomeArrived(msgspec.Struct, frozen=True):
    """An executor's answer, which may be late, come twice, or be of an agent before."""

    outcome: Outcome
    now_ns: int


class PodsListed(msgspec.Struct, frozen=True):
    """The source listed these pods."""

    uids: frozenset[str]


class NodeMeasured(msgspec.Struct, frozen=True):
    """The node was measured.

    `keeps_released`: the evicted pod's object is deleted too (executor api), so that it is not waited for again.
    `populated`: those of the killed pods that have processes again, as after a restart of their containers.
    """

    view: NodeView
    pending_max_ns: int
    keeps_released: bool
    populated: frozenset[str] = frozenset()


Event = EvictionSent | EvictionFailed | OutcomeArrived | PodsListed | NodeMeasured


class Settled(msgspec.Struct, frozen=True):
    """The memory after a measurement, and the pods it is news of."""

    memory: DecisionMemory
    released: tuple[PendingRelease, ...] = ()  # their memory is back
    late: tuple[PendingRelease, ...] = ()  # nothing more is expected of them, since now


def after(memory: DecisionMemory, event: Event) -> DecisionMemory:
    """Return the memory after an event. The same event twice changes nothing more."""
    match event:
        case EvictionSent():
            return _sent(memory, event)
        case EvictionFailed(candidate, decided_ns):
            return replace(
                memory, pending=_pending(memory.pending, candidate.uid, candidate.of(MEMORY).released, decided_ns)
            )
        case OutcomeArrived():
            return _answered(memory, event.outcome, event.now_ns)
        case PodsListed(uids):
            return replace(memory, refused=tuple(each for each in memory.refused if each.uid in uids))
        case NodeMeasured():
            return settled(memory, event).memory


def settled(memory: DecisionMemory, event: NodeMeasured) -> Settled:
    """Return the memory after a measurement: which pods are still pending, whose memory is back, who is late.

    Pods deleted by other clients are pending, too, since that was asked for: this agent may have started later. The
    late stay on the list: forgotten, a pod that cannot die would be counted on again.
    """
    view, now_ns = event.view, event.view.now_ns
    listed, uids = {entry.uid for entry in memory.pending}, {pod.uid for pod in view.pods}
    kept = (memory.released - listed) & uids
    entries = memory.pending
    for pod in view.pods:
        if pod.is_terminating and pod.uid not in listed and pod.uid not in kept and pod.memory:
            entries = _pending(entries, pod.uid, credit_bytes(pod), _deleted_ns(pod, view))
    pending = tuple(_judged(entry, now_ns) for entry in still_pending(entries, view.pods, view.measured.strays))
    waiting = {entry.uid for entry in pending}
    released = tuple(entry for entry in entries if entry.uid not in waiting)
    late = [each for each in pending if each.failed_ns is not None or now_ns - each.since_ns > event.pending_max_ns]
    late_now = tuple(each for each in late if each.uid not in memory.late)
    for entry in late_now:
        if entry.problem == "no_process":
            memory = _withdrawn(memory, entry.uid, entry.since_ns)
            memory = replace(memory, effectiveness=memory.effectiveness.without(entry.uid))
    # Of what stays in a cgroup without processes a part may be back: the node's use says whether that was enough.
    over = [entry.uid for entry in late_now if entry.problem == "memory_stays"]
    effectiveness = memory.effectiveness.judged(
        [entry.uid for entry in released] + over,
        [entry.uid for entry in late_now if entry.uid not in over],
        used_bytes=view.known_used_bytes,
        now_ns=now_ns,
    )
    memory = replace(
        memory,
        pending=pending,
        late=frozenset(each.uid for each in late),
        released=kept | {each.uid for each in released} if event.keeps_released else kept,
        effectiveness=effectiveness,
        killed=(memory.killed & uids) - event.populated,
        recurring=still_recurring(memory.recurring, view),
    )
    return Settled(memory, released, late_now)


# CLOCK_MONOTONIC. Where either clock is not known, or theirs is ahead of ours, it was now.
def _deleted_ns(pod: PodView, view: NodeView) -> int:
    if view.wall_s is None or pod.terms.deleted_s is None:
        return view.now_ns
    return max(0, view.now_ns - max(0, int((view.wall_s - pod.terms.deleted_s) * NS_PER_S)))


def is_waiting(memory: DecisionMemory, now_ns: int) -> bool:
    """Tell whether memory may come back at any moment, so that a close look is worth its cost."""
    return any(
        now_ns - entry.since_ns < _LOOK_CLOSELY_NS
        or (entry.due_ns is not None and entry.failed_ns is None and entry.due_ns - now_ns <= _LOOK_CLOSELY_NS)
        for entry in memory.pending
    )


def frees_the_round(memory: DecisionMemory, outcome: Outcome) -> bool:
    """Tell whether another candidate may be chosen after this answer; `memory` is the one after it."""
    if is_fruitless(outcome) or _is_refusal(outcome):
        return True
    return any(entry.uid == outcome.uid and entry.due_ns is not None for entry in memory.pending)


def is_fruitless(outcome: Outcome) -> bool:
    """Tell whether an answer already says that this eviction brought nothing, and that another try would not either.

    A request that failed is tried again at a time of its own (`retry_at_ns`); a signal that was sent is not.
    """
    if outcome.executor not in _BY_SIGNAL:
        return False
    if outcome.result is Result.FAILED:
        return outcome.sent_ns is not None or outcome.retry_at_ns is None
    return outcome.result is Result.GONE


def _sent(memory: DecisionMemory, event: EvictionSent) -> DecisionMemory:
    pod, decided_ns = event.candidate, event.decided_ns
    released = pod.of(MEMORY).released
    past = PastEviction(decided_ns, pod.uid, pod.namespace, pod.workload)
    return replace(
        memory,
        budget=memory.budget.refund(pod.uid, decided_ns).spend(past),
        pending=_pending(memory.pending, pod.uid, released, decided_ns),
        effectiveness=memory.effectiveness.after(
            pod.uid,
            credit_bytes=released if event.for_use else 0,
            used_bytes=event.used_bytes,
            decided_ns=decided_ns,
        ),
        last=memory.last.without(pod.uid, decided_ns).after(pod.uid, decided_ns, for_cpu=event.for_cpu),
        recurring=with_eviction(memory.recurring, pod, decided_ns) if event.for_use else memory.recurring,
    )


# A pod that was refused, or whose request may be sent again, is not waited for. One whose eviction brought nothing
# stays as a failed one.
def _answered(memory: DecisionMemory, outcome: Outcome, now_ns: int) -> DecisionMemory:
    uid = outcome.uid
    memory = replace(memory, pending=_after_answer(memory.pending, outcome, now_ns))
    if _left_no_process(outcome):
        memory = replace(memory, killed=memory.killed | {uid})
    is_pending = any(entry.uid == uid for entry in memory.pending)
    if not is_pending:
        memory = replace(memory, late=memory.late - {uid})
    if not is_pending or (is_fruitless(outcome) and not outcome.was_sent):
        memory = replace(memory, effectiveness=memory.effectiveness.without(uid))
    # A kill of no process may have been one of processes that this agent does not see: the next measurement shows.
    if not outcome.was_sent and outcome.result is not Result.DONE:
        memory = _withdrawn(memory, uid, outcome.decided_ns)
    if outcome.result is Result.FAILED:
        memory = replace(memory, last=memory.last.without(uid, outcome.decided_ns))
    if _is_refusal(outcome) and not is_fruitless(outcome):
        others = tuple(each for each in memory.refused if each.uid != uid)
        refused = RefusedEviction(uid, outcome.retry_at_ns, outcome.detail, _unanswered_ns(memory, outcome))
        memory = replace(memory, refused=(*others, refused))
    elif outcome.result is Result.DONE and any(each.uid == uid for each in memory.refused):
        memory = replace(memory, refused=tuple(each for each in memory.refused if each.uid != uid))
    return memory


# Since when an eviction is not answered; None: it was.
def _unanswered_ns(memory: DecisionMemory, outcome: Outcome) -> int | None:
    if outcome.result is not Result.FAILED:
        return None
    before = next((each.unanswered_ns for each in memory.refused if each.uid == outcome.uid), None)
    return outcome.decided_ns if before is None else before


# The container runtime leaves the sandbox's process, and the API server answers before anything ends.
def _left_no_process(outcome: Outcome) -> bool:
    if outcome.executor != "cgroup":
        return False
    if outcome.result is Result.FAILED:
        return outcome.killed_tasks == 0 and not outcome.was_sent
    return outcome.result in (Result.DONE, Result.GONE)


def _is_refusal(outcome: Outcome) -> bool:
    return outcome.result is Result.REFUSED or (outcome.result is Result.FAILED and bool(outcome.retry_at_ns))


def _withdrawn(memory: DecisionMemory, uid: str, decided_ns: int) -> DecisionMemory:
    return replace(
        memory,
        budget=memory.budget.refund(uid, decided_ns),
        last=memory.last.without(uid, decided_ns),
        recurring=tuple(each for each in memory.recurring if each.uid != uid),
    )


# With this pod on the list; sent again, its time starts again.
def _pending(
    pending: tuple[PendingRelease, ...], uid: str, credit_bytes: int, now_ns: int
) -> tuple[PendingRelease, ...]:
    others = tuple(entry for entry in pending if entry.uid != uid)
    return (*others, PendingRelease(uid=uid, since_ns=now_ns, credit_bytes=credit_bytes))


# A pod whose processes are gone has little time for its memory; so has one that the API server knows no more: its
# processes are ending, and to evict another one for the memory they still hold would be one too many.
def _after_answer(pending: Iterable[PendingRelease], outcome: Outcome, now_ns: int) -> tuple[PendingRelease, ...]:
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
