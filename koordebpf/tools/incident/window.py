"""Which part of a recording or an audit one page shows. Pure: times in, a window out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koordebpf.units import NS_PER_S

HOUR_NS = 3600 * NS_PER_S  # Why: a page of an hour is read at once, and stays small
_APART_NS = 600 * NS_PER_S  # decisions that are further apart are two incidents
_BEFORE_NS = 300 * NS_PER_S
_AFTER_NS = 600 * NS_PER_S


class Window(msgspec.Struct, frozen=True):
    """From `first_ns` to `last_ns`, wall clock. `is_part`: there is more than this."""

    first_ns: int
    last_ns: int
    is_part: bool

    def has(self, wall_s: float) -> bool:
        """Tell whether a moment lies in it; one second more counts, since outcomes follow the last round."""
        return self.first_ns <= wall_s * NS_PER_S <= self.last_ns + NS_PER_S


def window_of(
    times_ns: Sequence[int],
    decided_ns: Sequence[int],
    since_ns: int | None = None,
    until_ns: int | None = None,
    around_ns: int | None = None,
) -> Window:
    """Return what is shown.

    With a time, from it or to it. Else all of it, if that is an hour at most; else the incident around one decision, by
    default the last: decisions with less than 10 minutes between two belong together, and 5 minutes before and 10 after
    are shown with them, an hour at most. Without a decision: the last hour.

    Args:
        times_ns: of all rounds, sorted, one at least.
        decided_ns: of the decisions, sorted.
        since_ns: the begin; None: not given.
        until_ns: the end.
        around_ns: the decision that is shown.
    """
    first, last = times_ns[0], times_ns[-1]
    if since_ns is not None or until_ns is not None:
        begin, end = (first if since_ns is None else since_ns), (last if until_ns is None else until_ns)
    elif around_ns is None and last - first <= HOUR_NS:
        begin, end = first, last
    elif not decided_ns:
        begin, end = last - HOUR_NS, last
    else:
        begin, end = _around(decided_ns, decided_ns[-1] if around_ns is None else around_ns)
    begin, end = max(begin, first), min(end, last)
    return Window(begin, end, is_part=begin > first or end < last)


# The decision itself is always in it: a longer series is cut at its begin, and at its end only past the decision.
def _around(decided_ns: Sequence[int], at_ns: int) -> tuple[int, int]:
    begin = end = at_ns
    for each in sorted((each for each in decided_ns if each <= at_ns), reverse=True):
        if begin - each > _APART_NS:
            break
        begin = each
    for each in (each for each in decided_ns if each >= at_ns):
        if each - end > _APART_NS:
            break
        end = each
    end = min(end + _AFTER_NS, max(begin - _BEFORE_NS, at_ns - HOUR_NS + _AFTER_NS) + HOUR_NS)
    return max(begin - _BEFORE_NS, end - HOUR_NS), end
