"""Did evictions help: what each was to give back against what the node's use fell by. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

_HELPFUL_SHARE = 2  # Why: others grow meanwhile; half of what was promised is still more than chance


class Awaited(msgspec.Struct, frozen=True):
    """One eviction whose effect is awaited. Bytes; `credit_bytes` 0: it was not for use, and only its time counts."""

    uid: str
    told_ns: int
    credit_bytes: int
    used_bytes: int  # by the node, at the decision
    back_bytes: int = 0  # credit of those of the same round whose memory came back before


class Usefulness(msgspec.Struct, frozen=True):
    """Evictions whose effect is awaited, and how many in a row had none."""

    awaited: tuple[Awaited, ...] = ()
    useless: int = 0
    useless_ns: int | None = None  # when the last of them was judged

    def told(self, uid: str, *, credit_bytes: int, used_bytes: int, now_ns: int) -> Usefulness:
        """Return it after a pod was told to go."""
        others = tuple(each for each in self.awaited if each.uid != uid)
        return replace(self, awaited=(*others, Awaited(uid, now_ns, credit_bytes, used_bytes)))

    def withdrawn(self, uid: str) -> Usefulness:
        """Return it without a pod that does not go after all: nothing is learnt from it."""
        return replace(self, awaited=tuple(each for each in self.awaited if each.uid != uid))

    def judged(self, came_back: Collection[str], late: Collection[str], *, used_bytes: int, now_ns: int) -> Usefulness:
        """Return it after the memory of `came_back` came back and that of `late` did not in time.

        The victims of one round are judged together: the node's use must have fallen since their decision by at least
        half of what those of them promised that are back. One round that helped ends the row.
        """
        over = [each for each in self.awaited if each.uid in came_back or each.uid in late]
        if not over:
            return self
        left = [each for each in self.awaited if each not in over]
        useless, useless_ns = self.useless, self.useless_ns
        for round_ns in sorted({each.told_ns for each in over}):
            back = [each for each in over if each.told_ns == round_ns and each.uid in came_back]
            promised = max((each.back_bytes for each in back), default=0) + sum(each.credit_bytes for each in back)
            failed = sum(each.told_ns == round_ns and each.uid in late for each in over)
            if back and promised:
                if (back[0].used_bytes - used_bytes) * _HELPFUL_SHARE >= promised:
                    useless = 0
                else:
                    failed += len(back)
                left = [replace(each, back_bytes=promised) if each.told_ns == round_ns else each for each in left]
            if failed:
                useless, useless_ns = useless + failed, now_ns
        return Usefulness(tuple(left), useless, useless_ns)
