"""Memory that is already on its way back, and pods that hold it for too long after the API server agreed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.settings import EvictSettings, own_grace_s
from koordebpf.policy.plan import Plan, Victim
from koordebpf.state.amount import MEMORY, USED, Dimension
from koordebpf.state.measured import StrayMeasure
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import FINISHED_PHASES, NodeView, PendingRelease, PodView
from koordebpf.units import NS_PER_S, format_bytes, format_ns

# Why: what is left of a dead pod is the page tables of its last tasks and the sandbox, far below an eighth of a victim.
_RELEASED_SHARE = 8


class EvictedPod(msgspec.Struct, frozen=True):
    """A victim whose eviction was sent, for a feature that judges memory in use."""

    feature: str
    victim: Victim
    sent_ns: int
    grace_s: int  # what it was given
    is_accepted: bool = False


class EvictedPods(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pods that were evicted through the API server and may have to be killed.

    No second victim is evicted because the first is late: the first is killed before that.
    """

    pods: tuple[EvictedPod, ...] = ()

    def sent(self, feature: str, victim: Victim, view: NodeView, sent_ns: int) -> EvictedPods:
        """Return it after an eviction was sent; a pod that is evicted for something else than use is never killed."""
        if not victim.for_use:
            return self
        uid = victim.candidate.uid
        pod = next((pod for pod in view.pods if pod.uid == uid), None)
        own_s = own_grace_s(pod) if pod is not None else 0
        sent = EvictedPod(feature, victim, sent_ns, own_s if victim.grace_s is None else victim.grace_s)
        return EvictedPods((*(each for each in self.pods if each.victim.candidate.uid != uid), sent))

    def answered(self, outcome: Outcome) -> EvictedPods:
        """Return it after an answer: only a pod whose eviction the API server accepted is killed when it is overdue."""
        if outcome.result is Result.SENT or all(each.victim.candidate.uid != outcome.uid for each in self.pods):
            return self
        is_accepted = outcome.executor == "api" and outcome.result is Result.DONE
        return EvictedPods(
            tuple(
                replace(each, is_accepted=True) if each.victim.candidate.uid == outcome.uid else each
                for each in self.pods
                if is_accepted or each.victim.candidate.uid != outcome.uid
            )
        )

    def still_pending(self, view: NodeView) -> EvictedPods:
        """Return it without those whose memory is back."""
        pending = {entry.uid for entry in view.frame.pending}
        left = tuple(each for each in self.pods if each.victim.candidate.uid in pending)
        return self if len(left) == len(self.pods) else EvictedPods(left)


def overdue_plan(
    view: NodeView, plan: Plan, evicted: EvictedPods, *, kill_after_ns: int, pending_max_ns: int
) -> Plan | None:
    """Return the plan that kills the pods whose time is over while the node is short of memory; None: no pod's is.

    Args:
        view: the node.
        plan: of this view.
        evicted: earlier.
        kill_after_ns: how long a victim has at least.
        pending_max_ns: how long at most, whatever its grace period says.
    """
    if not evicted.pods:
        return None
    if not any(USED in feature.verdict.amounts for feature in plan.features):
        return None
    pending = {entry.uid: entry for entry in view.frame.pending}

    def is_over(each: EvictedPod, entry: PendingRelease) -> bool:
        has_ns = max(kill_after_ns, min(each.grace_s * NS_PER_S, pending_max_ns))
        return each.is_accepted and entry.failed_ns is None and view.now_ns - each.sent_ns >= has_ns

    over = [
        each
        for each in evicted.pods
        if (entry := pending.get(each.victim.candidate.uid)) is not None and is_over(each, entry)
    ]
    return _killing(plan, over, view) if over else None


# The plan with these as its only victims, by what they hold now.
def _killing(plan: Plan, over: Sequence[EvictedPod], view: NodeView) -> Plan:
    held = {pod.uid: credit_bytes(pod) for pod in view.pods}
    victims = [(each, _now(each.victim, held)) for each in over]
    names = ", ".join(
        f"{victim.candidate.namespace}/{victim.candidate.name}, which was evicted"
        f" {format_ns(view.now_ns - each.sent_ns)} ago and still holds"
        f" {format_bytes(victim.candidate.of(MEMORY).released)}"
        for each, victim in victims
    )
    features = tuple(
        replace(feature, victims=tuple(victim for each, victim in victims if each.feature == feature.verdict.feature))
        for feature in plan.features
    )
    return replace(plan, sentence=f"killing {names}; no other pod is evicted before that", features=features)


def _now(victim: Victim, held: Mapping[str, int]) -> Victim:
    pod = victim.candidate
    if pod.uid not in held:
        return victim
    now = tuple(replace(each, released=held[pod.uid]) if each.resource == MEMORY else each for each in pod.holdings)
    return replace(victim, candidate=replace(pod, holdings=now))


def still_pending(
    pending: Iterable[PendingRelease], pods: Iterable[PodView], strays: Iterable[StrayMeasure] = ()
) -> tuple[PendingRelease, ...]:
    """Return the releases that have not happened yet.

    A release has happened when the pod's cgroup is gone, its memory cannot be measured any more, or at most an eighth
    of the credit is left. A pod whose object went first, by force, still holds memory in a cgroup without a pod. The
    caller keeps the result: with executor `cgroup` restarted containers fill the same pod again. A pod whose
    eviction brought nothing stays for as long as its memory cannot be measured: nothing says that it went.
    """
    left = {stray.uid: stray_bytes(stray) for stray in strays if stray.uid is not None}
    unmeasured: set[str] = set()
    for pod in pods:
        if pod.memory is not None:
            left[pod.uid] = credit_bytes(pod)
        else:
            unmeasured.add(pod.uid)
    return tuple(
        entry
        for entry in pending
        if left.get(entry.uid, 0) * _RELEASED_SHARE > entry.credit_bytes
        or (entry.failed_ns is not None and entry.uid in unmeasured)
    )


def stray_bytes(stray: StrayMeasure) -> int:
    """Return the memory that a cgroup without a pod will release when its processes end; 0 where not measured."""
    return stray.memory.held_bytes if stray.memory is not None else 0


def leaving_pods(view: NodeView, settings: EvictSettings, killed: Collection[str] = ()) -> tuple[PodView, ...]:
    """Return the pods that are counted on: the API marks them as deleted, or they were evicted and are still there.

    A pod that was evicted or deleted longer ago than `pending_max_ns`, or whose eviction brought nothing, is not; one
    of the `killed` is for as long as its object is there.
    """
    is_awaited = {entry.uid: _is_awaited(entry, view, settings) for entry in view.frame.pending}

    def is_leaving(pod: PodView) -> bool:
        if pod.uid in killed:
            return True
        if (awaited := is_awaited.get(pod.uid)) is not None:
            return awaited
        return pod.is_terminating and not _is_late(pod, view, settings)

    return tuple([pod for pod in view.pods if is_leaving(pod)])


def pending_credit(
    view: NodeView,
    settings: EvictSettings,
    leaving: Iterable[PodView],
    dimensions: Iterable[Dimension],
    credit_of: Callable[[PodView, Dimension], int],
    stray_credit: Callable[[StrayMeasure], int] | None,
) -> tuple[dict[Dimension, int], tuple[str, ...]]:
    """Return what leaving pods of any class will still release in each dimension, and the names of those that do.

    With the `leaving` count those that were evicted and hold memory though their object is gone.
    Of what is used counts what they hold now: that is what the node's usage holds of them, whatever the credit was at
    their eviction; of a requested resource their request, for as long as their object is there.
    """
    sums = dict.fromkeys(dimensions, 0)
    names: list[str] = []
    for pod in leaving:
        is_finished = pod.phase in FINISHED_PHASES  # and asks for nothing
        credit = {each: credit_of(pod, each) for each in sums if each.is_use or not is_finished}
        if any(credit.values()):
            names.append(pod.key)
        for each, amount in credit.items():
            sums[each] += amount
    used = next((each for each in sums if each.is_use), None)
    if used is None or stray_credit is None:
        return sums, tuple(names)
    awaited = pending_uids(view, settings)
    for stray in view.measured.strays:
        if stray.uid is not None and stray.uid in awaited and (amount := stray_credit(stray)):
            names.append(f"pod {stray.uid}")
            sums[used] += amount
    return sums, tuple(names)


def pending_uids(view: NodeView, settings: EvictSettings) -> frozenset[str]:
    """Return evicted pods that are still counted on; one that took too long may be evicted again."""
    return frozenset(entry.uid for entry in view.frame.pending if _is_awaited(entry, view, settings))


def unanswered(view: NodeView, settings: EvictSettings) -> tuple[PodView, ...]:
    """Return the pods that the API server was asked to evict at most `pending_max_ns` ago, and has not answered.

    They may be leaving, and are asked for again in a moment.
    """
    asked = {
        each.uid
        for each in view.frame.refused
        if each.unanswered_ns is not None and view.now_ns - each.unanswered_ns <= settings.pending_max_ns
    }
    return tuple([pod for pod in view.pods if pod.uid in asked]) if asked else ()


def fruitless(view: NodeView, settings: EvictSettings) -> dict[str, str]:
    """Return why each pod is passed over whose eviction brought nothing less than `pending_max_ns` ago, by uid."""
    return {
        entry.uid: f"its eviction brought nothing: {entry.why}; it is passed over for"
        f" {format_ns(settings.pending_max_ns)}"
        for entry in view.frame.pending
        if entry.failed_ns is not None and view.now_ns - entry.failed_ns <= settings.pending_max_ns
    }


def _is_awaited(entry: PendingRelease, view: NodeView, settings: EvictSettings) -> bool:
    return entry.failed_ns is None and view.now_ns - entry.since_ns <= settings.pending_max_ns


# Of a pod that is being deleted and has released its memory: its object stays, as where a volume cannot be unmounted.
def _is_late(pod: PodView, view: NodeView, settings: EvictSettings) -> bool:
    deleted_s = pod.terms.deleted_s
    if view.wall_s is None or deleted_s is None:
        return False
    return (view.wall_s - deleted_s) * NS_PER_S > settings.pending_max_ns


def is_cooling(view: NodeView, settings: EvictSettings) -> bool:
    """Tell whether the cool-down after the last eviction runs, for whatever that was: its memory comes back too.

    It ends early once what was evicted has released its memory. With `strict_compat` it does not, and only an
    eviction for memory begins it.
    """
    last_ns = view.frame.lastEvictNs if settings.strict_compat else _last_ns(view)
    if last_ns is None or view.now_ns >= last_ns + settings.cool_time_ns:
        return False
    awaited = [entry for entry in view.frame.pending if entry.failed_ns is None]
    return settings.strict_compat or bool(still_pending(awaited, view.pods, view.measured.strays))


def is_cooling_cpu(view: NodeView, settings: EvictSettings) -> bool:
    """Tell the same for features that judge CPU: to the end, since an average shows later what went.

    An eviction by the agent before this one counts: it is in the minute's budget. With `strict_compat` only an eviction
    for CPU begins it.
    """
    last_ns = view.frame.lastCpuEvictNs
    if not settings.strict_compat:
        started_ns = view.frame.startedNs or 0
        before = [each.at_ns for each in view.frame.evictions if each.at_ns < started_ns]
        last_ns = max((*before, *([] if (own := _last_ns(view)) is None else [own])), default=None)
    return last_ns is not None and view.now_ns < last_ns + settings.cpu_cool_time_ns


def _last_ns(view: NodeView) -> int | None:
    return max((each for each in (view.frame.lastEvictNs, view.frame.lastCpuEvictNs) if each is not None), default=None)


def is_starting_cpu(view: NodeView, settings: EvictSettings) -> bool:
    """Tell whether features that judge CPU wait because the agent has just started: only with `strict_compat`.

    Source: koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go, New: its cool-down runs from there on.
    """
    if not settings.strict_compat or view.frame.startedNs is None:
        return False
    return view.now_ns < view.frame.startedNs + settings.cpu_cool_time_ns
