"""How often a file that others change is corrected, and when it is left to them. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from koordebpf.policy.reconcile.values import FileKey
from koordebpf.units import NS_PER_S

_HOUR_NS = 3600 * NS_PER_S


class ForeignPolicy(msgspec.Struct, frozen=True):
    """Policy for cgroup files that another process changed.

    `corrections_per_hour` it is set right so often, then left to them for an hour; 0: at once. Why 12: the kubelet's
                           cpu manager writes each 10 s; two minutes of disagreement are no accident.
    `resets_per_hour`      the same, where systemd puts back what its slice held at first. Why 1200: it does so two to
                           four times for each best-effort pod that starts or ends, and for the kubelet each minute.
    """

    corrections_per_hour: int = 12
    resets_per_hour: int = 1200


class Corrections:
    """Counts corrections by file, over the last hour."""

    def __init__(self, policy: ForeignPolicy) -> None:
        self._policy = policy
        self._times: dict[tuple[FileKey, bool], deque[int]] = {}  # file and whether it was reset
        self.yielded: dict[FileKey, int] = {}  # until when

    def is_yielded(self, key: FileKey, now_ns: int) -> bool:
        """Tell whether the file is left to another process for now."""
        until_ns = self.yielded.get(key)
        if until_ns is None:
            return False
        if now_ns < until_ns:
            return True
        del self.yielded[key]
        return False

    def may_correct(self, key: FileKey, now_ns: int, *, is_reset: bool = False) -> bool:
        """Tell whether the file may be corrected once more; if not, it is yielded for an hour.

        Args:
            key: the file.
            now_ns: CLOCK_MONOTONIC.
            is_reset: it holds what it held at first, and is of a slice: systemd resets those, and fights for nothing.
        """
        self._drop_old(now_ns)
        times = self._times.setdefault((key, is_reset), deque())
        limit = self._policy.resets_per_hour if is_reset else self._policy.corrections_per_hour
        if len(times) >= limit:
            self.yielded[key] = now_ns + _HOUR_NS
            return False
        times.append(now_ns)
        return True

    # Of every file, so that those of cgroups that are gone go too.
    def _drop_old(self, now_ns: int) -> None:
        for kind, times in list(self._times.items()):
            while times and times[0] <= now_ns - _HOUR_NS:
                times.popleft()
            if not times:
                del self._times[kind]
        self.yielded = {key: until_ns for key, until_ns in self.yielded.items() if now_ns < until_ns}
