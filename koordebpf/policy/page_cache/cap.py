"""How much page cache each best-effort pod may have: lower step by step, kept, raised. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from koordebpf.policy.page_cache.settings import PageCacheSettings
from koordebpf.state.page_cache import CachePod
from koordebpf.units import MIB, NS_PER_S, NS_PER_US

# A limit is a multiple of this above what the pod holds beside page cache, so that it is not written each second.
_GRAIN_BYTES = 4 * MIB


class PodCap(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is remembered of one best-effort pod.

    `cap_bytes`   its page cache may have so much; None: it is not limited.
    `other_bytes` what it holds beside page cache; `growth_bytes`: by so much that grew since the look before.
    `first_bytes` of page cache when it was limited first.
    `refault_rate` of `activated_pages` in a second, `stall_ratio` of time: since the look before.
    `before_refault_rate`, `before_stall_ratio`: the same before it was limited.
    """

    file_bytes: int
    activated_pages: int | None = None
    stalled_us: int | None = None
    other_bytes: int = 0
    growth_bytes: int = 0
    file_growth_bytes: int = 0
    cap_bytes: int | None = None
    first_bytes: int = 0
    refault_rate: float = 0
    stall_ratio: float = 0
    before_refault_rate: float = 0
    before_stall_ratio: float = 0
    is_hurt: bool = False

    @property
    def limit_bytes(self) -> int | None:
        """Of all its memory, so that its page cache keeps to `cap_bytes`; room for what it may allocate meanwhile."""
        if self.cap_bytes is None:
            return None
        needed = self.other_bytes + max(self.cap_bytes, 4 * self.growth_bytes)
        return -(-needed // _GRAIN_BYTES) * _GRAIN_BYTES


def looked(pod: CachePod, before: PodCap | None, span_ns: int, settings: PageCacheSettings) -> PodCap:
    """Return what is to be remembered of a pod at this look, with the limit that it has.

    Args:
        pod: as it is.
        before: what is remembered of it.
        span_ns: since the look before.
        settings: of the operator.
    """
    other_bytes = max(pod.usage_bytes - pod.file_bytes, 0)
    now = PodCap(pod.file_bytes, pod.activated_pages, pod.stalled_us, other_bytes)
    if before is None or span_ns <= 0:
        return now
    refault_rate, stall_ratio = _felt(pod, before, span_ns)
    is_capped = before.cap_bytes is not None
    before_rate = before.before_refault_rate if is_capped else refault_rate
    before_ratio = before.before_stall_ratio if is_capped else stall_ratio
    # One that reads or writes a stream waits for its own page cache to be reclaimed, here as at the node's limit.
    misses_pages = refault_rate >= before_rate + settings.refault_rate
    needs_more = misses_pages or _is_pressed(pod.file_bytes, before.cap_bytes, settings)
    return replace(
        now,
        refault_rate=refault_rate,
        stall_ratio=stall_ratio,
        before_refault_rate=before_rate,
        before_stall_ratio=before_ratio,
        growth_bytes=max(other_bytes - before.other_bytes, 0),
        file_growth_bytes=pod.file_bytes - before.file_bytes,
        cap_bytes=before.cap_bytes,
        first_bytes=before.first_bytes,
        is_hurt=is_capped
        and (
            refault_rate >= 2 * before_rate + settings.pod_refault_rate
            or (needs_more and stall_ratio >= before_ratio + settings.pod_stall_ratio)
        ),
    )


def lowered(pods: Mapping[str, PodCap], settings: PageCacheSettings) -> dict[str, PodCap]:
    """Return the pods with their caps a step lower, those that grow first, then the largest; a hurt one's is raised.

    No step takes more than `step_percent` of a pod, nor more than `step_bytes` of all; what it may not take, the next
    one does.
    """
    after = dict(pods)
    left_bytes = settings.step_bytes
    for uid, pod in sorted(pods.items(), key=_first):
        if pod.is_hurt:
            after[uid] = _raised(pod, settings)
            continue
        now_bytes = pod.file_bytes if pod.cap_bytes is None else min(pod.file_bytes, pod.cap_bytes)
        wanted = max(now_bytes - now_bytes * settings.step_percent // 100, settings.floor_bytes)
        step_bytes = min(now_bytes - wanted, left_bytes)
        if step_bytes <= 0:
            continue
        left_bytes -= step_bytes
        first_bytes = pod.file_bytes if pod.cap_bytes is None else pod.first_bytes
        after[uid] = replace(pod, cap_bytes=now_bytes - step_bytes, first_bytes=first_bytes)
    return after


def raised(pods: Mapping[str, PodCap], settings: PageCacheSettings) -> dict[str, PodCap]:
    """Return the pods with their caps a step higher; one that needs its cap no more has none."""
    return {uid: _raised(pod, settings) for uid, pod in pods.items()}


def eased(pods: Mapping[str, PodCap], settings: PageCacheSettings) -> dict[str, PodCap]:
    """Return the pods with the caps of hurt ones a step higher."""
    return {uid: _raised(pod, settings) if pod.is_hurt else pod for uid, pod in pods.items()}


def lifted(pods: Mapping[str, PodCap]) -> dict[str, PodCap]:
    """Return the pods without caps."""
    return {uid: replace(pod, cap_bytes=None, first_bytes=0) for uid, pod in pods.items()}


def has_room(pods: Iterable[PodCap], settings: PageCacheSettings) -> bool:
    """Tell whether any pod has page cache above the floor to be taken."""
    return any(min(pod.file_bytes, pod.cap_bytes or pod.file_bytes) > settings.floor_bytes for pod in pods)


def _first(entry: tuple[str, PodCap]) -> tuple[int, int, str]:
    uid, pod = entry
    return -max(pod.file_growth_bytes, 0), -pod.file_bytes, uid


# At what it had at first, or far above what it has now, a cap limits nothing.
def _raised(pod: PodCap, settings: PageCacheSettings) -> PodCap:
    if pod.cap_bytes is None:
        return pod
    cap_bytes = pod.cap_bytes + max(pod.cap_bytes * settings.step_percent // 100, settings.floor_bytes // 4)
    if cap_bytes >= max(pod.first_bytes, settings.floor_bytes) or cap_bytes > 2 * max(
        pod.file_bytes, settings.floor_bytes
    ):
        return replace(pod, cap_bytes=None, first_bytes=0)
    return replace(pod, cap_bytes=cap_bytes)


# Tells whether a pod has a step less page cache than it may have: what else it holds takes the room.
def _is_pressed(file_bytes: int, cap_bytes: int | None, settings: PageCacheSettings) -> bool:
    return cap_bytes is not None and file_bytes < cap_bytes * (100 - settings.step_percent) // 100


def _felt(pod: CachePod, before: PodCap, span_ns: int) -> tuple[float, float]:
    refault_rate = stall_ratio = 0.0
    if pod.activated_pages is not None and before.activated_pages is not None:
        refault_rate = max(pod.activated_pages - before.activated_pages, 0) * NS_PER_S / span_ns
    if pod.stalled_us is not None and before.stalled_us is not None:
        stall_ratio = max(pod.stalled_us - before.stalled_us, 0) * NS_PER_US / span_ns
    return refault_rate, stall_ratio
