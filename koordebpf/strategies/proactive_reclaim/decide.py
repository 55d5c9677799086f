"""Proactive reclaim: a little is taken from best-effort pods each 6 s, unless an LS pod stalls. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.host.strategy_files import KernelFile
from koordebpf.policy.plan import PodAction
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.state.view import NodeView
from koordebpf.strategies.proactive_reclaim.values import (
    NO_RECLAIM_V1,
    ReclaimMeasured,
    ReclaimSettings,
    SwapState,
    TrimmedPod,
)
from koordebpf.units import MIB, NS_PER_S, NS_PER_US, PAGE_BYTES, format_bytes, gained

_REST_NS = 30 * NS_PER_S  # Why: five intervals, in which a working set has come back
_LEAST_SCALE = 1 / 16
_GROWTH = 1.25  # Why: from the least step to the whole one in 75 s
STEP = "step"
# Why so much is taken from a pod, or nothing: a short stable word, and for people.
WHYS: Mapping[str, str] = {
    STEP: "a step",
    "first_look": "it is looked at for the first time",
    "hurt": "it stalled or its memory came back",
    "stalls": "it stalls by itself",
    "rests": "it rests",
    "floor": "nothing is left to take",
    "held": "a latency-sensitive pod stalls",
    "no_swap": "swap is not to be used",
    "zram": "zram holds too much of what is swapped out",
    "swap_full": "too little swap is free",
}
_JUDGED_BYTES = 8 * MIB  # that zram stores. Why: an empty one holds its own tables, and would never be used
_LEAST_BYTES = 16 * PAGE_BYTES  # less is not worth a system call
PROACTIVE_RECLAIM_GATE = "ProactiveReclaim"
_GRAIN_BYTES = 16 * MIB
_SHOWN = 3  # pods of each reason


class PodTrim(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is remembered of one pod.

    `scale`       of the step, 1 at most.
    `asked_bytes` at the last look; `rests_until_ns`: nothing is taken before.
    `begin_…`     counters at the last look.
    """

    at_ns: int
    begin_stalled_us: int
    begin_refaulted_pages: int
    scale: float = _LEAST_SCALE
    asked_bytes: int = 0
    rests_until_ns: int = 0
    hurts: int = 0  # how often it was halved


class Trim(msgspec.Struct, frozen=True):
    """What is taken from one pod now, and `why`, one of `WHYS`. `is_hurt`: what was taken before hurt it."""

    memory: PodTrim
    size_bytes: int = 0
    why: str = STEP
    is_hurt: bool = False


def usable_swap_bytes(swap: SwapState, settings: ReclaimSettings) -> int:
    """Return how much may be swapped out now; 0: nothing."""
    return 0 if why_no_swap(swap, settings) else max(swap.free_bytes - _kept_bytes(swap, settings), 0)


def why_no_swap(swap: SwapState, settings: ReclaimSettings) -> str | None:
    """Return why nothing may be swapped out, one of `WHYS`; None: something may, or this node has no swap."""
    is_judged = swap.zram_stored_bytes >= _JUDGED_BYTES
    if is_judged and 100 * swap.zram_held_bytes > settings.most_zram_percent * swap.zram_stored_bytes:
        return "zram"
    return "swap_full" if swap.total_bytes and swap.free_bytes <= _kept_bytes(swap, settings) else None


def _kept_bytes(swap: SwapState, settings: ReclaimSettings) -> int:
    return swap.total_bytes * settings.least_free_swap_percent // 100


def trim(
    pod: TrimmedPod,
    before: PodTrim | None,
    swap_bytes: int,
    now_ns: int,
    settings: ReclaimSettings,
    no_swap: str | None = None,
) -> Trim:
    """Return what is taken from a pod at this look.

    The first look takes nothing: how the pod stalls is not known. A pod that stalled for more than its share, or of
    which half of what was taken came back, rests for 30 s and is asked for half as much then. Otherwise the step is
    senpai's: (1 − stalled / line)² of `step_percent`, here of what can be reclaimed.

    Args:
        pod: as it is.
        before: what is remembered of it.
        swap_bytes: how much may be swapped out.
        now_ns: of the measurement.
        settings: of the operator.
        no_swap: why nothing may be swapped out, of `why_no_swap`.
    """
    fresh = Trim(PodTrim(now_ns, pod.stalled_us, pod.refaulted_pages), why="first_look")
    if before is None or now_ns <= before.at_ns:
        return fresh
    stalled_us = gained(pod.stalled_us, before.begin_stalled_us)
    if stalled_us is None or (refaulted := gained(pod.refaulted_pages, before.begin_refaulted_pages)) is None:
        return fresh
    stalled, came_back_bytes = stalled_us * NS_PER_US / (now_ns - before.at_ns), refaulted * PAGE_BYTES
    looked = PodTrim(
        now_ns,
        pod.stalled_us,
        pod.refaulted_pages,
        scale=before.scale,
        rests_until_ns=before.rests_until_ns,
        hurts=before.hurts,
    )
    is_hurt = stalled >= settings.pod_stall_ratio or (
        before.asked_bytes > 0 and came_back_bytes >= before.asked_bytes // 2
    )
    if is_hurt and before.asked_bytes:
        eased = msgspec.structs.replace(
            looked,
            scale=max(before.scale / 2, _LEAST_SCALE),
            rests_until_ns=now_ns + _REST_NS,
            hurts=before.hurts + 1,
        )
        return Trim(eased, why="hurt", is_hurt=True)
    if is_hurt:
        return Trim(looked, why="stalls")
    if now_ns < before.rests_until_ns:
        return Trim(looked, why="rests")
    scale = min(before.scale * _GROWTH, 1.0)
    nearness = 1 - stalled / settings.pod_stall_ratio
    size_bytes = _step_bytes(pod.file_bytes + min(pod.anon_bytes, swap_bytes), scale, nearness, settings)
    if size_bytes < _LEAST_BYTES:
        swapped_bytes = _step_bytes(pod.file_bytes + pod.anon_bytes, scale, nearness, settings)
        why = no_swap if no_swap and swapped_bytes >= _LEAST_BYTES else "floor"
        return Trim(msgspec.structs.replace(looked, scale=scale), why=why)
    return Trim(msgspec.structs.replace(looked, scale=scale, asked_bytes=size_bytes), size_bytes)


# In whole pages; the floor stays.
def _step_bytes(reclaimable_bytes: int, scale: float, nearness: float, settings: ReclaimSettings) -> int:
    room_bytes = max(reclaimable_bytes - settings.floor_bytes, 0)
    wanted = int(reclaimable_bytes * settings.step_percent / 100 * scale * nearness * nearness)
    return min(wanted, room_bytes) // PAGE_BYTES * PAGE_BYTES


class ReclaimState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered: pods by UID, and of those that must not stall their counters at the last look."""

    pods: Mapping[str, PodTrim] = {}
    sensitive_us: Mapping[str, int] = {}
    at_ns: int = 0


class ReclaimOrder(msgspec.Struct, frozen=True, gc=False):
    """What is taken from one pod; `swappiness` None: as the kernel balances by itself, 0: file memory alone."""

    uid: str
    cgroup_id: int
    path: str
    size_bytes: int
    swappiness: int | None = None


class ReclaimDecision(Decision[ReclaimState], frozen=True, kw_only=True):
    """The decision with what is taken.

    `hurt`     pods that what was taken before has hurt.
    `held_by`  the latency-sensitive pod that stalls, so that nothing is taken.
    `whys`     of each pod that may be trimmed, by UID, why so much is taken: one of `WHYS`.
    """

    orders: tuple[ReclaimOrder, ...] = ()
    hurt: tuple[str, ...] = ()
    held_by: str | None = None
    whys: Mapping[str, str] = {}

    def pod_actions(self, view: NodeView) -> tuple[PodAction, ...]:
        """Return how much is taken from whom."""
        pods = {pod.uid: pod for pod in view.pods}
        return tuple(
            PodAction(pod.uid, pod.namespace, pod.name, reclaim_bytes=each.size_bytes, swappiness=each.swappiness)
            for each in self.orders
            if (pod := pods.get(each.uid)) is not None
        )


class ProactiveReclaim(Strategy[ReclaimMeasured, ReclaimState, ReclaimSettings]):
    """Takes a little from each pod that may be trimmed, and nothing where a latency-sensitive pod stalls."""

    name = "proactiveReclaim"
    gate = PROACTIVE_RECLAIM_GATE
    summary = "take idle memory from best-effort pods before it is short"
    measured = ReclaimMeasured
    settings = ReclaimSettings
    needs = (
        KernelFile("take idle memory", "5.19", None, "memory.reclaim", "memory", "Use cgroup v2."),
        KernelFile("see the stall it causes", "4.20", None, "memory.pressure", "memory", "Boot with psi=1."),
    )
    state = ReclaimState

    def decide(
        self, view: NodeView, measured: ReclaimMeasured | None, state: ReclaimState, settings: ReclaimSettings
    ) -> ReclaimDecision:
        """Return how much is taken from which pod.

        Skips:   not_due: it was not measured for. no_support: this node cannot do it, and the reason.
        """
        if measured is None:
            return ReclaimDecision(state=state, reason="proactive reclaim is not due", skipped="not_due")
        if measured.lacks:
            return ReclaimDecision(state=state, reason=measured.lacks, skipped="no_support")
        if measured.soft_limits and not settings.soft_limits:
            return ReclaimDecision(state=state, reason=NO_RECLAIM_V1, skipped="no_support")
        terminating = {pod.uid for pod in view.pods if pod.is_terminating} | {each.uid for each in view.frame.pending}
        if measured.soft_limits:
            return _soft_limits([pod for pod in measured.pods if pod.uid not in terminating], settings)
        stalling = _stalling(measured, state, settings)
        swap_bytes, no_swap = usable_swap_bytes(measured.swap, settings), why_no_swap(measured.swap, settings)
        made: dict[str, Trim] = {}
        for pod in measured.pods:
            if pod.uid not in terminating:
                made[pod.uid] = trim(pod, state.pods.get(pod.uid), swap_bytes, measured.at_ns, settings, no_swap)
        held, names = stalling is not None, {pod.uid: pod.key for pod in view.pods}
        after = ReclaimState(
            pods={uid: _held(each.memory) if held else each.memory for uid, each in made.items()},
            sensitive_us=measured.sensitive_us,
            at_ns=measured.at_ns,
        )
        hurt = tuple(uid for uid, each in made.items() if each.is_hurt)
        if stalling is not None:
            reason = f"nothing is taken: pod {names.get(stalling, stalling)} stalls for memory"
            whys = dict.fromkeys(made, "held")
            return ReclaimDecision(state=after, reason=reason, hurt=hurt, held_by=stalling, whys=whys)
        orders, reason = _orders(measured, made, swap_bytes)
        whys = {uid: each.why for uid, each in made.items()}
        if not orders:
            whys = {uid: why if not made[uid].size_bytes else "no_swap" for uid, why in whys.items()}
        return ReclaimDecision(state=after, reason=f"{reason}{_left(whys, names)}", orders=orders, hurt=hurt, whys=whys)


PROACTIVE_RECLAIM = ProactiveReclaim()


# Who must not stall and has stalled since the last look: the one that did so most.
def _stalling(measured: ReclaimMeasured, state: ReclaimState, settings: ReclaimSettings) -> str | None:
    span_ns = measured.at_ns - state.at_ns
    if not state.at_ns or span_ns <= 0:
        return None
    # Of one whose counter ran backwards it is not known: it may have stalled all the time.
    shares = {
        uid: 1.0 if (stalled_us := gained(us, state.sensitive_us[uid])) is None else stalled_us * NS_PER_US / span_ns
        for uid, us in measured.sensitive_us.items()
        if uid in state.sensitive_us
    }
    worst = max(shares, key=lambda uid: (shares[uid], uid), default=None)
    return worst if worst is not None and shares[worst] >= settings.sensitive_stall_ratio else None


# What a pod holds beside page cache may grow a little before its limit is written again.
def _soft_limits(pods: Sequence[TrimmedPod], settings: ReclaimSettings) -> ReclaimDecision:
    writes = []
    for pod in pods:
        kept_bytes = max(pod.usage_bytes - pod.file_bytes, 0) + settings.floor_bytes
        limit_bytes = -(-kept_bytes // _GRAIN_BYTES) * _GRAIN_BYTES
        writes.append(CgroupWrite(pod.path, CgroupFile.MEMORY_SOFT_LIMIT, limit_bytes))
    reason = f"proactive reclaim: where the machine is short, page cache of {len(writes)} pods is taken first"
    return ReclaimDecision(state=ReclaimState(), reason=reason, writes=tuple(writes))


# The pods from which nothing is taken, by reason; the first of many.
def _left(whys: Mapping[str, str], names: Mapping[str, str]) -> str:
    by_why: dict[str, list[str]] = {}
    for uid, why in whys.items():
        if why != STEP:
            by_why.setdefault(why, []).append(names.get(uid, uid))
    parts = [f"from {_listed(each)} ({WHYS[why]})" for why, each in by_why.items()]
    return f"; nothing {', '.join(parts)}" if parts else ""


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return f"{', '.join(names[:_SHOWN])} and {more} more" if more > 0 else ", ".join(names)


# Nothing was taken from it after all.
def _held(memory: PodTrim) -> PodTrim:
    return msgspec.structs.replace(memory, asked_bytes=0)


# Where swap must not be used and file memory alone cannot be asked for, nothing is.
def _orders(
    measured: ReclaimMeasured, made: Mapping[str, Trim], swap_bytes: int
) -> tuple[tuple[ReclaimOrder, ...], str]:
    is_file_alone = measured.swap.total_bytes > 0 and swap_bytes == 0
    if is_file_alone and not measured.takes_swappiness:
        return (), "swap is not to be used, and memory.reclaim takes no swappiness before Linux 6.11"
    orders = tuple(
        ReclaimOrder(pod.uid, pod.cgroup_id, pod.path, made[pod.uid].size_bytes, 0 if is_file_alone else None)
        for pod in measured.pods
        if pod.uid in made and made[pod.uid].size_bytes
    )
    total = format_bytes(sum(each.size_bytes for each in orders))
    return orders, f"{total} is taken from {len(orders)} of {len(measured.pods)} pods"
