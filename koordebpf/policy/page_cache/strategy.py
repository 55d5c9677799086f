"""BEPageCacheSuppress as a strategy: limits as cgroup files while latency-sensitive pods refault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.page_cache.cap import PodCap, eased, has_room, lifted, looked, lowered, raised
from koordebpf.policy.page_cache.settings import PageCacheSettings
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.state.page_cache import CachePod, PageCacheMeasured, SensitivePod
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S, PAGE_BYTES, format_bytes

PAGE_CACHE_GATE = "BEPageCacheSuppress"
_MOST_STAY_PERCENT = 75  # Why: where so many stay, what is limited is enough


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


# The latency-sensitive pod that refaults most, in pages a second. One that is new has no rate yet.
def _worst(measured: PageCacheMeasured, state: PageCacheState, span_ns: int) -> tuple[str | None, float]:
    if span_ns <= 0:
        return None, 0
    rates = {
        uid: max(pod.refaulted_pages - state.sensitive[uid].refaulted_pages, 0) * NS_PER_S / span_ns
        for uid, pod in measured.sensitive.items()
        if uid in state.sensitive
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
    if is_new:
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
    refaulted_bytes = (now.refaulted_pages - first.refaulted_pages) * PAGE_BYTES
    return 100 * (now.file_bytes - first.file_bytes) >= percent * max(refaulted_bytes, 1)


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
