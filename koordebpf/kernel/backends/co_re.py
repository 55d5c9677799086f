"""The BPF programs as one thing: loaded, attached, and read. Which of them work here is found by trying.

Owns the object, its maps and the ring; gives bytes, which `koordebpf.events` decodes. A program that does not load here
leaves the others working and its reason in `sources`.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.co_re import CoreObject
from koordebpf.kernel.bpf.iterators import MemcgScan
from koordebpf.kernel.bpf.maps import SignalMaps
from koordebpf.kernel.bpf.probe_health import ProbeWatch, RecursionMisses
from koordebpf.kernel.bpf.programs import SCAN, SIGNALS, describe, object_path
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.signals import BackendName, LayoutCheck, SignalRequest, SignalSource

_STRUCTS = (
    "koord_head",
    "koord_reclaim",
    "koord_oom_kill",
    "koord_wait",
    "koord_populated",
    "koord_migration",
    "koord_cgroup",
    "koord_kswapd",
    "koord_stall_sum",
    "koord_stall",
    "koord_totals",
    "koord_settings",
    "koord_memcg",
)


_MAPS = ("totals", "settings", "stalls", "wanted", "start")


class KernelSignals(Closing):
    """All BPF programs, attached to the running kernel: the backend `co-re`.

    Where the object as a whole does not load, `sources` say why and nothing else works.

    Args:
        request: the node, and what is wanted of it.
        check_layout: called with each structure of the object's BTF.

    Raises:  SupportError: no libbpf, no object, or one of another layout. OSError: the root is gone.
    """

    def __init__(self, request: SignalRequest, check_layout: LayoutCheck) -> None:
        self.name: BackendName = "co-re"
        self.sources: list[SignalSource] = []
        self._request = request
        self._check_layout = check_layout
        self._core: CoreObject | None = None
        self._maps: SignalMaps | None = None
        self._ring: libbpf.RingReader | None = None
        self._scan: MemcgScan | None = None
        self._probes: ProbeWatch | None = None
        self._missed: RecursionMisses | None = None
        try:
            self._start()
        except OSError as error:
            self.close()
            for topic in SIGNALS:
                self.sources += describe(topic, {}, dict.fromkeys(SIGNALS[topic], error))
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        scan_root_fd = os.open(self._request.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            core = self._core = CoreObject(
                object_path("koordebpf"),
                prepare=self._prepare,
                fill=self._fill,
                leave_out=() if self._request.measures else (SCAN,),
                scan_root_fd=scan_root_fd,
            )
        finally:
            os.close(scan_root_fd)
        for topic in SIGNALS:
            self.sources += describe(topic, core.how, core.failures)
        links = core.object.links()
        self._ring = libbpf.RingReader(core.object.map("events", 0))
        self._maps = SignalMaps({name: core.object.map(name, 0) for name in _MAPS})
        self._missed = RecursionMisses(core.object.attached(), self._maps)
        if SCAN in links:
            self._scan = MemcgScan(links[SCAN], self._maps.settings, core.object.map("memcgs", 0))
        self._probes = ProbeWatch(links, self._maps.totals, {source.signal: source for source in self.sources})

    def _prepare(self, obj: libbpf.Object) -> None:
        for name in _STRUCTS:
            self._check_layout(name, obj.layout(name))
        if not self._request.measures:
            obj.set_max_entries("memcgs", 1)

    def _fill(self, obj: libbpf.Object) -> None:
        maps = SignalMaps({name: obj.map(name, 0) for name in ("totals", "settings", "stalls")})
        maps.listen_to(self._request)
        maps.close()

    def fileno(self) -> int | None:
        """Return the ring's fd, readable when `read` has something; None: no program could be loaded."""
        return self._ring.fileno() if self._ring else None

    def read(self) -> list[bytes]:
        """Return the records that are there, oldest first, a bounded number; the fd stays readable; never waits."""
        return self._ring.read() if self._ring else []

    @property
    def can_scan(self) -> bool:
        """Whether `scan` works on this kernel."""
        return self._scan is not None

    def scan(self) -> memoryview:
        """Return whole struct koord_memcg rows, one for each memory cgroup below the scan's root, parents first.

        The memory is the map itself: it holds until the next scan, and `release()` it before `close`.
        Raises:  SupportError: no iterator here. OSError: the root is gone.
        Cost:    in bpf/README.md.
        """
        return self._need_scan().run()

    def scanned(self) -> memoryview:
        """Return the rows of the last scan once more; as that one's, they hold until the next."""
        return self._need_scan().rows()

    def _need_scan(self) -> MemcgScan:
        if self._scan is None:
            raise SupportError(
                "one-pass scan", "this kernel has no cgroup iterator", "Read the cgroups' files instead."
            )
        return self._scan

    def scan_missed(self) -> int:
        """Return how many cgroups the last scan could not hold."""
        return self._scan.missed() if self._scan else 0

    def totals(self) -> bytes:
        """Return struct koord_totals as it is now; empty where no program could be loaded."""
        if self._maps is None or self._missed is None:
            return b""
        self._missed.poll()
        return self._maps.totals()

    def stalls(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of every cgroup that stalled since load."""
        return self._maps.stalls() if self._maps else []

    def forget(self, cgroup_id: int) -> None:
        """Free the stall sums of a cgroup that is gone."""
        if self._maps:
            self._maps.forget(cgroup_id)

    def send_kinds(self, kinds: int) -> None:
        """Send the records of these kinds, bit 1 << enum koord_kind for each; all are counted."""
        if self._maps:
            self._maps.send_kinds(kinds)

    def send_only(self, cgroup_ids: Collection[int] | None) -> None:
        """Send only records of these cgroups; None: of all. All are counted.

        Raises:  SupportError: more cgroups than the kernel's map holds.
        """
        if self._maps:
            self._maps.send_only(cgroup_ids)

    def lost_probes(self) -> list[SignalSource]:
        """Return the sources that worked at start and do not any more, each with its reason."""
        return self._probes.lost() if self._probes else []

    def close(self) -> None:
        """Detach everything; twice is harmless."""
        for part in (self._probes, self._ring, self._scan, self._maps):
            if part is not None:
                part.close()
        self._probes = self._ring = self._scan = self._maps = self._missed = None
        if self._core is not None:
            self._core.object.close()
            self._core = None
