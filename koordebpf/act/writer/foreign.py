"""How often a file that others change is corrected, when it is left to them, and which rows are ours. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from koordebpf.act.writer.places import Original, Places
from koordebpf.kernel.cgroup.files import Value
from koordebpf.kernel.cgroup.tables import Table, differing, with_rows
from koordebpf.policy.reconcile import FileKey
from koordebpf.units import NS_PER_S

_HOUR_NS = 3600 * NS_PER_S


def our_devices(known: Original | None, before: Table, now: Table, written: Value) -> tuple[str, ...] | None:
    """Return the devices whose rows are ours at any moment of a write; None: it is not known.

    Args:
        known: the record of the file; None: there is none yet.
        before: the rows to which it is restored.
        now: what it holds.
        written: what it is to hold.
    """
    if not isinstance(written, Table) or (known is not None and known.devices is None):
        return None
    still = frozenset(known.devices or ()) & differing(before, now) if known is not None else frozenset()
    return tuple(sorted(still | differing(before, written)))


def unseen_rows(places: Places, original: Original, before: Table, now: Table) -> Table:
    """Return the rows to which a file is restored that no agent has looked at since it was written.

    Ours are as they were before and all others as they are now, also where another process wrote them since. What it
    wrote into a row of ours looks like what we wrote. A device that was taken away has no row.
    """
    if original.devices is None:
        return before
    held = dict(now.rows)
    devices = [each for each in original.devices if each in held or places.has_device(each)]
    return with_rows(now, before, devices)


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
