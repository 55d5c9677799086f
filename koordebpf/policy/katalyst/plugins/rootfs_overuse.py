"""Soft eviction of pods whose containers have written more to their root filesystems than they may. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/rootfs/rootfs_overuse.go.
"""

from __future__ import annotations

import msgspec

from koordebpf.policy.katalyst.plugin import Grace, InnerPlugin, Looked, Seen
from koordebpf.policy.katalyst.plugins.disk_threshold import DiskThreshold, amount_of, layers_of, part_of
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.policy.strategy import Empty
from koordebpf.slo.katalyst.qos import QosLevel
from koordebpf.state.katalyst.measured import EvictAsked
from koordebpf.state.measured import NotNegative
from koordebpf.units import GIB, format_bytes

_LEAST_BYTES, _LEAST_PART = 20 * GIB, 0.1


class RootfsOveruseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a pod uses too much. Thresholds are quantities, at least 20Gi, or a percentage of the image filesystem.

    `is_on`      pods are judged. Why off: Katalyst's eviction-rootfs-overuse-enable.
    `levels`     QoS levels that are judged. Why shared_cores: Katalyst's.
    `namespaces` of pods of shared_cores that are judged; none: all. Why default: Katalyst's.
    `shared`     what pods of shared_cores may use. Why None: Katalyst's; without it none of them is evicted.
    `reclaimed`  what pods of reclaimed_cores may use. Why None: Katalyst's; without it none of them is evicted.
    `count`      at most so many pods are asked for in a round. Why 1: Katalyst's.
    `grace_seconds` of an evicted pod; None: its own. Why None: Katalyst's.
    """

    is_on: bool = False
    levels: tuple[QosLevel, ...] = ("shared_cores",)
    namespaces: tuple[str, ...] = ("default",)
    shared: DiskThreshold | None = None
    reclaimed: DiskThreshold | None = None
    count: NotNegative = 1
    grace_seconds: Grace = None


class RootfsOverusePlugin(InnerPlugin[Empty, RootfsOveruseSettings]):
    """rootfs-overuse-eviction-plugin."""

    name = "rootfs-overuse-eviction-plugin"
    settings = RootfsOveruseSettings
    state = Empty

    def look(self, seen: Seen, state: Empty, settings: RootfsOveruseSettings) -> Looked[Empty]:
        """Return the pods above their threshold, the largest first."""
        if not settings.is_on:
            return Looked(state=state)
        layers, image_fs = layers_of(seen.measured, seen.now_ns), seen.measured.image_fs
        if image_fs is None or isinstance(layers, str):
            return Looked(state=state, lacks=str(layers))
        over: list[tuple[int, KatalystPod, float]] = []
        for each in seen.soft:
            use, limit = layers.pods.get(each.pod.uid), limit_bytes(each, image_fs.capacity_bytes, settings)
            if use is not None and limit is not None and use.used_bytes > limit:
                over.append((use.used_bytes, each, limit))
        over.sort(key=lambda found: (-found[0], found[1].pod.namespace, found[1].pod.name, found[1].pod.uid))
        asked = tuple(_asked(*found, settings) for found in over[: settings.count])
        return Looked(state=state, evict=asked)


ROOTFS_OVERUSE = RootfsOverusePlugin()


def limit_bytes(each: KatalystPod, capacity_bytes: int, settings: RootfsOveruseSettings) -> float | None:
    """Return what a pod may use; None: it is not judged."""
    if each.level not in settings.levels:
        return None
    if each.level == "reclaimed_cores":
        threshold = settings.reclaimed
    elif each.level == "shared_cores" and (not settings.namespaces or each.pod.namespace in settings.namespaces):
        threshold = settings.shared
    else:
        return None
    amount, part = amount_of(threshold), part_of(threshold)
    if amount is not None:
        return max(amount, _LEAST_BYTES)
    return None if part is None else max(part, _LEAST_PART) * capacity_bytes


def _asked(used_bytes: int, each: KatalystPod, limit: float, settings: RootfsOveruseSettings) -> EvictAsked:
    used, most = format_bytes(used_bytes), format_bytes(int(limit))
    reason = f"its containers have {used} in their root filesystems, more than {most}"
    return EvictAsked(each.pod.uid, reason, grace_s=settings.grace_seconds)
