"""The dead man's object: loaded where it is switched on, given its order at each heartbeat, asked what it did.

Owns its maps and links. They end with this process: an agent that is killed leaves no armed program.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Literal

import msgspec

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.lockdown import explain_refusal, opening
from koordebpf.kernel.bpf.maps import Element, numa_node_ids
from koordebpf.kernel.bpf.programs import object_path
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE
from koordebpf.kernel.signals import SignalSource
from koordebpf.units import PAGE_SHIFT

Mode = Literal["off", "count", "kill"]
StallSource = Literal["psi", "reclaim"]  # what is counted: what PSI counts, or direct reclaim

_FEATURE = "dead man's switch"
_KFUNC = "bpf_send_signal_task"  # kernel/trace/bpf_trace.c, since v6.13
# Programs of one source only; the others serve both, direct reclaim's begin among them.
_PROGRAMS: dict[StallSource, frozenset[str]] = {
    "psi": frozenset({"on_deadman_enter", "on_deadman_leave"}),
    "reclaim": frozenset({"on_deadman_direct_end", "on_deadman_memcg_begin", "on_deadman_memcg_end"}),
}
_COUNTS: dict[StallSource, str] = {
    "psi": "counts what PSI counts as a stall for memory",
    "reclaim": "counts direct reclaim alone",
}
_MODES: tuple[Mode, ...] = ("off", "count", "kill")  # enum koord_deadman_mode
_NEVER = (1 << 64) - 1
_HEARTBEAT = struct.Struct("<Q")
_LEVELS = 4  # KOORD_DEADMAN_LEVELS
_ORDER = struct.Struct(f"<8Q4I{_LEVELS}Q")  # struct koord_deadman_order
_ORDER_MEMBERS = (
    *("heartbeat_ns", "after_ns", "stall_ns", "until_ns", "victim_id", "node_cgroup_id", "above_pages"),
    *("below_pages", "mode", "numa_nodes", "percent", "page_shift", "above_ids"),
)
_MODE_AT = 64  # offset in koord_deadman_order
_REPORT = struct.Struct("<6Q5Ii4Q")  # struct koord_deadman_report
_REPORT_MEMBERS = (
    *("heartbeat_ns", "fired_ns", "victim_id", "stall_ns", "pages", "swept_ns", "mode", "sweeps", "seen"),
    *("signalled", "refused", "error", "fired", "late_stalls", "spared", "at_limit"),
)


class DeadManOrder(msgspec.Struct, frozen=True):
    """What the programs do once the heartbeat is late. Nanoseconds, of CLOCK_MONOTONIC where they are a moment.

    `node_cgroup_id` 0: the machine is the node, which is short with less than `below_pages` free or easily reclaimed; a
    node cgroup is with `above_pages` in use beside what is easily reclaimed. `victim_id` 0: no pod. After `until_ns`
    nothing is done: the choice is too old.

    `above_ids`: cgroups above the victim and below the node, the nearest first; of more than four the nearest count.
    Stalls at the limit of one of them count where `percent` of it is in use beside what is easily reclaimed.

    `page_shift`: by which the programs make pages of bytes; they know no page size.
    """

    after_ns: int
    stall_ns: int
    victim_id: int = 0
    until_ns: int = 0
    node_cgroup_id: int = 0
    above_pages: int = _NEVER
    below_pages: int = 0
    percent: int = 100
    above_ids: tuple[int, ...] = ()
    page_shift: int = PAGE_SHIFT
    mode: Mode = "off"


class DeadManReport(msgspec.Struct, frozen=True):
    """What the programs did last, and sums since they were loaded. Moments are CLOCK_MONOTONIC nanoseconds.

    `at_limit` 1: tasks stalled at a limit above the victim, not at the node's.
    """

    heartbeat_ns: int
    fired_ns: int
    victim_id: int
    stall_ns: int
    pages: int
    mode: Mode
    seen: int
    signalled: int
    refused: int
    error: int
    fired: int
    late_stalls: int
    spared: int
    at_limit: int


class DeadMan(Closing):
    """The programs, attached and off until the first `beat`.

    Args:
        source: of stalls. None: PSI where the kernel accounts it and lets its functions be traced, else reclaim.

    Source:  functions psi_memstall_enter and _leave (kernel/sched/psi.c) by fentry; without PSI tracepoints
             mm_vmscan_direct_reclaim_end, mm_vmscan_memcg_reclaim_begin and _end, by BTF; with either
             mm_vmscan_direct_reclaim_begin and mm_vmscan_lru_shrink_inactive, and kfuncs bpf_send_signal_task and
             bpf_iter_task_new.
    Raises:  SupportError: no libbpf, no object, one of another layout, or the kernel refuses it.
    Cost:    docs/dead-man.md.
    """

    def __init__(self, source: StallSource | None = None) -> None:
        self._numa_nodes = numa_node_ids()
        self._order: Element | None = None
        self._report: Element | None = None
        self._object: libbpf.Object | None = None
        self._why = "" if NODE_MEMORY_PRESSURE.exists() else "this kernel accounts no pressure"
        self.source: StallSource = source or ("reclaim" if self._why else "psi")
        with opening(_FEATURE, self.close, _explain):
            self._open_any(may_fall_back=source is None)

    @property
    def counts(self) -> str:
        """What is counted, for messages, and why it is not what PSI counts."""
        return _COUNTS[self.source] + (f" ({self._why})" if self.source == "reclaim" and self._why else "")

    # Where functions cannot be traced the other programs may still work.
    def _open_any(self, *, may_fall_back: bool) -> None:
        try:
            self._open()
        except OSError as error:
            if not may_fall_back or self.source == "reclaim":
                raise
            self.close()
            self.source, self._why = "reclaim", f"psi_memstall_enter cannot be traced: {error.strerror}"
            self._open()

    def _open(self) -> None:
        opened = self._object = libbpf.Object(object_path("deadman"))
        for name, form, members in (
            ("koord_deadman_order", _ORDER, _ORDER_MEMBERS),
            ("koord_deadman_report", _REPORT, _REPORT_MEMBERS),
        ):
            size, offsets = opened.layout(name)
            if size != form.size or tuple(sorted(offsets, key=offsets.__getitem__)) != members:
                raise SupportError(
                    f"BPF object {opened.name}",
                    f"its {name} is another one",
                    "Build the objects from this package's sources: make bpf.",
                )
        others = _PROGRAMS["psi" if self.source == "reclaim" else "reclaim"]
        for name, handle in opened.programs():
            if name in others:
                opened.leave_out(handle)
        opened.load()
        self._order = Element(opened.map("deadman_order", _ORDER.size), writable=True)
        self._report = Element(opened.map("deadman_report", _REPORT.size))
        for name, handle in opened.programs():
            if name not in others:
                opened.attach_trace(name, handle)

    def beat(self, now_ns: int) -> None:
        """Write the heartbeat. Cost: 0.3 µs."""
        assert self._order is not None  # not closed
        self._order.write(0, _HEARTBEAT.pack(now_ns))

    def order(self, now_ns: int, order: DeadManOrder) -> None:
        """Write the heartbeat, and then what is to be done without the next one.

        While it is written the heartbeat is fresh, and the programs do nothing.
        """
        assert self._order is not None  # not closed
        self.beat(now_ns)
        mode = _MODES.index(order.mode)
        data = _ORDER.pack(
            now_ns,
            order.after_ns,
            order.stall_ns,
            order.until_ns,
            order.victim_id,
            order.node_cgroup_id,
            order.above_pages,
            order.below_pages,
            mode,
            self._numa_nodes,
            order.percent,
            order.page_shift,
            *(*order.above_ids, *[0] * _LEVELS)[:_LEVELS],
        )
        self._order.write(0, data)

    def report(self) -> DeadManReport:
        """Return what the programs did. Cost: 2 µs."""
        assert self._report is not None  # not closed
        heartbeat, fired, victim, stall, pages, _, mode, _, *rest = _REPORT.unpack(self._report.read())
        return DeadManReport(heartbeat, fired, victim, stall, pages, _MODES[mode], *rest)

    def disarm(self) -> None:
        """Let the programs do nothing from now on."""
        if self._order is not None:
            self._order.write(_MODE_AT, bytes(4))

    def close(self) -> None:
        """Disarm, detach and free everything; twice is harmless."""
        self.disarm()
        for part in (self._order, self._report, self._object):
            if part is not None:
                part.close()
        self._order = self._report = None


def support_of_dead_man() -> SignalSource:
    """Return whether the switch works here, found by attaching its programs and detaching them again."""
    try:
        with DeadMan() as programs:
            counts = programs.counts
    except SupportError as error:
        return SignalSource(_FEATURE, "", False, error.reason, error.remedy, "deadMan.action has no effect")
    return SignalSource(_FEATURE, f"BPF programs and {_KFUNC}, where deadMan.action asks for it; {counts}", works=True)


# libbpf answers ESRCH, and older ones EINVAL, where the kernel's BTF has no such function.
def _explain(error: OSError) -> tuple[str, str]:
    reason, remedy = explain_refusal(error)
    if _has_kfunc():
        return reason, remedy
    return f"this kernel has no {_KFUNC}: {reason}", "Boot Linux 6.13 or later."


def _has_kfunc() -> bool:
    library = libbpf.library()
    library.btf__load_vmlinux_btf.restype = ctypes.c_void_p
    library.btf__free.restype = None
    btf = ctypes.c_void_p(library.btf__load_vmlinux_btf())
    if library.libbpf_get_error(btf):
        return False
    try:
        return bool(library.btf__find_by_name_kind(btf, _KFUNC.encode(), 12) > 0)  # BTF_KIND_FUNC
    finally:
        library.btf__free(btf)
