"""When what is seen between two rounds wakes suppression, and how much scheduler tracing may look at for it. Pure.

A wake is two looks at what latency-sensitive pods used, `burst_window_ns` apart. Only where they use clearly more than
the last round left them a round follows: pods that wait all the time cost some looks, and nothing is written. `usage`
looks all the time, and a rise that it sees is followed by a round at once.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from koordebpf.strategies.cpu_suppress.choose import BeAmount
from koordebpf.strategies.cpu_suppress.plan import SuppressPlan
from koordebpf.strategies.cpu_suppress.values import SuppressSettings, WakeSettings, WakeSource
from koordebpf.units import NS_PER_MS, format_millicpu

MAX_SHIFT = 10  # one wake-up of 1,024 is sampled: what is left of the cost is the way into the programs
_START_SHIFT = 4
# Why 8: a quarter of a second of waiting that brings nothing. 20 looks a second take 1.1 % of a core, four 0.3 %, two
# 0.15 %; each second there is a round anyway.
_EMPTY_LOOKS = 8
_USAGE_NS = 50 * NS_PER_MS  # Why: two looks and a write are within 100 ms of a burst; 25 µs a look are 0.05 % of a core
_IDLE_USAGE_NS = 500 * NS_PER_MS  # Why: there is nothing to take, and four a second, each on an idle CPU, cost 0.1 %
_IDLE_RATIO = 0.01
_SHIFT_UP = 3
# Why 3: a sampled wake-up costs twice one that is passed over, so that twice as many sampled stay well in the budget.
_ROOM = 3


class Attention(msgspec.Struct, frozen=True):
    """How far one source is listened to: `empty` looks in a row showed nothing, the last one at `looked_ns`.

    What it sees before `until_ns` does not count.
    """

    empty: int = 0
    looked_ns: int = 0
    until_ns: int = 0


class WakeState(msgspec.Struct, frozen=True):
    """Where a wake is: `since_ns` is when the look before the next one was; None: nothing is awaited.

    `by` is who saw something last, `is_seen` whether anything was seen since then. `round_ns`: when the first of the
    `rounds` was that count against `rest_ns`; nothing counts before `ready_ns`. Each source has its own attention: on
    cgroup v1 best-effort pods that wait raise the machine's pressure all the time, and must not hide a burst from the
    scheduler's events.
    """

    since_ns: int | None = None
    by: WakeSource = "pressure"
    is_seen: bool = False
    ready_ns: int = 0
    round_ns: int | None = None
    rounds: int = 0
    pressure: Attention = Attention()
    scheduler: Attention = Attention()
    usage: Attention = Attention()

    def attention(self, by: WakeSource) -> Attention:
        """Return that of one source."""
        attention: Attention = getattr(self, by)
        return attention

    def heard_ns(self, by: WakeSource) -> int:
        """Return from when on it counts what one source sees."""
        return max(self.ready_ns, self.attention(by).until_ns)


def restarted(state: WakeState, by: WakeSource, now_ns: int, settings: WakeSettings) -> WakeState:
    """Return the state after something was seen: the first look is now, unless one is awaited or it rests."""
    if now_ns < state.heard_ns(by):
        return state
    if state.since_ns is not None:
        return replace(state, by=by, is_seen=True)
    attention = state.attention(by)
    was_quiet = now_ns - max(attention.looked_ns, attention.until_ns) >= settings.rest_ns
    state = _attending(state, by, replace(attention, empty=0)) if was_quiet else state
    return replace(state, since_ns=now_ns, by=by, is_seen=False)


def _attending(state: WakeState, by: WakeSource, attention: Attention) -> WakeState:
    return replace(state, **{by: attention})


def due_ns(state: WakeState, settings: WakeSettings) -> int | None:
    """Return when the next look is due; None: none is."""
    return None if state.since_ns is None else state.since_ns + settings.burst_window_ns


def is_rise(claimed_millicpu: int, left_millicpu: int, capacity_millicpu: int, settings: WakeSettings) -> bool:
    """Return whether latency-sensitive pods claim clearly more than the last round left them."""
    return claimed_millicpu - left_millicpu >= max(settings.rise_ratio * capacity_millicpu, 1)


def is_idle(best_effort_millicpu: int, capacity_millicpu: int) -> bool:
    """Tell whether best-effort pods use so little that there is nothing to take."""
    return best_effort_millicpu < _IDLE_RATIO * capacity_millicpu


def rise(others_millicpu: int, best_effort_millicpu: int, amount: BeAmount, settings: WakeSettings) -> str | None:
    """Return in words how far others have risen above what the last round left them; None: they have not.

    Nothing is to be taken from best-effort pods that are idle: it is looked at again when they work.
    """
    left = amount.pods_millicpu + amount.host_applications_millicpu
    if is_idle(best_effort_millicpu, amount.capacity_millicpu) or not is_rise(
        others_millicpu, left, amount.capacity_millicpu, settings
    ):
        return None
    return f"{format_millicpu(others_millicpu)} used where {format_millicpu(left)} were left"


def next_usage_look_ns(
    now_ns: int, best_effort_millicpu: int, capacity_millicpu: int, state: WakeState, settings: WakeSettings
) -> int:
    """Return when what pods use is looked at again; while it rests, at its end."""
    if (heard_ns := state.heard_ns("usage")) > now_ns:
        return heard_ns
    return now_ns + (_IDLE_USAGE_NS if is_idle(best_effort_millicpu, capacity_millicpu) else _USAGE_NS)


def judged(state: WakeState, now_ns: int, settings: WakeSettings, *, is_worth: bool) -> WakeState:
    """Return the state after a look that was due, and the round that followed where it was worth one.

    It keeps looking while something is seen. What is seen all the time, as of pods at their own limit, is looked at
    less often after some looks that showed nothing, and still less after some more. A burst that began in the middle of
    a window was seen in part, and shows step by step as best-effort pods make room: another look follows each round,
    and a rest the last of `settings.rounds`.
    """
    was_seen = state.is_seen
    attention = _after(state.attention(state.by), now_ns, settings, is_worth=is_worth)
    state = _attending(replace(state, is_seen=False), state.by, attention)
    if is_worth:
        is_first = state.round_ns is None or now_ns - state.round_ns >= settings.rest_ns
        first_ns = now_ns if is_first or state.round_ns is None else state.round_ns
        rounds = 1 if is_first else state.rounds + 1
        if rounds < settings.rounds:
            return replace(state, since_ns=now_ns, round_ns=first_ns, rounds=rounds)
        return replace(state, since_ns=None, round_ns=None, rounds=0, ready_ns=first_ns + settings.rest_ns)
    return replace(state, since_ns=now_ns if was_seen and attention.until_ns <= now_ns else None)


# A rise during a long wait does not restart it all: the look that follows may show that it was all there is.
def _after(before: Attention, now_ns: int, settings: WakeSettings, *, is_worth: bool) -> Attention:
    if is_worth:
        return Attention(0 if before.empty <= _EMPTY_LOOKS else _EMPTY_LOOKS, now_ns)
    empty = min(before.empty + 1, 2 * _EMPTY_LOOKS + 1)
    if empty <= _EMPTY_LOOKS:
        return Attention(empty, now_ns)
    rest_ns = settings.rest_ns // (4 if empty <= 2 * _EMPTY_LOOKS else 2)
    return Attention(empty, now_ns, now_ns + rest_ns)


def woken(plan: SuppressPlan, why: str, now_ns: int, settings: SuppressSettings) -> SuppressPlan:
    """Return the plan of a round that a burst began: with the reason, and so that growth waits twice its time."""
    grown_ns = now_ns + settings.grow_every_ns
    reason = f"{plan.reason}; before its time: {why}"
    after = replace(plan.next, quota_grown_ns=grown_ns, cpuset_grown_ns=grown_ns)
    return replace(plan, reason=reason, desired=replace(plan.desired, reason=reason), next=after)


class TracingPace(msgspec.Struct, frozen=True):
    """The next state of scheduler tracing: one wake-up of 2^`shift`, None: it rests. `is_new`: changed."""

    shift: int | None = _START_SHIFT
    is_new: bool = True


def paced(pace: TracingPace, cost_ratio: float, budget_ratio: float) -> TracingPace:
    """Return the next pace, by what the programs took of all CPUs when it was last counted.

    Above the budget fewer wake-ups are looked at, and with the fewest it rests. Far below it more are.
    """
    shift = pace.shift
    if shift is None:
        return TracingPace(MAX_SHIFT)
    if cost_ratio > budget_ratio:
        shift = None if shift == MAX_SHIFT else min(shift + _SHIFT_UP, MAX_SHIFT)
    elif cost_ratio * _ROOM < budget_ratio:
        shift = max(shift - 1, 0)
    return TracingPace(shift, is_new=shift != pace.shift)
