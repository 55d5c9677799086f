"""When pods were told to go last, for memory and for CPU: the pauses after evictions count from there. Pure."""

from __future__ import annotations

import msgspec

_KEPT = 64  # Why: more than any budget of a minute that somebody would set, and only the last one counts


class _Told(msgspec.Struct, frozen=True, gc=False):
    uid: str
    at_ns: int
    for_cpu: bool


class LastEvictions(msgspec.Struct, frozen=True):
    """Who was told to go. One who does not go after all begins no pause: somebody else may go in its place."""

    told: tuple[_Told, ...] = ()

    def after(self, uid: str, at_ns: int, *, for_cpu: bool) -> LastEvictions:
        """Return it after a pod was told to go."""
        return LastEvictions((*self.told[1 - _KEPT :], _Told(uid, at_ns, for_cpu)))

    def without(self, uid: str, at_ns: int) -> LastEvictions:
        """Return it without a pod that was told at that moment, and stays."""
        return LastEvictions(tuple(each for each in self.told if (each.uid, each.at_ns) != (uid, at_ns)))

    def last_ns(self, *, for_cpu: bool) -> int | None:
        """Return when the last of them was told; None: nobody was."""
        return max((each.at_ns for each in self.told if each.for_cpu is for_cpu), default=None)
