"""Soft eviction of pods whose resident memory is above a multiple of what they request. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/memory/rss_overuse.go.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.policy.katalyst.plugin import InnerPlugin, Looked, Seen
from koordebpf.policy.katalyst.pods import KatalystPod, KeyValue, pairs
from koordebpf.policy.strategy import Empty
from koordebpf.slo.katalyst.qos import rss_overuse_ratio
from koordebpf.state.katalyst.measured import EvictAsked
from koordebpf.state.view import PodView
from koordebpf.units import format_bytes


class RssOveruseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a pod uses too much.

    `is_on`  pods are judged. Why off: Katalyst's eviction-enable-rss-overuse.
    `factor` of the pod's memory request; a pod's own annotation takes precedence. Why 1.05: Katalyst's.
    `labels` only pods that have all of these, each as key=value. Why none: Katalyst's, all pods.
    """

    is_on: bool = False
    factor: Annotated[float, msgspec.Meta(gt=0)] = 1.05
    labels: tuple[KeyValue, ...] = ()


class RssOverusePlugin(InnerPlugin[Empty, RssOveruseSettings]):
    """rss-overuse-eviction-plugin."""

    name = "rss-overuse-eviction-plugin"
    settings = RssOveruseSettings
    state = Empty

    def look(self, seen: Seen, state: Empty, settings: RssOveruseSettings) -> Looked[Empty]:
        """Return the pods above their threshold; one without a request in every container is none."""
        if not settings.is_on:
            return Looked(state=state)
        judged = [(each, resident_bytes(each.pod)) for each in seen.soft if is_judged(each, settings)]
        asked = [_asked(each, rss_bytes, settings) for each, rss_bytes in judged if rss_bytes is not None]
        unknown = [each.pod.key for each, rss_bytes in judged if rss_bytes is None and each.pod.cgroup_id is not None]
        lacks = None
        if unknown and seen.is_regular:  # in a round ahead of its time it is not measured
            more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
            lacks = f"the resident memory of {unknown[0]}{more} was not measured"
        return Looked(state=state, evict=tuple(each for each in asked if each is not None), lacks=lacks)


RSS_OVERUSE = RssOverusePlugin()


def resident_bytes(pod: PodView) -> int | None:
    """Return a pod's anonymous memory, without its tmpfs: `anon` of memory.stat; None: it was not measured."""
    memory = pod.memory
    if memory is None or memory.shmem_bytes is None:
        return None
    anon = memory.inactive_anon_bytes + memory.active_anon_bytes + memory.unevictable_bytes
    return max(anon - memory.shmem_bytes, 0)


def is_judged(each: KatalystPod, settings: RssOveruseSettings) -> bool:
    """Tell whether what a pod uses is compared with what it requests: its `shmem` has to be measured then."""
    terms = each.pod.terms
    if each.level not in ("reclaimed_cores", "shared_cores") or terms.native_memory_request_bytes is None:
        return False
    return settings.is_on and all(terms.labels.get(key) == value for key, value in pairs(settings.labels).items())


def _asked(each: KatalystPod, rss_bytes: int, settings: RssOveruseSettings) -> EvictAsked | None:
    terms = each.pod.terms
    request_bytes = terms.native_memory_request_bytes
    assert request_bytes is not None  # it is judged
    try:
        ratio = rss_overuse_ratio(terms.annotations) or settings.factor
    except ConfigError:
        return None  # for safety, as in Katalyst
    if rss_bytes <= ratio * request_bytes:
        return None
    rss, request = format_bytes(rss_bytes), format_bytes(request_bytes)
    return EvictAsked(each.pod.uid, f"it has {rss} resident, more than {ratio:g} times its request of {request}")
