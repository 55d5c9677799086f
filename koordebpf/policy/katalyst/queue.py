"""What is sent of what plugins ask for: so many forced pods in a round, and one soft one. Pure.

A round is of all plugins. Those outside answer later than those inside, so what each side asked for last is kept, and
both share the places of the round. What is not asked for again in the next round is withdrawn.

Source: katalyst-core pkg/agent/evictionmanager/rule/queue.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from koordebpf.policy.katalyst.plugin import Seen
from koordebpf.policy.katalyst.pods import KatalystPod, in_eviction_order
from koordebpf.policy.katalyst.requests import Asked, Wanted, joined
from koordebpf.policy.katalyst.state import Queue
from koordebpf.state.view import MINUTE_NS, NodeView


def with_round(queue: Queue, inside: Asked, now_ns: int, *, awaits_outside: bool) -> Queue:
    """Return the queue of a round that begins, with what the plugins inside ask for.

    What those outside asked for in the round before is withdrawn where their answers of this one are awaited.
    """
    outside = Asked() if awaits_outside else queue.outside
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


def _together(inside: Asked, outside: Asked) -> Asked:
    forced = dict(inside.forced)
    for uid, wanted in outside.forced.items():
        forced[uid] = joined(forced.get(uid), wanted)
    soft = {**inside.soft, **outside.soft}
    return Asked(forced, {uid: wanted for uid, wanted in soft.items() if uid not in forced})


def _ordered(pods: Iterable[KatalystPod], wanted: Mapping[str, Wanted]) -> tuple[KatalystPod, ...]:
    chosen = [each for each in pods if each.pod.uid in wanted]
    return in_eviction_order(chosen, {uid: each.scope for uid, each in wanted.items()})
