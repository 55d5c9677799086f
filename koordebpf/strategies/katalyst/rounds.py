"""The manager's rounds: what it remembers, whom plugins outside are called for, what is sent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from koordebpf.policy.evict.disruption import Disruptions
from koordebpf.state.view import MINUTE_NS, NodeView, PodView
from koordebpf.strategies.katalyst.plugin import KatalystPod, Seen, in_eviction_order
from koordebpf.strategies.katalyst.requests import (
    BUCKET_NS,
    LastMet,
    MetSince,
    Past,
    PastCount,
    Wanted,
    WantedPods,
    added,
    is_actionable,
    joined,
    met_since,
)
from koordebpf.strategies.katalyst.values import EvictionRecord, PastBucket, PluginAnswer, TopAsk, TopPods
from koordebpf.units import NS_PER_S

_TIMES = 3  # Why: two calls, each with its deadline, and the loop's own time
_LEAST_NS = 3 * NS_PER_S
_MOST_INT32 = 2**31 - 1


class RemoteRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The round of plugins outside the process: which call is open, and what the one before it brought.

    `call` counts calls, so that an answer is known to be of this one.
    """

    call: int = 0
    began_ns: int | None = None  # None: no call is open
    clocks: Mapping[str, MetSince] = {}
    answers: tuple[PluginAnswer, ...] = ()  # of the call for thresholds, while the one for pods is open


class RemoteCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What plugins outside are to be called for: thresholds and pods, or with `asks` the top pods."""

    number: int
    candidates: tuple[str, ...]
    asks: tuple[TopAsk, ...] | None = None


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the round that began at `began_ns` asks for, and what of it is sent.

    `inside`, `outside` what plugins asked for last.
    `forced`, `soft`    what may be sent now, in order.
    `sent`              pods of this round that were sent, and when.
    `used`              places that are taken; `is_soft_used`: the soft one of the round is sent.
    `has_soft_place`    the forced ones leave a place for it.
    """

    began_ns: int = 0
    inside: WantedPods = WantedPods()
    outside: WantedPods = WantedPods()
    forced: tuple[Wanted, ...] = ()
    soft: tuple[Wanted, ...] = ()
    sent: Mapping[str, int] = {}
    used: int = 0
    is_soft_used: bool = False
    has_soft_place: bool = True


class ManagerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the manager remembers."""

    synced_ns: int | None = None  # the last round of the plugins inside
    pressing: tuple[str, ...] = ()  # plugins inside whose memory was short at the last look
    clocks: Mapping[str, MetSince] = {}  # of the plugins inside
    conditions: tuple[LastMet, ...] = ()
    inner: Mapping[str, Any] = {}  # what each plugin inside remembers, by name
    queue: Queue = Queue()
    remote: RemoteRound = RemoteRound()
    past: Past = Past()
    waits: tuple[str, ...] = ()  # what plugins inside waited for in their last round, and whom they passed over


# Records of candidates for plugins outside the process: PodDisruptionBudgets, and evictions of the last hours.
#
# Source: katalyst-core pkg/agent/evictionmanager/record, which has an interface and no implementation; its plugins look
# at windows of 30 minutes to two hours (plugin/rules).


def with_records(call: RemoteCall, view: NodeView, past: Past) -> RemoteCall:
    """Return the call with what is known of the candidates of each plugin that is asked for pods."""
    if not call.asks:
        return call
    uids = {uid for ask in call.asks for uid in ask.candidates}
    found = {each.uid: each for each in records_of(view, past, uids)}
    return replace(
        call,
        asks=tuple(
            replace(ask, records=tuple(found[uid] for uid in ask.candidates if uid in found)) for ask in call.asks
        ),
    )


def records_of(view: NodeView, past: Past, uids: Collection[str]) -> tuple[EvictionRecord, ...]:
    """Return what is known of each of these pods, in the order of the view; nothing of one of which nothing is.

    Of several PodDisruptionBudgets of one pod the one that allows least counts, and it allows none: the API server
    refuses such a pod. Numbers are bounded by the wire's 32 bits.
    """
    disruptions = Disruptions(view.frame.podDisruptionBudgets)
    counts = added(past.counts, [each for each in view.frame.evictions if each.at_ns > past.until_ns])
    found = []
    for pod in view.pods:
        if pod.uid not in uids:
            continue
        buckets = _buckets(view, pod, counts)
        if disruptions.is_known or buckets:
            found.append(_record(pod, disruptions, buckets))
    return tuple(found)


def _record(pod: PodView, disruptions: Disruptions, buckets: tuple[PastBucket, ...]) -> EvictionRecord:
    pdbs = disruptions.matching(pod)
    if not pdbs:
        return EvictionRecord(pod.uid, buckets=buckets)
    status = min(pdbs, key=lambda pdb: (pdb.status.disruptionsAllowed, pdb.key)).status
    return EvictionRecord(
        pod.uid,
        has_pdb=True,
        buckets=buckets,
        disruptions_allowed=_int32(status.disruptionsAllowed) if len(pdbs) == 1 else 0,
        current_healthy=_int32(status.currentHealthy),
        desired_healthy=_int32(status.desiredHealthy),
        expected_pods=_int32(status.expectedPods),
    )


def _buckets(view: NodeView, pod: PodView, counts: Iterable[PastCount]) -> tuple[PastBucket, ...]:
    workload = pod.terms.workload
    if workload is None or view.wall_s is None:
        return ()
    wall_s, now_ns = view.wall_s, view.now_ns
    return tuple(
        PastBucket(int(wall_s - (now_ns - each.start_ns) / NS_PER_S), BUCKET_NS // NS_PER_S, each.count)
        for each in counts
        if each.workload == workload
    )


def _int32(number: int) -> int:
    return min(max(number, 0), _MOST_INT32)


# The round of plugins outside the process: a call for thresholds, then one for the pods of those that last.
#
# A call is made by the agent beside the loop; its answers are in a later frame. So no plugin holds a round up.


class Outside(msgspec.Struct, frozen=True):
    """Where the round stands, the call that is to be made now, and the answers of a round that ends now."""

    state: RemoteRound
    call: RemoteCall | None = None
    answers: tuple[PluginAnswer, ...] = ()


def outside_round(seen: Seen, state: RemoteRound, deadline_ns: int) -> Outside:
    """Return the next step of the round of plugins outside; `deadline_ns`: of one call of one of them."""
    measured, now_ns = seen.measured, seen.now_ns
    if state.began_ns is None:
        if not measured.remote_plugins:
            return Outside(RemoteRound(call=state.call))
        return _called(seen, state, None) if seen.is_regular else Outside(state)
    remote = measured.remote
    if remote is not None and remote.call == state.call:
        return _answered(seen, state, remote.answers)
    if now_ns - state.began_ns < _given_up_ns(deadline_ns):
        return Outside(state)
    return _ended(state, state.answers)


def due_ns(state: RemoteRound, deadline_ns: int) -> int | None:
    """Return when an open call is given up if it is not answered; None: none is open."""
    return None if state.began_ns is None else state.began_ns + _given_up_ns(deadline_ns)


def _given_up_ns(deadline_ns: int) -> int:
    return max(_TIMES * deadline_ns, _LEAST_NS)


def _called(seen: Seen, state: RemoteRound, asks: tuple[TopAsk, ...] | None) -> Outside:
    uids = tuple(each.pod.uid for each in seen.candidates)
    call = RemoteCall(state.call + 1, uids, asks)
    return Outside(replace(state, call=call.number, began_ns=seen.now_ns), call)


def _answered(seen: Seen, state: RemoteRound, answers: Sequence[PluginAnswer]) -> Outside:
    if state.answers:
        tops = {each.plugin: each for each in answers}
        return _ended(state, [_with_top(each, tops.get(each.plugin)) for each in state.answers])
    clocks = met_since(state.clocks, answers, seen.now_ns)
    state = replace(state, clocks=clocks)
    asks = tuple(_ask(each, seen) for each in answers if is_actionable(each, clocks, seen.now_ns))
    if not asks:
        return _ended(state, answers)
    return _called(seen, replace(state, answers=tuple(answers)), asks)


def _ended(state: RemoteRound, answers: Sequence[PluginAnswer]) -> Outside:
    return Outside(replace(state, began_ns=None, answers=()), answers=tuple(answers))


def _ask(answer: PluginAnswer, seen: Seen) -> TopAsk:
    threshold = answer.threshold
    assert threshold is not None  # it is actionable
    asked = {each.pod.uid for each in seen.candidates}
    chosen = tuple(uid for uid in threshold.candidates if uid in asked)
    top_n = 1 if threshold.met == "hard" else 0
    return TopAsk(answer.plugin, threshold.scope, top_n, chosen or tuple(sorted(asked)))


def _with_top(answer: PluginAnswer, top: PluginAnswer | None) -> PluginAnswer:
    if top is None:
        return answer
    return replace(answer, top=top.top or TopPods(()), problem=answer.problem or top.problem)


# What is sent of what plugins ask for: so many forced pods in a round, and one soft one.
#
# A round is of all plugins. Those outside answer later than those inside, so what each side asked for last is kept, and
# both share the places of the round. What is not asked for again in the next round is withdrawn.
#
# Source: katalyst-core pkg/agent/evictionmanager/rule/queue.go.


def with_round(queue: Queue, inside: WantedPods, now_ns: int, *, awaits_outside: bool) -> Queue:
    """Return the queue of a round that begins, with what the plugins inside ask for.

    What those outside asked for in the round before is withdrawn where their answers of this one are awaited.
    """
    outside = WantedPods() if awaits_outside else queue.outside
    return Queue(began_ns=now_ns, inside=inside, outside=outside)


def filled(queue: Queue, seen: Seen, burst: int) -> Queue:
    """Return the queue with the pods that may be sent now: forced ones up to the places that are left, and soft ones.

    A soft one takes a place of the round, too, behind the forced ones; where none is left for it, all are still there
    to be notified. Pods that may not go now take no place, so that each round makes progress.
    """
    sent_softly = any(each.uid in queue.sent for each in queue.soft)
    used = queue.used + sum(each.uid in queue.sent for each in queue.forced) + sent_softly
    asked = _together(queue.inside, queue.outside)
    pods = [each for each in seen.candidates if each.pod.uid not in queue.sent]
    forced = _ordered(pods, asked.forced)
    places = len(forced) if burst < 0 else max(burst - used, 0)
    return replace(
        queue,
        used=used,
        is_soft_used=queue.is_soft_used or sent_softly,
        has_soft_place=burst < 0 or len(forced) < places,
        forced=tuple(asked.forced[each.pod.uid] for each in forced[:places]),
        soft=tuple(asked.soft[each.pod.uid] for each in _ordered(pods, asked.soft)),
    )


def sent_since(queue: Queue, view: NodeView) -> Mapping[str, int]:
    """Return which pods of the round were sent, and when.

    The view lists the evictions of one minute: those before that are remembered here. One that is younger and not
    listed was refused, and may be sent again.
    """
    asked = {each.uid for each in (*queue.forced, *queue.soft)} | set(queue.sent)
    kept = {uid: at_ns for uid, at_ns in queue.sent.items() if view.now_ns - at_ns >= MINUTE_NS}
    listed = {
        each.uid: each.at_ns for each in view.frame.evictions if each.uid in asked and each.at_ns >= queue.began_ns
    }
    return {**kept, **listed}


def _together(inside: WantedPods, outside: WantedPods) -> WantedPods:
    forced = dict(inside.forced)
    for uid, wanted in outside.forced.items():
        forced[uid] = joined(forced.get(uid), wanted)
    soft = {**inside.soft, **outside.soft}
    return WantedPods(forced, {uid: wanted for uid, wanted in soft.items() if uid not in forced})


def _ordered(pods: Iterable[KatalystPod], wanted: Mapping[str, Wanted]) -> tuple[KatalystPod, ...]:
    chosen = [each for each in pods if each.pod.uid in wanted]
    return in_eviction_order(chosen, {uid: each.scope for uid, each in wanted.items()})
