"""The BPF programs as one thing: loaded, attached, and read. Which of them work here is found by trying.

Owns the objects, their shared maps and the ring; gives bytes, which `koordebpf.events` decodes. A program that cannot
be had here leaves the others working and its reason in `sources`.
"""

from __future__ import annotations

import errno
import mmap
import struct
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self

import msgspec

from koordebpf.errors import SupportError
from koordebpf.kernel import libbpf
from koordebpf.kernel.objects import object_path

# Records and map values of each object that are held against its BTF.
LayoutCheck = Callable[[str, tuple[int, Mapping[str, int]]], None]
_STRUCTS = {
    "reclaim": ("koord_reclaim", "koord_kswapd", "koord_stall", "koord_totals", "koord_settings"),
    "oom": ("koord_oom_kill",),
    "cgroups": ("koord_cgroup",),
    "memcg_iter": ("koord_memcg",),
}

OBJECTS = tuple(_STRUCTS)
LISTENING = tuple(name for name in OBJECTS if name != "memcg_iter")  # for who measures nothing: a third less to load

# Object → its programs: what each is to a reader of `doctor`, and what its absence costs.
_SIGNALS = {
    "reclaim": {
        "on_mm_vmscan_direct_reclaim_begin": (
            "global reclaim stalls",
            "stalls of the node's own shortage are not timed",
        ),
        "on_mm_vmscan_memcg_reclaim_begin": (
            "memcg-limit reclaim stalls",
            "a pod that thrashes in its limit is not seen",
        ),
        "on_mm_vmscan_kswapd_wake": ("kswapd activity", "background reclaim is not counted"),
    },
    "oom": {"on_mark_victim": ("OOM kills with their cgroup", "OOM kills are not reported")},
    "cgroups": {
        "on_cgroup_mkdir": ("cgroup births and deaths", "new pods are found by rescans, up to a second late"),
        "on_cgroup_rename": ("cgroup renames", "a renamed cgroup is found by the next rescan"),
    },
    "memcg_iter": {
        "scan_memcgs": (
            "usage of all cgroups in one pass",
            "one file read per cgroup instead: about ten times the cost",
        ),
    },
}

_SETTINGS = struct.Struct("<QQIIIIII")
_TRACE_KSWAPD_AT = 24  # offsets in koord_settings
_MEMCGS_AT = 28  # memcgs_full follows


class SignalSource(msgspec.Struct, frozen=True):
    """How one signal is obtained on this host, or why it is not."""

    signal: str
    how: str
    works: bool
    reason: str = ""
    remedy: str = ""
    cost: str = ""  # what is lost while it does not work


class KernelSignals:
    """All BPF programs, attached to the running kernel.

    Args:
        hierarchy_id: of the memory controller's hierarchy in /proc/cgroups; 0 on cgroup v2.
        scan_root_fd: directory of the cgroup that scans start at; it must stay open.
        node_cgroup_id: the cgroup that is the node; None: the machine.
        min_stall_ns: shorter reclaim episodes are counted but not sent.
        objects: which to load; the scan is needed by whoever measures, not by whoever only listens.
        check_layout: called with each structure of the objects' BTF; raises SupportError on drift.
    """

    def __init__(
        self,
        *,
        hierarchy_id: int,
        scan_root_fd: int,
        node_cgroup_id: int | None,
        min_stall_ns: int,
        check_layout: LayoutCheck,
        objects: Collection[str] = OBJECTS,
    ) -> None:
        self.sources: list[SignalSource] = []
        self.ring: libbpf.RingReader | None = None
        self._objects: list[libbpf.Object] = []
        self._shared: dict[str, libbpf.Map] = {}
        self._stalls: libbpf.Map | None = None
        self._scan_fd: int | None = None
        self._memcgs: mmap.mmap | None = None
        self._memcgs_view: memoryview | None = None
        self._totals: mmap.mmap | None = None
        self._settings: mmap.mmap | None = None
        self._check_layout = check_layout
        self._bytes: dict[str, int] = {}  # structure → size, as the objects' BTF has it
        first_settings = _SETTINGS.pack(min_stall_ns, node_cgroup_id or 0, hierarchy_id, _numa_node_ids(), 0, 0, 0, 0)
        try:
            for name in OBJECTS:
                if name in objects:
                    self._add(name, scan_root_fd, first_settings)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, scan_root_fd: int, first_settings: bytes) -> None:
        # One object; a failure before its programs attach concerns all of them.
        obj: libbpf.Object | None = None
        try:
            obj = libbpf.Object(object_path(name))
            for struct_name in _STRUCTS[name]:
                layout = obj.layout(struct_name)
                self._check_layout(struct_name, layout)
                self._bytes[struct_name], _ = layout
            for shared in self._shared.values():
                obj.reuse_map(shared.name, shared.fd)
            obj.load()
        except OSError as error:
            if obj:
                obj.close()
            reason, remedy = libbpf.explain_errno(error.errno or errno.EINVAL)
            for signal, cost in _SIGNALS[name].values():
                self.sources.append(SignalSource(signal, "BPF", works=False, reason=reason, remedy=remedy, cost=cost))
            return
        except BaseException:
            if obj:
                obj.close()
            raise
        self._objects.append(obj)
        if not self._shared:
            self._shared = {shared: obj.map(shared, 0) for shared in ("events", "totals", "settings")}
            self.ring = libbpf.RingReader(self._shared["events"])
            self._totals = self._shared["totals"].memory()
            self._settings = self._shared["settings"].memory(writable=True)
            self._settings[: len(first_settings)] = first_settings
        failures: dict[str, OSError] = {}
        for program, handle in obj.programs():
            try:
                if program == "scan_memcgs":
                    self._scan_fd = obj.attach_cgroup_iter(program, handle, scan_root_fd)
                    self._memcgs = obj.map("memcgs", self._bytes["koord_memcg"]).memory()
                    self._memcgs_view = memoryview(self._memcgs)
                else:
                    obj.attach(program, handle)
            except OSError as error:
                failures[program] = error
        if name == "reclaim":
            self._stalls = obj.map("stalls", self._bytes["koord_stall"])
        self._describe(name, failures)

    def _describe(self, name: str, failures: Mapping[str, OSError]) -> None:
        for program, (signal, cost) in _SIGNALS[name].items():
            partner = program.replace("_begin", "_end").replace("_wake", "_sleep").replace("mkdir", "rmdir")
            error = failures.get(program) or failures.get(partner)
            how = "BPF cgroup iterator" if program == "scan_memcgs" else f"raw tracepoint {program.removeprefix('on_')}"
            if error is None:
                self.sources.append(SignalSource(signal, how, works=True))
            else:
                reason, remedy = libbpf.explain_errno(error.errno or errno.EINVAL)
                self.sources.append(SignalSource(signal, how, works=False, reason=reason, remedy=remedy, cost=cost))

    @property
    def can_scan(self) -> bool:
        """Whether `scan` works on this kernel."""
        return self._scan_fd is not None

    def scan(self) -> memoryview:
        """Return whole struct koord_memcg rows, one for each memory cgroup below the scan's root, parents first.

        The memory is the map itself: it holds until the next scan, and `release()` it before `close`.
        Raises:  SupportError: no iterator here. OSError: the root is gone.
        Cost:    0.1 ms for 330 cgroups (bpf/README.md).
        """
        if self._scan_fd is None or self._settings is None or self._memcgs_view is None:
            raise SupportError(
                "one-pass scan", "this kernel has no cgroup iterator", "Read the cgroups' files instead."
            )
        struct.pack_into("<II", self._settings, _MEMCGS_AT, 0, 0)
        libbpf.run_iter(self._scan_fd)
        rows, _missed = struct.unpack_from("<II", self._settings, _MEMCGS_AT)
        return self._memcgs_view[: rows * self._bytes["koord_memcg"]]

    def scan_missed(self) -> int:
        """Return how many cgroups the last scan could not hold."""
        if self._settings is None:
            return 0
        return int(struct.unpack_from("<I", self._settings, _MEMCGS_AT + 4)[0])

    def totals(self) -> bytes:
        """Return struct koord_totals as it is now; empty where no program could be loaded."""
        return self._totals[:] if self._totals is not None else b""

    def stalls(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of every cgroup that stalled since load."""
        return list(self._stalls.items()) if self._stalls else []

    def forget(self, cgroup_id: int) -> None:
        """Free the stall sums of a cgroup that is gone."""
        if self._stalls:
            self._stalls.delete(cgroup_id.to_bytes(8, "little"))

    def trace_kswapd(self, *, on: bool) -> None:
        """Send kswapd records, or stop."""
        if self._settings is not None:
            struct.pack_into("<I", self._settings, _TRACE_KSWAPD_AT, int(on))

    def close(self) -> None:
        """Detach everything; twice is harmless."""
        if self.ring:
            self.ring.close()
            self.ring = None
        if self._memcgs_view is not None:
            self._memcgs_view.release()
            self._memcgs_view = None
        for memory in (self._memcgs, self._totals, self._settings):
            if memory is not None:
                memory.close()
        self._memcgs = self._totals = self._settings = None
        self._scan_fd = None
        for obj in reversed(self._objects):
            obj.close()
        self._objects.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _numa_node_ids() -> int:
    # struct mem_cgroup.nodeinfo has one entry for each possible node id, so the last possible one bounds the walk.
    try:
        with open("/sys/devices/system/node/possible") as file:  # noqa: PTH123 - one small read at start
            return int(file.read().strip().replace("-", ",").split(",")[-1]) + 1
    except (OSError, ValueError):
        return 1
