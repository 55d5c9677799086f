"""Proactive reclaim as a strategy: a little is taken from best-effort pods each 6 s, unless an LS pod stalls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.plan import PodAction
from koordebpf.policy.proactive_reclaim.settings import ReclaimSettings
from koordebpf.policy.proactive_reclaim.trim import (
    STEP,
    WHYS,
    PodTrim,
    Trim,
    trim,
    usable_swap_bytes,
    why_no_swap,
)
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.state.proactive_reclaim import NO_RECLAIM_V1, ReclaimMeasured, TrimmedPod
from koordebpf.state.view import NodeView
from koordebpf.units import MIB, NS_PER_US, format_bytes

PROACTIVE_RECLAIM_GATE = "ProactiveReclaim"
_GRAIN_BYTES = 16 * MIB
_SHOWN = 3  # pods of each reason


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
    shares = {
        uid: (us - state.sensitive_us[uid]) * NS_PER_US / span_ns
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
