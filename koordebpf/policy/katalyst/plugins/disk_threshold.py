"""Thresholds of a filesystem, as a part of it or as an amount. Pure.

Source: k8s.io/kubernetes pkg/kubelet/eviction, ParseThresholdStatement; katalyst-core pkg/util/threshold.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from koordebpf.quantity import parse_quantity
from koordebpf.state.katalyst.measured import ImageFs, KatalystMeasured, RootfsMeasured
from koordebpf.units import NS_PER_S, format_ns

# A percentage from 0 to 100, or a positive quantity. No $, which matches before a newline at the end, too.
PATTERN = (
    r"^(?:(?:100(?:\.0+)?|[0-9]{1,2}(?:\.[0-9]+)?)%"
    r"|(?=[0-9.]*[1-9])[0-9]{1,18}(?:\.[0-9]{1,9})?(?:[eE][0-9]{1,2}|[kMGTPE]|[KMGTPE]i)?)(?![\s\S])"
)
DiskThreshold = Annotated[
    str, msgspec.Meta(pattern=PATTERN, description="a percentage up to 100% or a positive quantity, as 15% or 10Gi")
]

MAX_AGE_NS = 300 * NS_PER_S  # Why: two passes of the collector, 1 min each, and the 2 min between them


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
