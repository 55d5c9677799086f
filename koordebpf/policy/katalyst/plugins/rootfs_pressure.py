"""Eviction for the image filesystem of the node: bytes or inodes that are free. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/rootfs/rootfs_pressure.go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec

from koordebpf.policy.katalyst.plugin import Grace, InnerPlugin, Looked, Seen, coming_back, is_cooling
from koordebpf.policy.katalyst.plugins.disk_threshold import DiskThreshold, is_old, layers_of, limit_of
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.state.katalyst.measured import Condition, ImageFs, RootfsUse, Threshold, TopPods
from koordebpf.state.measured import NotNegative
from koordebpf.units import GIB, NS_PER_S, format_bytes

SCOPE = "SystemRootfs"
_CONDITION = Condition(SCOPE, "node", ("NoSchedule",))


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

    def look(
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
