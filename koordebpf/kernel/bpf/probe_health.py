"""Notices a program that runs no more: its link is gone, or the kernel counts what the program does not.

The second is how a tracepoint looks that a live patch or a module's unload took away: nothing tells, it is only silent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.programs import SIGNALS, partner_of
from koordebpf.kernel.proc.vmstat import Vmstat, VmstatValues
from koordebpf.kernel.signals.interface import SignalSource

_TOTALS = struct.Struct("<15Q")  # the first members of struct koord_totals, up to `ignored`
# What the kernel counts a moment before the program does may be in flight; this many at once are not.
_SILENT = 23
_REMEDY = "Restart the agent."


class ProbeWatch:
    """Compares, from call to call, what the kernel counts with what the programs count.

    Args:
        links: program → fd of what attaches it.
        totals: gives struct koord_totals.
        sources: the signals as they were at start.
    """

    def __init__(
        self, links: Mapping[str, int], totals: Callable[[], bytes], sources: Mapping[str, SignalSource]
    ) -> None:
        self._links = {name: (fd, libbpf.link_identity(fd)) for name, fd in links.items()}
        self._totals = totals
        self._sources = sources
        self._lost: dict[str, SignalSource] = {}
        self._vmstat = Vmstat()
        self._before = self._vmstat.read(), _seen(self._totals())

    def lost(self) -> list[SignalSource]:
        """Return the signals that worked at start and do not any more; one that is lost stays so."""
        for name, (fd, identity) in self._links.items():
            if identity is not None and libbpf.link_identity(fd) != identity:
                self._lose(name, "its link is gone")
        kernel, ours = self._vmstat.read(), _seen(self._totals())
        for program, reason in silent_programs(*self._before, kernel, ours):
            self._lose(program, reason)
        self._before = kernel, ours
        return list(self._lost.values())

    def _lose(self, program: str, reason: str) -> None:
        for topic in SIGNALS.values():
            for first, (signal, cost) in topic.items():
                source = self._sources.get(signal)
                if program in (first, partner_of(first)) and source and source.works:
                    self._lost.setdefault(
                        signal, SignalSource(signal, source.how, works=False, reason=reason, remedy=_REMEDY, cost=cost)
                    )

    def close(self) -> None:
        """Close what is read; twice is harmless."""
        self._vmstat.close()


def silent_programs(
    kernel_before: VmstatValues, ours_before: Mapping[str, int], kernel: VmstatValues, ours: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Return each program that saw nothing of what the kernel counted meanwhile, with the reason in words."""
    rows = (
        ("on_mm_vmscan_direct_reclaim_begin", "allocstall", "reclaim"),
        ("on_mm_compaction_begin", "compact_stall", "compaction"),
        ("on_mark_victim", "oom_kill", "oom_kill"),
    )
    silent = []
    for program, row, counter in rows:
        happened = (getattr(kernel, row) or 0) - (getattr(kernel_before, row) or 0)
        if happened >= _SILENT and ours[counter] == ours_before[counter]:
            silent.append((program, f"the kernel counted {happened} × {row} and the program saw none"))
    return silent


def _seen(totals: bytes) -> dict[str, int]:
    # What was seen and set aside counts too: only silence is meant.
    numbers = _TOTALS.unpack_from(totals)
    episodes, compactions, oom_kills = numbers[0], numbers[1], numbers[6]
    aside = sum(numbers[11:15])
    return {"reclaim": episodes + aside, "compaction": compactions + aside, "oom_kill": oom_kills + aside}
