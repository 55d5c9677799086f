"""`DecisionMemory`: everything an agent remembers of what it decided, one frozen value. Pure.

`policy.memory.after` is the only way it changes. It is part of each frame, so that a replay decides from the same.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from koordebpf.state.view import MINUTE_NS, PastEviction, PendingRelease, RecurringEviction, RefusedEviction

_HELPFUL_SHARE = 2  # Why: others grow meanwhile; half of what was promised is still more than chance
_KEPT = 64  # Why: more than any sensible budget of a minute, and only the last one counts


class Budget(msgspec.Struct, frozen=True):
    """The evictions of the last minute."""

    evictions: tuple[PastEviction, ...] = ()

    def left(self, now_ns: int, per_minute: int) -> int:
        """Return how many evictions the minute still allows."""
        return max(0, per_minute - len(self.recent(now_ns)))

    def recent(self, now_ns: int) -> tuple[PastEviction, ...]:
        """Return those that still count."""
        return tuple(each for each in self.evictions if now_ns - each.at_ns < MINUTE_NS)

    def spend(self, eviction: PastEviction) -> Budget:
        """Return the budget after one more eviction."""
        return Budget((*self.recent(eviction.at_ns), eviction))

    def refund(self, uid: str, spent_ns: int) -> Budget:
        """Return the budget without the eviction of this pod at that moment, which was refused."""
        return Budget(tuple(each for each in self.evictions if (each.uid, each.at_ns) != (uid, spent_ns)))


class SentEviction(msgspec.Struct, frozen=True, gc=False):
    """One eviction that was sent, for the pause after it."""

    uid: str
    at_ns: int
    for_cpu: bool


class LastEvictions(msgspec.Struct, frozen=True):
    """The last evictions, from which the pauses for memory and for CPU count; one that failed begins no pause."""

    sent: tuple[SentEviction, ...] = ()

    def after(self, uid: str, at_ns: int, *, for_cpu: bool) -> LastEvictions:
        """Return it after an eviction was sent."""
        return LastEvictions((*self.sent[1 - _KEPT :], SentEviction(uid, at_ns, for_cpu)))

    def without(self, uid: str, at_ns: int) -> LastEvictions:
        """Return it without the eviction of this pod at that moment."""
        return LastEvictions(tuple(each for each in self.sent if (each.uid, each.at_ns) != (uid, at_ns)))

    def last_ns(self, *, for_cpu: bool) -> int | None:
        """Return when the last one was sent; None: there was none."""
        return max((each.at_ns for each in self.sent if each.for_cpu is for_cpu), default=None)


class AwaitedEffect(msgspec.Struct, frozen=True):
    """One eviction whose effect is awaited. Bytes; `credit_bytes` 0: it was not for use, and only its time counts."""

    uid: str
    decided_ns: int
    credit_bytes: int
    used_bytes: int  # by the node, at the decision
    back_bytes: int = 0  # credit of those of the same round whose memory came back before


class Effectiveness(msgspec.Struct, frozen=True):
    """What evictions were to free against what the node's use fell by, and how many in a row had no effect."""

    awaited: tuple[AwaitedEffect, ...] = ()
    ineffective: int = 0
    ineffective_ns: int | None = None  # when the last of them was judged

    def after(self, uid: str, *, credit_bytes: int, used_bytes: int, decided_ns: int) -> Effectiveness:
        """Return it after an eviction was sent."""
        others = tuple(each for each in self.awaited if each.uid != uid)
        return replace(self, awaited=(*others, AwaitedEffect(uid, decided_ns, credit_bytes, used_bytes)))

    def without(self, uid: str) -> Effectiveness:
        """Return it without a pod that was not evicted after all: nothing is learnt from it."""
        return replace(self, awaited=tuple(each for each in self.awaited if each.uid != uid))

    def judged(
        self, released: Collection[str], late: Collection[str], *, used_bytes: int, now_ns: int
    ) -> Effectiveness:
        """Return it after the memory of `released` came back and that of `late` did not in time.

        The victims of one round are judged together: the node's use must have fallen since their decision by at least
        half of what those of them promised that are back. One round with an effect ends the row.
        """
        over = [each for each in self.awaited if each.uid in released or each.uid in late]
        if not over:
            return self
        left = [each for each in self.awaited if each not in over]
        ineffective, ineffective_ns = self.ineffective, self.ineffective_ns
        for round_ns in sorted({each.decided_ns for each in over}):
            back = [each for each in over if each.decided_ns == round_ns and each.uid in released]
            promised = max((each.back_bytes for each in back), default=0) + sum(each.credit_bytes for each in back)
            failed = sum(each.decided_ns == round_ns and each.uid in late for each in over)
            if back and promised:
                if (back[0].used_bytes - used_bytes) * _HELPFUL_SHARE >= promised:
                    ineffective = 0
                else:
                    failed += len(back)
                left = [replace(each, back_bytes=promised) if each.decided_ns == round_ns else each for each in left]
            if failed:
                ineffective, ineffective_ns = ineffective + failed, now_ns
        return Effectiveness(tuple(left), ineffective, ineffective_ns)


class DecisionMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one agent remembers of its evictions.

    `pending`        pods whose memory is not back yet, those whose eviction brought nothing included.
    `late`           of these, those that were reported as late.
    `released`       pods whose memory is back and whose object may still be there.
    `refused`        pods that may not be asked for again before their time.
    `killed`         pods that this agent killed and that have had no process since; their objects may stay for long.
    `recurring`      pods of DaemonSets that were evicted since the node's use was below its lower mark.
    """

    pending: tuple[PendingRelease, ...] = ()
    late: frozenset[str] = frozenset()
    released: frozenset[str] = frozenset()
    refused: tuple[RefusedEviction, ...] = ()
    budget: Budget = Budget()
    last: LastEvictions = LastEvictions()
    effectiveness: Effectiveness = Effectiveness()
    killed: frozenset[str] = frozenset()
    recurring: tuple[RecurringEviction, ...] = ()
