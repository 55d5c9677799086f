"""The round of plugins outside the process: a call for thresholds, then one for the pods of those that last. Pure.

A call is made by the agent beside the loop; its answers are in a later frame. So no plugin holds a round up.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.policy.katalyst.clocks import is_actionable, met_since
from koordebpf.policy.katalyst.plugin import Seen
from koordebpf.policy.katalyst.state import RemoteCall, RemoteRound
from koordebpf.state.katalyst.answers import PluginAnswer, TopPods
from koordebpf.state.katalyst.records import TopAsk
from koordebpf.units import NS_PER_S

_TIMES = 3  # Why: two calls, each with its deadline, and the loop's own time
_LEAST_NS = 3 * NS_PER_S


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
