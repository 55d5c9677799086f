"""The scheduler's object: loaded where it is switched on, attached and sampled so that it keeps a budget, and read.

Owns its maps and its ring; gives bytes, which `events.run_queue` decodes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Collection

import msgspec

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.lockdown import explain_refusal, opening
from koordebpf.kernel.bpf.maps import Element
from koordebpf.kernel.bpf.programs import object_path
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.signals import LayoutCheck, SignalSource

# enum koord_sched_kind
LATENCY_SENSITIVE = 1
BEST_EFFORT = 2

MAX_SAMPLE_SHIFT = 10  # Why: one wake-up of 1,024; what is left then is the entry into the programs

_FEATURE = "scheduler tracing"
_STRUCTS = ("koord_sched_group", "koord_sched_settings", "koord_sched_cpu", "koord_run_queue_wait")
_SETTINGS = struct.Struct("<QQ")
_QUIET_AT = 8  # offsets in koord_sched_settings
_SKIP_MASK_AT = 24
_KIND_BYTES = 8  # with what is reserved; zeros follow
_CPU = struct.Struct("<3Q40x")  # struct koord_sched_cpu, its first members
# The way into a program and out of it, which it cannot time: what CPU time with and without them in turns leaves over.
_ENTRY_NS = 40


class RunTime(msgspec.Struct, frozen=True):
    """How often the programs ran since they were loaded, and how long those runs took that looked at the clock."""

    runs: int = 0
    timed_runs: int = 0
    timed_ns: int = 0

    def since(self, before: RunTime) -> int:
        """Return the nanoseconds that they took, of all CPUs together: the timed runs stand for the others."""
        runs, timed = self.runs - before.runs, self.timed_runs - before.timed_runs
        if not timed:
            return 0
        return round(runs * ((self.timed_ns - before.timed_ns) / timed + _ENTRY_NS))


class SchedLatency(Closing):
    """Run-queue latency of the cgroups that `keep_groups` names, in the cpu controller's hierarchy.

    Not attached at first. `fileno` is readable when a latency-sensitive task had waited `threshold_ns` or more, at most
    once each `quiet_ns`.

    Source:  tracepoints sched_wakeup, sched_wakeup_new, sched_switch, by BTF (since v5.5).
    Raises:  SupportError: no libbpf, no object, one of another layout, or the kernel refuses it.
    Cost:    130 ns for a switch with its wake-up while hardly any is sampled, 270 ns while all are (6.18).
    """

    def __init__(self, threshold_ns: int, quiet_ns: int, check_layout: LayoutCheck) -> None:
        self._cpus: mmap.mmap | None = None
        self._links: list[ctypes.c_void_p] = []
        self._ring: libbpf.RingReader | None = None
        self._settings: Element | None = None
        self._object: libbpf.Object | None = None
        with opening(_FEATURE, self.close):
            self._object = libbpf.Object(object_path("sched"))
            for name in _STRUCTS:
                check_layout(name, self._object.layout(name))
            cpus = max(libbpf.library().libbpf_num_possible_cpus(), 1)
            self._object.set_max_entries("sched_cpus", cpus)
            self._object.load()
            self._groups = self._object.map("sched_groups", 0)
            self._ring = libbpf.RingReader(self._object.map("sched_waits", 0))
            self._settings = Element(self._object.map("sched_settings", 0), writable=True)
            self._cpus, self._cpus_bytes = self._object.map("sched_cpus", _CPU.size).memory(), cpus * _CPU.size
            self._settings.write(0, _SETTINGS.pack(threshold_ns, quiet_ns))

    @property
    def is_attached(self) -> bool:
        """Whether the programs run."""
        return bool(self._links)

    def attach(self, sample_shift: int = 0) -> None:
        """Let the programs run, on one wake-up of 2^sample_shift; attached ones continue with that.

        Raises:  SupportError: the kernel refuses it.
        """
        assert self._settings is not None and self._object is not None  # not closed
        shift = min(max(sample_shift, 0), MAX_SAMPLE_SHIFT)
        self._settings.write(_SKIP_MASK_AT, struct.pack("<I", (1 << shift) - 1))
        if self.is_attached:
            return
        lib = libbpf.library()
        for _, handle in self._object.programs():
            link = lib.bpf_program__attach_trace(handle)
            if code := lib.libbpf_get_error(ctypes.c_void_p(link)) or (not link and -ctypes.get_errno()):
                self.detach()
                raise _refusal(OSError(-code, os.strerror(-code)))
            self._links.append(ctypes.c_void_p(link))

    def detach(self) -> None:
        """Let the kernel run without the programs; groups and histograms stay."""
        for link in self._links:
            libbpf.library().bpf_link__destroy(link)
        self._links.clear()

    def send_each(self, quiet_ns: int) -> None:
        """Send no wait so soon after another, from now on."""
        assert self._settings is not None  # not closed
        self._settings.write(_QUIET_AT, struct.pack("<Q", quiet_ns))

    def keep_groups(self, latency_sensitive: Collection[int], best_effort: Collection[int]) -> int:
        """Follow these cgroups and no others; return how many found the map full. Those that stay keep their counts."""
        kinds = dict.fromkeys(best_effort, BEST_EFFORT) | dict.fromkeys(latency_sensitive, LATENCY_SENSITIVE)
        there = {int.from_bytes(key, "little"): value[0] for key, value in self._groups.items()}
        for cgroup_id in there.keys() - kinds.keys():
            self._groups.delete(cgroup_id.to_bytes(8, "little"))
        missed = 0
        for cgroup_id, kind in kinds.items():
            if there.get(cgroup_id) != kind:
                value = kind.to_bytes(_KIND_BYTES, "little").ljust(self._groups.value_bytes, b"\0")
                missed += not self._groups.update(cgroup_id.to_bytes(8, "little"), value)
        return missed

    def groups(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of every cgroup that is followed."""
        return list(self._groups.items())

    def fileno(self) -> int:
        """Return the ring's fd, for the event loop."""
        assert self._ring is not None  # not closed
        return self._ring.fileno()

    def read(self) -> list[bytes]:
        """Return the records that are there, oldest first, a bounded number; the fd stays readable; never waits."""
        return self._ring.read() if self._ring else []

    def run_time(self) -> RunTime:
        """Return what the programs did since they were loaded. Cost: 1 µs a CPU."""
        assert self._cpus is not None  # not closed
        rows = [_CPU.unpack_from(self._cpus, at) for at in range(0, self._cpus_bytes, _CPU.size)]
        return RunTime(*map(sum, zip(*rows, strict=True)))

    def close(self) -> None:
        """Detach and free everything; twice is harmless."""
        self.detach()
        for part in (self._ring, self._settings, self._cpus, self._object):
            if part is not None:
                part.close()
        self._ring = None


def support_of_tracing(check_layout: LayoutCheck) -> SignalSource:
    """Return how run-queue latency is measured here, found by attaching the programs and detaching them again."""
    how = "BTF tracepoints sched_wakeup and sched_switch, where wake.scheduler is on"
    try:
        with SchedLatency(0, 0, check_layout) as latency:
            latency.attach(MAX_SAMPLE_SHIFT)
    except SupportError as error:
        cost = "wake.scheduler has no effect"
        return SignalSource("run-queue latency", "", False, error.reason, error.remedy, cost)
    return SignalSource("run-queue latency", how, works=True)


def _refusal(error: OSError) -> SupportError:
    return SupportError(_FEATURE, *explain_refusal(error))
