"""What is taken of a pod's memory and why, as a running agent says it: lines for `koordebpf pod explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from koordebpf.policy.page_cache.strategy import BE_PAGE_CACHE_SUPPRESS, PageCacheDecision
from koordebpf.policy.proactive_reclaim.strategy import PROACTIVE_RECLAIM, ReclaimDecision
from koordebpf.policy.proactive_reclaim.trim import WHYS
from koordebpf.report.hooks.pod_settings import PodSetting, PodSettings
from koordebpf.state.proactive_reclaim import ReclaimMeasured
from koordebpf.units import format_bytes


def with_reclaim(
    settings: Iterable[PodSettings], measured: ReclaimMeasured | None, decision: ReclaimDecision | None
) -> list[PodSettings]:
    """Return the pods with what proactive reclaim takes of them, and why it takes nothing.

    Args:
        settings: of all pods.
        measured: of the last round in which it was due; None: there was none.
        decision: of that round.
    """
    if measured is None or decision is None:
        return list(settings)
    sizes = {each.uid: each.size_bytes for each in decision.orders}
    own = {}
    for pod in measured.pods:
        if (why := decision.whys.get(pod.uid)) is None:
            continue
        memory = decision.state.pods.get(pod.uid)
        hurts = (
            f"; halved {memory.hurts} times, because it stalled or memory came back" if memory and memory.hurts else ""
        )
        taken = f"{format_bytes(sizes[pod.uid])} each 6 s" if pod.uid in sizes else "nothing"
        line = PodSetting(pod.path, "memory.reclaim", PROACTIVE_RECLAIM.gate, f"{WHYS[why]}{hurts}", taken)
        own[pod.uid] = pod.path, (line,)
    return _with(settings, own)


def with_page_cache(settings: Iterable[PodSettings], decision: PageCacheDecision | None) -> list[PodSettings]:
    """Return the pods with the limits that BEPageCacheSuppress wants.

    Args:
        settings: of all pods.
        decision: of the last round in which it was due; None: there was none.
    """
    if decision is None or not decision.writes:
        return list(settings)
    own: dict[str, tuple[str, tuple[PodSetting, ...]]] = {}
    for uid, path in decision.paths.items():
        lines = tuple(
            PodSetting(each.path, each.file.value, BE_PAGE_CACHE_SUPPRESS.gate, decision.reason, each.value)
            for each in decision.writes
            if each.path == path and isinstance(each.value, int)
        )
        own[uid] = path, lines
    return _with(settings, own)


def _with(settings: Iterable[PodSettings], own: Mapping[str, tuple[str, tuple[PodSetting, ...]]]) -> list[PodSettings]:
    found = []
    for each in settings:
        path, lines = own.get(each.uid, (None, ()))
        found.append(replace(each, path=each.path or path, settings=(*each.settings, *lines)))
    return found
