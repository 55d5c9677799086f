"""The BPF programs for kernels with headers but without BTF: a child compiles them with bcc and hands them over.

Owns the fds, which keep the programs attached; knows nothing of bcc itself, which ends with the child.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Mapping
from typing import Any

from koordebpf.errors import ConfigError, SupportError
from koordebpf.kernel.bcc.process import TIME_LIMIT_S, Builder
from koordebpf.kernel.bpf.libbpf import Map, RingReader
from koordebpf.kernel.bpf.maps import SignalMaps
from koordebpf.kernel.bpf.perf_buffer import PerfReader
from koordebpf.kernel.bpf.probe_health import ProbeWatch, RecursionMisses
from koordebpf.kernel.bpf.programs import SCAN_TOPIC, SIGNALS, describe, source_folder
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.signals import BackendName, LayoutCheck, SignalRequest, SignalSource

# An older release, as "5.4", whose ways are taken on this kernel: perf buffer before 5.8, arrays not mapped before 5.5.
RELEASE_VARIABLE = "KOORDEBPF_BCC_RELEASE"
_RINGBUF = 27  # enum bpf_map_type


class BccSignals(Closing):
    """A `Backend` of BPF programs that bcc compiled against the running kernel's headers.

    Args:
        request: the node.
        check_layout: called with each structure as the compiler laid it out; raises SupportError on drift.
        time_limit_s: after which what is not built is given up.
    Raises:  SupportError: no bcc, no kernel headers, or the two do not go together; nothing stays attached then.
    Cost:    start: seconds of CPU and 200 MB, all in the child.
    """

    def __init__(self, request: SignalRequest, check_layout: LayoutCheck, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.name: BackendName = "bcc"
        self.sources: list[SignalSource] = []
        self._fds: list[int] = []
        self._maps: SignalMaps | None = None
        self._reader: RingReader | PerfReader | None = None
        self._probes: ProbeWatch | None = None
        self._missed: RecursionMisses | None = None
        self._lost_at = 0
        try:
            flags = _flags(os.environ.get(RELEASE_VARIABLE))
            with Builder(source_folder(), flags, time_limit_s) as builder:
                self._adopt_maps(*builder.build(), request, check_layout)
                self._adopt_programs(*builder.attach(), request)
        except OSError as error:
            self.close()
            raise SupportError(
                "BPF programs by bcc", str(error), "Give the agent memory, CAP_BPF and CAP_PERFMON."
            ) from None
        except BaseException:
            self.close()
            raise

    def _adopt_maps(
        self, built: Mapping[str, Any], fds: list[int], request: SignalRequest, check_layout: LayoutCheck
    ) -> None:
        self._fds += fds
        layouts: Mapping[str, tuple[int, Mapping[str, int]]] = {
            name: (size, offsets) for name, (size, offsets) in built["layouts"].items()
        }
        for name, layout in layouts.items():
            check_layout(name, layout)
        maps = {}
        for (name, kind, value_bytes, entries), fd in zip(built["maps"], fds, strict=True):
            maps[name] = Map(name, fd, value_bytes, entries)
            if name == "events":
                is_ring = kind == _RINGBUF
                self._reader = RingReader(maps[name]) if is_ring else PerfReader(maps[name])
        self._lost_at = layouts["koord_totals"][1]["ring_lost"]
        self._maps = SignalMaps(maps)
        self._maps.listen_to(request)

    def _adopt_programs(self, answer: Mapping[str, Any], fds: list[int], request: SignalRequest) -> None:
        self._fds += fds
        how = {program: way for program, way, _, _ in answer["programs"]}
        failures = {program: OSError(code, words) for program, _, code, words in answer["programs"] if code}
        for topic in SIGNALS:
            if topic != SCAN_TOPIC:
                self.sources += describe(topic, how, failures)
        if request.measures:
            for signal, cost in SIGNALS[SCAN_TOPIC].values():
                self.sources.append(
                    SignalSource(
                        signal,
                        "",
                        works=False,
                        reason="bcc builds no cgroup iterator, whose context is a BTF type",
                        remedy="Use a kernel with CONFIG_DEBUG_INFO_BTF=y, Linux 6.1 or newer.",
                        cost=cost,
                    )
                )
        attached = [program for program, _, code, _ in answer["programs"] if not code]
        links = dict(zip(attached, fds[1::2], strict=True))
        if self._maps:
            self._missed = RecursionMisses(dict(zip(attached, fds[::2], strict=True)), self._maps)
        self._probes = ProbeWatch(links, self.totals, {source.signal: source for source in self.sources})

    def listen_to(self, request: SignalRequest) -> None:
        """Take another node or another threshold, which needs no compiler; counters and sums continue."""
        if self._maps:
            self._maps.listen_to(request)

    def fileno(self) -> int | None:
        """Return the fd of the ring or of the perf buffers, readable when `read` has something."""
        return self._reader.fileno() if self._reader else None

    def read(self) -> list[bytes]:
        """Return all records that are there, oldest first (of each CPU, before Linux 5.8); never waits."""
        return self._reader.read() if self._reader else []

    def totals(self) -> bytes:
        """Return struct koord_totals as it is now."""
        if self._maps is None:
            return b""
        if self._missed:
            self._missed.poll()
        totals = self._maps.totals()
        if isinstance(self._reader, PerfReader):
            # Since v5.1 the program learns too that its record was lost, so both counts are of the same records.
            (seen,) = struct.unpack_from("<Q", totals, self._lost_at)
            lost = max(seen, self._reader.lost).to_bytes(8, "little")
            totals = totals[: self._lost_at] + lost + totals[self._lost_at + 8 :]
        return totals

    def stalls(self) -> list[tuple[bytes, bytes]]:
        """Return key and value of every cgroup that stalled since load."""
        return self._maps.stalls() if self._maps else []

    def forget(self, cgroup_id: int) -> None:
        """Free the stall sums of a cgroup that is gone."""
        if self._maps:
            self._maps.forget(cgroup_id)

    @property
    def can_scan(self) -> bool:
        """Whether `scan` works: bcc builds no iterator."""
        return False

    def scan(self) -> memoryview:
        """Raise SupportError: the files are to be read instead."""
        raise SupportError("one-pass scan", "bcc builds no cgroup iterator", "Read the cgroups' files instead.")

    def scanned(self) -> memoryview:
        """Raise as `scan` does."""
        return self.scan()

    def scan_missed(self) -> int:
        """Return 0: there is no scan that could miss a cgroup."""
        return 0

    def send_kinds(self, kinds: int) -> None:
        """Send the records of these kinds, bit 1 << enum koord_kind for each; all are counted."""
        if self._maps:
            self._maps.send_kinds(kinds)

    def send_only(self, cgroup_ids: Collection[int] | None) -> None:
        """Send only records of these cgroups; None: of all. All are counted."""
        if self._maps:
            self._maps.send_only(cgroup_ids)

    def lost_probes(self) -> list[SignalSource]:
        """Return the sources that worked at start and do not any more, each with its reason."""
        return self._probes.lost() if self._probes else []

    def close(self) -> None:
        """Detach everything; twice is harmless."""
        if self._probes:
            self._probes.close()
            self._probes = None
        self._missed = None
        if self._reader:
            self._reader.close()
            self._reader = None
        if self._maps:
            self._maps.close()
            self._maps = None
        while self._fds:
            os.close(self._fds.pop())


def _flags(release: str | None) -> list[str]:
    if not release:
        return []
    if not re.fullmatch(r"\d+\.\d+", release):
        raise ConfigError(RELEASE_VARIABLE, release, "must be a kernel release as 5.4")
    return [f"-DKOORD_RELEASE=KERNEL_VERSION({release.replace('.', ',')},0)"]
