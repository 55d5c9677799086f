"""BEPageCacheSuppress: limits of page cache, step by step, while latency-sensitive pods refault. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.host.strategy_files import cgroup_file
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.state.view import NodeView
from koordebpf.strategies.page_cache.values import CachePod, PageCacheMeasured, PageCacheSettings, SensitivePod
from koordebpf.units import MIB, NS_PER_S, NS_PER_US, PAGE_BYTES, format_bytes, gained

# A limit is a multiple of this above what the pod holds beside page cache, so that it is not written each second.
_GRAIN_BYTES = 4 * MIB
PAGE_CACHE_GATE = "BEPageCacheSuppress"
_MOST_STAY_PERCENT = 75  # Why: where so many stay, what is limited is enough


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
    felt_rate, felt_ratio = _felt(pod, before, span_ns)
    # What is not known counts as it was measured last.
    refault_rate = before.refault_rate if felt_rate is None else felt_rate
    stall_ratio = before.stall_ratio if felt_ratio is None else felt_ratio
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


# Pages refaulted in a second, and the share of time stalled; None: not known.
def _felt(pod: CachePod, before: PodCap, span_ns: int) -> tuple[float | None, float | None]:
    activated = gained(pod.activated_pages, before.activated_pages)
    stalled_us = gained(pod.stalled_us, before.stalled_us)
    return (
        None if activated is None else activated * NS_PER_S / span_ns,
        None if stalled_us is None else stalled_us * NS_PER_US / span_ns,
    )


class PageCacheState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered.

    `pods`, `sensitive` at the last look, by UID.
    `since_ns`         limits are tried since then; 0: none is. `first`: all latency-sensitive pods together then.
    `without_per_s`    refaults of the worst of them, in pages a second: the most with limits, or just before.
    `last_per_s`       the same at the last look.
    `calm_since_ns`    no pod refaults too much since then; 0: one does.
    `rests_until_ns`   a trial failed: nothing is limited before.
    """

    pods: Mapping[str, PodCap] = {}
    sensitive: Mapping[str, SensitivePod] = {}
    at_ns: int = 0
    since_ns: int = 0
    first: SensitivePod = SensitivePod(0, 0)
    without_per_s: float = 0
    last_per_s: float = 0
    calm_since_ns: int = 0
    rests_until_ns: int = 0


class PageCacheDecision(Decision[PageCacheState], frozen=True, kw_only=True):
    """The decision, and what it rests on.

    `worst`         UID of the latency-sensitive pod that refaults most; `refaults_per_s`: its pages.
    `limited_pods`  that have a limit; `limited_bytes`: of page cache they may have.
    `failed`        limits were lifted because they did not help.
    `paths`         of best-effort pods, by UID.
    """

    worst: str | None = None
    refaults_per_s: float = 0
    limited_pods: int = 0
    limited_bytes: int = 0
    failed: bool = False
    paths: Mapping[str, str] = {}


class BEPageCacheSuppress(Strategy[PageCacheMeasured, PageCacheState, PageCacheSettings]):
    """Asked each second; a look without refaults and without limits costs one read of /proc/vmstat."""

    name = "bePageCacheSuppress"
    gate = PAGE_CACHE_GATE
    summary = "limit page cache of best-effort pods while latency-sensitive ones lose theirs"
    measured = PageCacheMeasured
    settings = PageCacheSettings
    needs = (
        cgroup_file("limit page cache of best-effort pods", "4.5", CgroupFile.MEMORY_HIGH),
        cgroup_file("the same on v1, while the machine is short", "2.6.34", CgroupFile.MEMORY_SOFT_LIMIT),
    )
    state = PageCacheState

    def decide(
        self, view: NodeView, measured: PageCacheMeasured | None, state: PageCacheState, settings: PageCacheSettings
    ) -> PageCacheDecision:
        """Return which pods have a limit now.

        Skips:   not_due: what was written before stays. no_support: this kernel has no file for it.
        """
        if measured is None:
            return PageCacheDecision(state=state, reason="page cache is not due", skipped="not_due")
        terminating = {pod.uid for pod in view.pods if pod.is_terminating}
        pods = [pod for pod in measured.pods if pod.uid not in terminating]
        span_ns = measured.at_ns - state.at_ns if state.at_ns else 0
        known = {pod.uid: looked(pod, state.pods.get(pod.uid), span_ns, settings) for pod in pods}
        if pods and not _kind(measured, settings):
            lacks = "this kernel has no file that limits page cache, or strategies.bePageCacheSuppress.v1 is none"
            return PageCacheDecision(state=PageCacheState(), reason=lacks, skipped="no_support")
        worst, per_s = _worst(measured, state, span_ns)
        seen = replace(state, pods=known, sensitive=measured.sensitive, at_ns=measured.at_ns, last_per_s=per_s)
        names = {pod.uid: pod.key for pod in view.pods}
        after, reason, failed = _next(seen, state, names.get(worst or "", worst), settings)
        writes = tuple(_writes(pods, after.pods, measured, settings))
        caps = [cap.cap_bytes for cap in after.pods.values() if cap.cap_bytes is not None]
        if caps:
            reason = f"{reason}; page cache of {len(caps)} best-effort pods may have {format_bytes(sum(caps))}"
        return PageCacheDecision(
            state=after,
            reason=reason,
            writes=writes,
            worst=worst,
            refaults_per_s=per_s,
            limited_pods=len(caps),
            limited_bytes=sum(caps),
            failed=failed,
            paths={pod.uid: pod.path for pod in pods},
        )


BE_PAGE_CACHE_SUPPRESS = BEPageCacheSuppress()


# The latency-sensitive pod that refaults most, in pages a second. One that is new has no rate yet, nor has one whose
# count ran backwards.
def _worst(measured: PageCacheMeasured, state: PageCacheState, span_ns: int) -> tuple[str | None, float]:
    if span_ns <= 0:
        return None, 0
    rates = {
        uid: refaulted * NS_PER_S / span_ns
        for uid, pod in measured.sensitive.items()
        if uid in state.sensitive
        and (refaulted := gained(pod.refaulted_pages, state.sensitive[uid].refaulted_pages)) is not None
    }
    worst = max(rates, key=lambda uid: (rates[uid], uid), default=None)
    return (worst, rates[worst]) if worst is not None and rates[worst] > 0 else (None, 0)


def _next(
    seen: PageCacheState, before: PageCacheState, worst: str | None, settings: PageCacheSettings
) -> tuple[PageCacheState, str, bool]:
    now_ns, per_s = seen.at_ns, seen.last_per_s
    is_limited = any(pod.cap_bytes is not None for pod in seen.pods.values())
    if per_s < settings.refault_rate:
        return _calm(seen, is_limited, settings)
    what = f"latency-sensitive pod {worst} refaults {per_s:.0f} pages a second"
    if now_ns < seen.rests_until_ns:
        return seen, f"{what}: limits did not help, none for {_seconds(seen.rests_until_ns - now_ns)} s", False
    refaulting = replace(seen, calm_since_ns=0)
    if not is_limited and not has_room(seen.pods.values(), settings):
        return _without(refaulting), f"{what}: no best-effort pod has page cache to be taken", False
    is_new = not is_limited or not refaulting.since_ns or seen.sensitive.keys() != before.sensitive.keys()
    ran_backwards = gained(_together(seen.sensitive).refaulted_pages, refaulting.first.refaulted_pages) is None
    if is_new or ran_backwards:
        refaulting = replace(refaulting, since_ns=now_ns, first=_together(seen.sensitive))
    without_per_s = max(refaulting.without_per_s, per_s)
    refaulting = replace(refaulting, without_per_s=without_per_s)
    is_fewer = per_s <= without_per_s * (100 - settings.gain_percent) / 100
    is_over = now_ns - refaulting.since_ns >= settings.trial_ns
    if is_over and not is_fewer and not _stay(refaulting.first, seen.sensitive, settings.gain_percent):
        rested = replace(_without(refaulting), pods=lifted(seen.pods), rests_until_ns=now_ns + settings.rest_ns)
        return rested, f"{what}: {without_per_s:.0f} at most before, limits do not help and are lifted", True
    # While its own pages come back it refaults them once more, as fast as its disk is.
    if is_limited and per_s < before.last_per_s * (100 - settings.gain_percent) / 100:
        return replace(refaulting, pods=eased(seen.pods, settings)), f"{what}: fewer than before", False
    if is_limited and _stay(_together(before.sensitive), seen.sensitive, _MOST_STAY_PERCENT):
        return replace(refaulting, pods=eased(seen.pods, settings)), f"{what}, and they stay", False
    return replace(refaulting, pods=lowered(seen.pods, settings)), what, False


def _together(pods: Mapping[str, SensitivePod]) -> SensitivePod:
    return SensitivePod(sum(pod.refaulted_pages for pod in pods.values()), sum(pod.file_bytes for pod in pods.values()))


# Tells whether so many percent of what was refaulted since are still in memory.
def _stay(first: SensitivePod, pods: Mapping[str, SensitivePod], percent: int) -> bool:
    now = _together(pods)
    refaulted = gained(now.refaulted_pages, first.refaulted_pages)
    if refaulted is None:
        return False
    return 100 * (now.file_bytes - first.file_bytes) >= percent * max(refaulted * PAGE_BYTES, 1)


def _calm(seen: PageCacheState, is_limited: bool, settings: PageCacheSettings) -> tuple[PageCacheState, str, bool]:
    if not is_limited:
        return _without(seen), "no latency-sensitive pod refaults", False
    since_ns = seen.calm_since_ns or seen.at_ns
    calm = replace(seen, calm_since_ns=since_ns, since_ns=0)
    if seen.at_ns - since_ns < settings.hold_ns:
        return replace(calm, pods=eased(seen.pods, settings)), "no pod refaults any more", False
    return (
        replace(calm, pods=raised(seen.pods, settings)),
        "no latency-sensitive pod refaults: limits are raised",
        False,
    )


def _without(state: PageCacheState) -> PageCacheState:
    return replace(state, since_ns=0, without_per_s=0.0, calm_since_ns=0)


def _seconds(span_ns: int) -> int:
    return -(-span_ns // NS_PER_S)


# The file that limits page cache here, the most precise one first; "": none.
def _kind(measured: PageCacheMeasured, settings: PageCacheSettings) -> str:
    for file in (CgroupFile.MEMORY_PAGECACHE_SIZE, CgroupFile.MEMORY_HIGH):
        if file.value in measured.files:
            return file.value
    by_name = {"softLimit": CgroupFile.MEMORY_SOFT_LIMIT, "limit": CgroupFile.MEMORY_LIMIT}
    wanted = by_name.get(settings.v1)
    return wanted.value if wanted is not None and wanted.value in measured.files else ""


def _writes(
    pods: Iterable[CachePod], caps: Mapping[str, PodCap], measured: PageCacheMeasured, settings: PageCacheSettings
) -> Iterable[CgroupWrite]:
    file = CgroupFile(_kind(measured, settings)) if any(cap.cap_bytes is not None for cap in caps.values()) else None
    for pod in pods:
        cap = caps[pod.uid]
        if file is None or cap.cap_bytes is None:
            continue
        if file is CgroupFile.MEMORY_PAGECACHE_SIZE:
            yield CgroupWrite(pod.path, CgroupFile.MEMORY_PAGECACHE_ENABLE, 1)
            yield CgroupWrite(pod.path, file, cap.cap_bytes)
        else:
            yield CgroupWrite(pod.path, file, cap.limit_bytes)
