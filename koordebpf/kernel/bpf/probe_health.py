"""Notices a program that runs no more, or that missed runs: its link is gone, or the kernel counts what it does not.

The second is how a tracepoint looks that a live patch or a module's unload took away: nothing tells, it is only silent.

A program is not run where it is running on that CPU already (`recursion_misses`). That takes a preemption in the middle
of it, which kernels that preempt lazily do (seen on 7.2). A begin that is missed is one stall less; a missed end leaves
its thread stalled. Most such are closed by what their thread does next (`lost_ends` of struct koord_totals); for the
others who is stalled is counted from zero.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping

from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.maps import SignalMaps
from koordebpf.kernel.bpf.programs import ENDS, LIFECYCLE, SIGNALS, partner_of
from koordebpf.kernel.proc.vmstat import Vmstat, VmstatValues
from koordebpf.kernel.signals import SignalSource

_LOOK_NS = 10**9  # why: 18 programs are 0.1 ms of a node at rest; what was missed shows in shares of 10 s
_FORGET_NS = 60 * 10**9
_TOTALS = struct.Struct("<15Q")  # the first members of struct koord_totals, up to `ignored`
# What the kernel counts a moment before the program does may be in flight; this many at once are not.
_SILENT = 23
_REMEDY = "Restart the agent."


class OpenEnds:
    """Tells ends that stay open from those that their thread is about to close, which show in a single look only."""

    def __init__(self) -> None:
        self._before = self._settled = 0

    def push(self, still_open: int) -> bool:
        """Return whether something stays open that was not before.

        Args:
            still_open: ends that were missed and not closed since; below zero, more were lost than the kernel tells.
        """
        least, most = sorted((self._before, still_open))
        self._before = still_open
        if least <= self._settled <= most:
            return False
        self._settled = least if self._settled < least else most
        return True


class RecursionMisses:
    """Polls `recursion_misses` of each program, and raises the epoch of the maps when an end stays lost.

    Args:
        programs: name → fd of every attached program; the caller owns the fds.
    """

    def __init__(self, programs: Mapping[str, int], maps: SignalMaps) -> None:
        self._programs = dict(programs)
        self._maps = maps
        self._looked_ns = self._forgot_ns = 0
        self._open = OpenEnds()
        self._has_restarted = False

    def poll(self, now_ns: int | None = None) -> None:
        """Ask again, if the last time was long enough ago. Afterwards the maps' totals tell of it."""
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        if now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        missed = {name: libbpf.missed_runs(fd) for name, fd in self._programs.items()}
        self._maps.missed = sum(missed.values()), sum(missed.get(name, 0) for name in LIFECYCLE)
        if self._open.push(sum(missed.get(name, 0) for name in ENDS) - self._maps.lost_ends()):
            self._maps.restart_epoch()
            self._has_restarted = True
        if self._has_restarted and now_ns - self._forgot_ns > _FORGET_NS:
            self._forgot_ns = now_ns
            self._maps.expire_stalls(now_ns)


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
