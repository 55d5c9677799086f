"""Detect BPF recursion misses (`recursion_misses`) and expire stalls whose end was missed.

A program is not run where it is running on that CPU already. That takes a preemption in the middle of it, which
kernels that preempt lazily do (seen on 7.2). A begin that is missed is one stall less; a missed end leaves its thread
stalled. Most such are closed by what their thread does next (`lost_ends` of struct koord_totals); for the others who is
stalled is counted from zero.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.maps import SignalMaps
from koordebpf.kernel.bpf.programs import ENDS, LIFECYCLE

_LOOK_NS = 10**9  # why: 18 programs are 0.1 ms of a node at rest; what was missed shows in shares of 10 s
_FORGET_NS = 60 * 10**9


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

    def look(self, now_ns: int | None = None) -> None:
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
