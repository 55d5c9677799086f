"""How much of memory.min or memory.low is in effect: no child has more than its share of what its parent has. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ProtectedLevel(msgspec.Struct, frozen=True, gc=False):
    """One directory on the way to a cgroup, in bytes.

    `setting`          memory.min or memory.low; None: all of its memory (max).
    `beside`           of the directories beside it: what each has and uses, summed up.
    """

    setting: int | None
    beside: int = 0


def in_effect(levels: Iterable[ProtectedLevel]) -> int | None:
    """Return what the last level keeps if it uses so much; the first is the highest. None: all of its memory.

    Without what a parent has and no child claims, which memory_recursiveprot hands down as well.

    Source:  mm/page_counter.c, effective_protection (mm/memcontrol.c before 6.11).
    >>> in_effect([ProtectedLevel(100), ProtectedLevel(100, beside=100)])
    50
    """
    effective: int | None = None
    for level in levels:
        wanted = level.setting
        if effective is None:
            effective = wanted
        elif wanted is None or wanted + level.beside > effective:
            # One with max claims what it uses; as much as its parent has is the most that can be.
            claimed = effective if wanted is None else wanted
            effective = claimed * effective // (claimed + level.beside) if claimed else 0
        else:
            effective = wanted
    return effective
