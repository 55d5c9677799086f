"""What the agent's signals are worth on this host: the value that `doctor`, readiness and every decision show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from koordebpf.kernel.signals.interface import Backend, BackendName, SignalSource

StallQuality = Literal["timed", "pressure", "counted", "none"]
LifecycleQuality = Literal["traced", "watched", "rescanned"]
ScanQuality = Literal["one pass", "files"]

# The signals that quality rests on, as every backend names them in its sources.
GLOBAL_STALLS = "global reclaim stalls"
LIMIT_STALLS = "memcg-limit reclaim stalls"
CGROUP_LIFECYCLE = "cgroup births and deaths"

_STALLS: dict[StallQuality, str] = {
    "timed": "each stall is timed",
    "pressure": "stalls are summed up from memory.pressure",
    "counted": "stalls of pods are not timed, hits of limits are counted",
    "none": "stalls are not seen",
}
_LIFECYCLE: dict[LifecycleQuality, str] = {
    "traced": "cgroup creation is traced",
    "watched": "cgroup creation is reported by inotify",
    "rescanned": "new cgroups are found by rescans, up to a second late",
}
_SCAN: dict[ScanQuality, str] = {
    "one pass": "all cgroups are measured in one pass",
    "files": "cgroups are measured by their files",
}


class SignalQuality(msgspec.Struct, frozen=True):
    """How good the signals are that a decision rests on.

    `stalls`  timed: each by a program. pressure: as time in which some task of a cgroup stalled, with refaults and
              swap-ins in it. counted: how often a limit was hit. none: not seen.
    `births`  traced: by programs. watched: by inotify. rescanned: found up to a second late.
    `scan`    one pass: a BPF iterator. files: one file after the other.
    """

    backend: BackendName
    stalls: StallQuality
    births: LifecycleQuality
    scan: ScanQuality
    sentence: str

    @property
    def short(self) -> str:
        """For the end of another sentence."""
        return f"signals: {self.backend}, stalls {self.stalls}, births {self.births}"


def quality_of(backend: Backend, lost: Iterable[SignalSource] = (), missed_runs: int = 0) -> SignalQuality:
    """Return the quality of what a backend gives now.

    Args:
        backend: what is asked.
        lost: the sources that worked at its start only.
        missed_runs: of its programs, which the kernel passed over since.
    """
    works = {source.signal: source.works for source in (*backend.sources, *lost)}
    is_files = backend.name == "files"
    stalls: StallQuality
    if works.get(GLOBAL_STALLS) and works.get(LIMIT_STALLS):
        stalls = "pressure" if is_files else "timed"
    else:
        stalls = "counted" if is_files else "none"
    births: LifecycleQuality = ("watched" if is_files else "traced") if works.get(CGROUP_LIFECYCLE) else "rescanned"
    scan: ScanQuality = "one pass" if backend.can_scan else "files"
    sentence = f"backend {backend.name}: {_STALLS[stalls]}, {_LIFECYCLE[births]}, {_SCAN[scan]}"
    if missed_runs:
        sentence += f"; the kernel passed over {missed_runs} runs of programs"
    return SignalQuality(backend.name, stalls, births, scan, sentence)
