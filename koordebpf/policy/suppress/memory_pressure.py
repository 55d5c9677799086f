"""Best-effort pods whose growth makes others stall for memory lose CPU first: without CPU no task allocates."""

from __future__ import annotations

import msgspec

from koordebpf.policy.suppress.settings import MemoryPressureSettings
from koordebpf.state.stalls.causes import caused_stalls, is_latency_sensitive
from koordebpf.state.suppression import MemoryHold
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S, format_millicpu, format_ns

_STEP_NS = NS_PER_S  # Why: the ledger charges in slices of a second
_FLOOR_MILLICPU = 100  # Why: with a tenth of a CPU a pod still answers its signals and probes


class MemoryHoldChoice(msgspec.Struct, frozen=True):
    """The hold from now on, None for none; until when none is tried; and what there is to say about either."""

    hold: MemoryHold | None = None
    rest_until_ns: int | None = None
    sentence: str | None = None


def memory_hold(
    view: NodeView, settings: MemoryPressureSettings, hold: MemoryHold | None, rest_until_ns: int | None
) -> MemoryHoldChoice:
    """Return what best-effort pods are held to for the sake of others' memory, and whether the hold helped so far.

    It begins at `start_ratio`, takes `step_ratio` of what they use each second in which a pod stalled, and ends when
    the stalls are below half of `start_ratio`, or no pod stalled for `judge_ns`. A hold that has not lowered them by
    `effect_ratio` after `judge_ns`, or after the ledger's window if that is longer, ends too and is not tried again for
    `rest_ns`.
    """
    if view.measured.ledger is None or view.cpu is None or view.cpu.measured.usage is None:
        return MemoryHoldChoice(hold, rest_until_ns)
    ratio = caused_ratio(view)
    if hold is None:
        if ratio < settings.start_ratio or (rest_until_ns is not None and view.now_ns < rest_until_ns):
            return MemoryHoldChoice(None, rest_until_ns)
        cap = _stepped(view.cpu.measured.usage.be_used_millicpu, settings)
        if cap is None:
            return MemoryHoldChoice(None, rest_until_ns)
        hold = MemoryHold(cap, view.now_ns, view.now_ns, ratio)
        return MemoryHoldChoice(hold, None, _held(hold, ratio))
    # The ledger's window is long: what it holds of the time before says nothing about the hold.
    stalled_ns = _last_stall_ns(view)
    if ratio < settings.start_ratio / 2:
        return MemoryHoldChoice(None, None, f"stalls for memory fell to {ratio:.1%}: the hold ends")
    if view.now_ns - max(stalled_ns, hold.since_ns) >= settings.judge_ns:
        return MemoryHoldChoice(
            None, None, f"no pod stalled for memory for {format_ns(settings.judge_ns)}: the hold ends"
        )
    judge_ns = max(settings.judge_ns, view.measured.ledger.window_ns)
    if view.now_ns - hold.since_ns >= judge_ns and ratio > hold.ratio_at_start * (1 - settings.effect_ratio):
        said = (
            f"less CPU for best-effort pods left stalls for memory at {ratio:.1%}, from {hold.ratio_at_start:.1%}: "
            "the hold ends without effect"
        )
        return MemoryHoldChoice(None, view.now_ns + settings.rest_ns, said)
    is_worth_it = ratio >= settings.start_ratio and stalled_ns > hold.stepped_ns
    cap = _stepped(hold.cap_millicpu, settings)
    if is_worth_it and cap is not None and view.now_ns - hold.stepped_ns >= _STEP_NS:
        hold = MemoryHold(cap, hold.since_ns, view.now_ns, hold.ratio_at_start)
    return MemoryHoldChoice(hold, None, _held(hold, ratio))


def caused_ratio(view: NodeView) -> float:
    """Return the share of the ledger's window that latency-sensitive pods stalled on account of best-effort ones."""
    if view.measured.ledger is None or not view.measured.ledger.window_ns:
        return 0.0
    best_effort = {pod.uid for pod in view.pods if pod.kube_qos == "BestEffort"}
    caused = caused_stalls(view.measured.ledger, view.pods)
    return sum(ns for uid, ns in caused.items() if uid in best_effort) / view.measured.ledger.window_ns


# The end of the last stall that counts in `caused_ratio`.
def _last_stall_ns(view: NodeView) -> int:
    best_effort = {pod.uid for pod in view.pods if pod.kube_qos == "BestEffort"}
    victims = {pod.uid for pod in view.pods if is_latency_sensitive(pod)}
    rows = view.measured.ledger.rows if view.measured.ledger else ()
    return max((row.last_ns for row in rows if row.cause.uid in best_effort and row.victim.uid in victims), default=0)


def _held(hold: MemoryHold, ratio: float) -> str:
    cap = format_millicpu(hold.cap_millicpu)
    return f"best-effort pods made others stall for memory {ratio:.1%} of the time: held to {cap}"


# None: there is nothing that could be taken.
def _stepped(from_millicpu: int | None, settings: MemoryPressureSettings) -> int | None:
    if from_millicpu is None or from_millicpu <= _FLOOR_MILLICPU:
        return None
    return max(int(from_millicpu * (1 - settings.step_ratio)), _FLOOR_MILLICPU)
