"""Plugins that judge the disk: what is free of the image filesystem, and what pods have written to it. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/rootfs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec

from koordebpf.policy.strategy import Empty
from koordebpf.quantity import parse_quantity
from koordebpf.slo.katalyst import QosLevel
from koordebpf.state.measured import NotNegative
from koordebpf.strategies.katalyst.plugin import Grace, InnerPlugin, KatalystPod, Looked, Seen, coming_back, is_cooling
from koordebpf.strategies.katalyst.values import (
    Condition,
    EvictAsked,
    ImageFs,
    KatalystMeasured,
    RootfsMeasured,
    RootfsUse,
    Threshold,
    TopPods,
)
from koordebpf.units import GIB, NS_PER_S, format_bytes, format_ns

# A percentage from 0 to 100, or a positive quantity. No $, which matches before a newline at the end, too.
PATTERN = (
    r"^(?:(?:100(?:\.0+)?|[0-9]{1,2}(?:\.[0-9]+)?)%"
    r"|(?=[0-9.]*[1-9])[0-9]{1,18}(?:\.[0-9]{1,9})?(?:[eE][0-9]{1,2}|[kMGTPE]|[KMGTPE]i)?)(?![\s\S])"
)
DiskThreshold = Annotated[
    str, msgspec.Meta(pattern=PATTERN, description="a percentage up to 100% or a positive quantity, as 15% or 10Gi")
]
MAX_AGE_NS = 300 * NS_PER_S  # Why: two passes of the collector, 1 min each, and the 2 min between them
_LEAST_BYTES, _LEAST_PART = 20 * GIB, 0.1
SCOPE = "SystemRootfs"
_CONDITION = Condition(SCOPE, "node", ("NoSchedule",))


# Thresholds of a filesystem, as a part of it or as an amount.
#
# Source: k8s.io/kubernetes pkg/kubelet/eviction, ParseThresholdStatement; katalyst-core pkg/util/threshold.


def part_of(threshold: DiskThreshold | None) -> float | None:
    """Return a percentage as a part of 1; None: it is a quantity, or not set, which 0% and 100% are too.

    >>> part_of("15%"), part_of("100%"), part_of("2Gi")
    (0.15, None, None)
    """
    if threshold is None or not threshold.endswith("%"):
        return None
    part = float(threshold[:-1]) / 100
    return part if 0 < part < 1 else None


def amount_of(threshold: DiskThreshold | None) -> int | None:
    """Return a quantity, a fraction rounded up; None: it is a percentage, or not set.

    >>> amount_of("2Ki"), amount_of("15%")
    (2048, None)
    """
    if threshold is None or threshold.endswith("%"):
        return None
    return math.ceil(parse_quantity(threshold))


def limit_of(threshold: DiskThreshold | None, capacity: int) -> float | None:
    """Return the bytes or inodes that a threshold is of this capacity; None: it is not set."""
    part = part_of(threshold)
    return amount_of(threshold) if part is None else part * capacity


def is_old(image_fs: ImageFs, now_ns: int) -> bool:
    """Tell whether the filesystem has not answered for so long that what it said last does not count."""
    return now_ns - image_fs.at_ns > MAX_AGE_NS


def layers_of(measured: KatalystMeasured, now_ns: int) -> RootfsMeasured | str:
    """Return the pods' layers as measured last; else, in a sentence, why they are not known."""
    if measured.image_fs is None:
        return "the image filesystem is not known"
    if is_old(measured.image_fs, now_ns):
        return f"the image filesystem has not answered for {format_ns(now_ns - measured.image_fs.at_ns)}"
    rootfs = measured.rootfs
    if rootfs is None:
        return "the writable layers of pods were not measured yet"
    if now_ns - rootfs.ended_ns > MAX_AGE_NS:
        return f"the writable layers of pods were last measured {format_ns(now_ns - rootfs.ended_ns)} ago"
    return rootfs


# Soft eviction of pods whose containers have written more to their root filesystems than they may.
#
# Source: rootfs_overuse.go.


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

    def judge(self, seen: Seen, state: Empty, settings: RootfsOveruseSettings) -> Looked[Empty]:
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


# Eviction for the image filesystem of the node: bytes or inodes that are free.
#
# Source: rootfs_pressure.go.


class RootfsPressureSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the image filesystem is short. Thresholds are quantities, as 10Gi, or a percentage; 0% and 100%: not set.

    `is_on`              the filesystem is judged. Why off: Katalyst's eviction-rootfs-enable.
    `image_fs`           a directory of the node on the filesystem that has containers' writable layers; also for
                         rootfsOveruse. Why None: it is found, the first of /var/lib/containerd,
                         /var/lib/containers/storage, /var/lib/docker and /var/lib/kubelet that has layers of pods.
    `project_quotas`     where a container's layer has a project quota of its own, what that counts is believed, and
                         nothing is walked; also for rootfsOveruse. Why off: a container without a user namespace may
                         give its files to the project of another pod.
    `min_free`           bytes that have to be free. Why None: Katalyst's.
    `min_inodes_free`    inodes that have to be free. Why None: Katalyst's.
    `min_capacity_bytes` a smaller filesystem is not judged by its bytes. Why 10 GiB: Katalyst's, which its flags
                         overwrite with none.
    `pod_min_used`       pods that use less are not evicted for bytes. Why None: Katalyst's.
    `pod_min_inodes_used` the same for inodes. Why None: Katalyst's.
    `priority_used`      reclaimed pods that use more are evicted before all others for bytes. Why None: Katalyst's.
    `priority_inodes_used` the same for inodes. Why None: Katalyst's.
    `cool_down_ns`       from one choice to the next. Why 35 s: as of system memory; the kubelet frees the disk some
                         time after the pod is gone, and Katalyst meanwhile evicts another one each round.
    `grace_seconds`      of an evicted pod; None: its own. Why None: Katalyst's.
    """

    is_on: bool = False
    image_fs: Annotated[str, msgspec.Meta(pattern="^/")] | None = None
    project_quotas: bool = False
    min_free: DiskThreshold | None = None
    min_inodes_free: DiskThreshold | None = None
    min_capacity_bytes: NotNegative = 10 * GIB
    pod_min_used: DiskThreshold | None = None
    pod_min_inodes_used: DiskThreshold | None = None
    priority_used: DiskThreshold | None = None
    priority_inodes_used: DiskThreshold | None = None
    cool_down_ns: int = 35 * NS_PER_S
    grace_seconds: Grace = None


class RootfsPressureState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`chosen_ns`: when pods were chosen last, and `chosen`, which; `short_ns`: since when the filesystem is short.

    None: never, and that it is not short.
    """

    chosen_ns: int | None = None
    chosen: tuple[str, ...] = ()
    short_ns: int | None = None


class Shortage(NamedTuple):
    """What is short: how much has to be free, how much is, of how much; which use of a pod counts, and its text."""

    limit: float
    free: int
    capacity: int
    use: Callable[[RootfsUse], int]
    text: Callable[[int], str]
    pod_min: DiskThreshold | None
    priority: DiskThreshold | None


class RootfsPressurePlugin(InnerPlugin[RootfsPressureState, RootfsPressureSettings]):
    """rootfs-pressure-eviction-plugin."""

    name = "rootfs-pressure-eviction-plugin"
    settings = RootfsPressureSettings
    state = RootfsPressureState

    def judge(
        self, seen: Seen, state: RootfsPressureState, settings: RootfsPressureSettings
    ) -> Looked[RootfsPressureState]:
        """Return a hard threshold while bytes or inodes are short, bytes first."""
        if not settings.is_on:
            return Looked(state=RootfsPressureState())
        layers, image_fs = layers_of(seen.measured, seen.now_ns), seen.measured.image_fs
        lacks = layers if isinstance(layers, str) else None
        is_known = image_fs is not None and not is_old(image_fs, seen.now_ns)
        found = shortage(image_fs, settings) if image_fs is not None and is_known else None
        if image_fs is None or found is None:
            # Layers are of no interest while nothing is short.
            return Looked(state=msgspec.structs.replace(state, short_ns=None), lacks=None if is_known else lacks)
        short_ns = image_fs.at_ns if state.short_ns is None else state.short_ns
        return Looked(
            state=msgspec.structs.replace(state, short_ns=short_ns),
            threshold=Threshold("hard", SCOPE, float(found.limit), float(found.free), condition=_CONDITION),
            lacks=lacks,
        )

    def top_pods(
        self, seen: Seen, state: RootfsPressureState, settings: RootfsPressureSettings, top_n: int
    ) -> tuple[TopPods, RootfsPressureState]:
        """Return the pods to evict: none until all were looked at since the filesystem is short, nor in cool down."""
        layers, image_fs, now_ns = layers_of(seen.measured, seen.now_ns), seen.measured.image_fs, seen.now_ns
        found = shortage(image_fs, settings) if image_fs is not None else None
        if found is None or isinstance(layers, str):
            return TopPods(()), state
        if image_fs is None or state.short_ns is None or layers.began_ns < state.short_ns:
            return TopPods(()), state
        # Whether it was enough shows only when the filesystem has answered again.
        cool_down_ns = max(settings.cool_down_ns, now_ns - image_fs.at_ns + 1)
        if is_cooling(seen, state.chosen_ns, state.chosen, cool_down_ns):
            return TopPods(()), state
        used = {uid: found.use(each) for uid, each in layers.pods.items()}
        need = found.limit - found.free
        if (waits := coming_back(seen, need, lambda each: used.get(each.pod.uid), found.text)) is not None:
            return TopPods((), waits=waits), state
        uids = tuple(each.pod.uid for each in chosen(seen.candidates, used, found, top_n))
        if uids:
            state = msgspec.structs.replace(state, chosen_ns=now_ns, chosen=uids)
        return TopPods(uids, settings.grace_seconds), state


ROOTFS_PRESSURE = RootfsPressurePlugin()


def shortage(image_fs: ImageFs, settings: RootfsPressureSettings) -> Shortage | None:
    """Return what the filesystem is short of, bytes before inodes; None: of nothing."""
    free, capacity = image_fs.available_bytes, image_fs.capacity_bytes
    limit = limit_of(settings.min_free, capacity)
    if limit is not None and capacity >= settings.min_capacity_bytes and free < limit:
        return Shortage(limit, free, capacity, _bytes, format_bytes, settings.pod_min_used, settings.priority_used)
    if image_fs.inodes is None or image_fs.inodes_free is None:
        return None
    free, capacity = image_fs.inodes_free, image_fs.inodes
    limit = limit_of(settings.min_inodes_free, capacity)
    if limit is not None and free < limit:
        least, priority = settings.pod_min_inodes_used, settings.priority_inodes_used
        return Shortage(limit, free, capacity, _inodes, "{:,} inodes".format, least, priority)
    return None


def is_short(image_fs: ImageFs, settings: RootfsPressureSettings) -> bool:
    """Tell whether pods may have to be evicted for the filesystem."""
    return settings.is_on and shortage(image_fs, settings) is not None


def chosen(pods: tuple[KatalystPod, ...], used: dict[str, int], short: Shortage, top_n: int) -> tuple[KatalystPod, ...]:
    """Return the pods to evict, at most so many where that is not 0: priority ones, then the largest.

    One that was not measured is not chosen, nor one that uses less than the minimum. Name and UID settle ties.
    """
    priority, least = limit_of(short.priority, short.capacity), limit_of(short.pod_min, short.capacity)

    def is_priority(each: KatalystPod) -> bool:
        return each.is_reclaimed and priority is not None and used[each.pod.uid] > priority

    def key(each: KatalystPod) -> tuple[bool, int, str, str, str]:
        pod = each.pod
        return not is_priority(each), -used[pod.uid], pod.namespace, pod.name, pod.uid

    known = [each for each in pods if each.pod.uid in used]
    left = sorted((each for each in known if is_priority(each) or used[each.pod.uid] >= (least or 0)), key=key)
    return tuple(left[:top_n] if top_n else left)


def _bytes(use: RootfsUse) -> int:
    return use.used_bytes


def _inodes(use: RootfsUse) -> int:
    return use.inodes
