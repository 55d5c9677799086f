"""The layouts of bpf/include/koord_sched.h, and the decoders for them: how long tasks waited for a CPU."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.errors import DecodeError
from koordebpf.events.layout import Layouts, compare_layout

SLOTS = 32  # KOORD_SCHED_SLOTS: slot i counts waits of [2^i, 2^(i+1)) µs; slot 0 also those below 1 µs

# Member → struct code, in the order of the C structure.
LAYOUTS: Layouts = {
    "koord_sched_group": (
        ("kind", "I"),
        ("reserved", "I"),
        ("count", "Q"),
        ("total_ns", "Q"),
        ("hist", f"{SLOTS}I"),
    ),
    "koord_sched_settings": (
        ("threshold_ns", "Q"),
        ("quiet_ns", "Q"),
        ("sent_ns", "Q"),
        ("skip_mask", "I"),
        ("reserved", "I"),
    ),
    "koord_sched_cpu": (
        ("runs", "Q"),
        ("timed_runs", "Q"),
        ("timed_ns", "Q"),
        ("wakeups", "Q"),
        ("reserved", "32s"),
    ),
    "koord_run_queue_wait": (
        ("ts_ns", "Q"),
        ("cgroup_id", "Q"),
        ("delta_ns", "Q"),
        ("be_cgroup_id", "Q"),
        ("tid", "I"),
        ("reserved", "I"),
    ),
}

_WAIT = struct.Struct("<" + "".join(code for _, code in LAYOUTS["koord_run_queue_wait"]))
_GROUP = struct.Struct("<" + "".join(code for _, code in LAYOUTS["koord_sched_group"]))


class RunQueueWait(msgspec.Struct, frozen=True, gc=False):
    """A latency-sensitive task came to run, and had waited `delta_ns`.

    The cgroups are the cpu controller's: of the task that waited, and of the best-effort one that ran before it on that
    CPU; 0: that was no best-effort one.
    """

    ts_ns: int
    cgroup_id: int
    delta_ns: int
    be_cgroup_id: int
    tid: int


class RunQueueHistogram(msgspec.Struct, frozen=True, gc=False):
    """The sampled waits of one cgroup, or of several, since the programs were loaded. `slots` as of `SLOTS`."""

    count: int = 0
    total_ns: int = 0
    slots: tuple[int, ...] = (0,) * SLOTS


def check_layout(name: str, actual: tuple[int, Mapping[str, int]]) -> None:
    """Hold one structure of the object's BTF against this module.

    Raises:  SupportError: a member is missing, moved, or the size differs.
    """
    compare_layout(name, actual, LAYOUTS[name])


def decode_wait(buf: bytes) -> RunQueueWait:
    """Decode one record of the ring.

    Shape:   40 bytes, struct koord_run_queue_wait.
    Raises:  DecodeError: the length is another.
    """
    if len(buf) != _WAIT.size:
        raise DecodeError(f"a koord_run_queue_wait has {_WAIT.size} bytes, not {len(buf)}")
    return RunQueueWait(*_WAIT.unpack(buf)[:5])


def decode_histograms(groups: Iterable[tuple[bytes, bytes]]) -> dict[int, RunQueueHistogram]:
    """Return the histograms by cgroup id of those that had a wait, from keys and values of the map `sched_groups`."""
    found = {}
    for key, value in groups:
        _, _, count, total_ns, *slots = _GROUP.unpack(value)
        if count:
            found[int.from_bytes(key, "little")] = RunQueueHistogram(count, total_ns, tuple(slots))
    return found


def added(histograms: Iterable[RunQueueHistogram]) -> RunQueueHistogram:
    """Return the histogram of all of them."""
    every = list(histograms)
    if not every:
        return RunQueueHistogram()
    slots = tuple(map(sum, zip(*(each.slots for each in every), strict=True)))
    return RunQueueHistogram(sum(each.count for each in every), sum(each.total_ns for each in every), slots)
