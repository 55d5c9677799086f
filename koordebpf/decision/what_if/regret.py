"""One configuration's evictions beside those of the acting one, kubelet's threshold and OOM kills. Pure.

`week.DEFINITIONS` has a sentence for each count; five minutes after an eviction it is known whether it was needless.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.decision.what_if.week import NEAR_S, Lead, ShadowCounts
from koordebpf.decision.what_if.world import Eviction
from koordebpf.state.measured import NodeMeasure
from koordebpf.units import NS_PER_S

_NEAR_NS = NEAR_S * NS_PER_S
_APART_NS = 60 * NS_PER_S  # two shortages. Why: kubelet's eviction-pressure-transition-period is longer still


class Happened(msgspec.Struct, frozen=True):
    """What became of the real node since the round before.

    `acting`  uids that the acting configuration evicted now, or would have; each once in five minutes.
    `really`  uids that were really evicted.
    """

    now_ns: int
    acting: tuple[str, ...] = ()
    really: frozenset[str] = frozenset()
    kubelet: int = 0
    oom_kills: int = 0


class _Sent(msgspec.Struct, frozen=True):
    at_ns: int
    uid: str
    is_matched: bool = False  # the other one evicted this pod too
    is_real: bool = False  # the pod really was evicted
    is_needed: bool = False  # kubelet's threshold or an OOM kill came after it


class Regret:
    """Compares one configuration; at most five minutes of evictions are remembered."""

    def __init__(self) -> None:
        self._own: list[_Sent] = []
        self._acting: list[_Sent] = []

    def look(self, evictions: Sequence[Eviction], happened: Happened) -> ShadowCounts:
        """Return what is to be added for this round.

        OOM kills came before it; kubelet's threshold is looked at with the same measurement as the evictions.
        """
        now_ns = happened.now_ns
        counts = ShadowCounts()
        for _ in range(happened.oom_kills):
            counts = self._event(counts, now_ns, "over_oom")
        counts = replace(counts, evictions=len(evictions), freed_bytes=sum(each.freed_bytes for each in evictions))
        self._own += [_Sent(each.at_ns, each.uid) for each in evictions]
        self._acting += [_Sent(now_ns, uid) for uid in happened.acting]
        counts = self._match(counts)
        if happened.really:
            self._own = [replace(each, is_real=True) if each.uid in happened.really else each for each in self._own]
        for _ in range(happened.kubelet):
            counts = self._event(counts, now_ns, "over_kubelet")
        return self._expire(counts, now_ns)

    def _match(self, counts: ShadowCounts) -> ShadowCounts:
        theirs = {each.uid: place for place, each in enumerate(self._acting) if not each.is_matched}
        for place, own in enumerate(self._own):
            if not theirs:
                break
            if own.is_matched or (other := theirs.pop(own.uid, None)) is None:
                continue
            lead = Lead().with_one((self._acting[other].at_ns - own.at_ns) / NS_PER_S)
            counts = replace(counts, same=counts.same + 1, over_acting=counts.over_acting.with_all(lead))
            self._own[place] = replace(own, is_matched=True)
            self._acting[other] = replace(self._acting[other], is_matched=True)
        return counts

    def _event(self, counts: ShadowCounts, now_ns: int, over: str) -> ShadowCounts:
        if not self._own:
            return replace(counts, too_late=counts.too_late + 1)
        times_ns = sorted((each.at_ns for each in self._own), reverse=True)
        first_ns = times_ns[0]
        for at_ns in times_ns:
            if first_ns - at_ns > _APART_NS:
                break
            first_ns = at_ns
        self._own = [replace(each, is_needed=True) for each in self._own]
        lead = getattr(counts, over).with_one((now_ns - first_ns) / NS_PER_S)
        return replace(counts, in_time=counts.in_time + 1, **{over: lead})

    def _expire(self, counts: ShadowCounts, now_ns: int) -> ShadowCounts:
        if not (self._own or self._acting):
            return counts
        own = [each for each in self._own if now_ns - each.at_ns >= _NEAR_NS]
        acting = [each for each in self._acting if now_ns - each.at_ns >= _NEAR_NS]
        if not (own or acting):
            return counts
        self._own = [each for each in self._own if each not in own]
        self._acting = [each for each in self._acting if each not in acting]
        needless = sum(not (each.is_real or each.is_needed) for each in own)
        avoided = sum(not each.is_matched for each in acting)
        return replace(counts, needless=counts.needless + needless, avoided=counts.avoided + avoided)


class ActingEvictions:
    """The acting configuration's evictions, each pod once in five minutes: a dry run names one each few seconds."""

    def __init__(self) -> None:
        self._at_ns: dict[str, int] = {}

    def new(self, uids: Collection[str], now_ns: int) -> tuple[str, ...]:
        """Return those that were not there within the last five minutes."""
        self._at_ns = {uid: at for uid, at in self._at_ns.items() if now_ns - at < _NEAR_NS}
        found = tuple(uid for uid in uids if uid not in self._at_ns)
        self._at_ns |= dict.fromkeys(found, now_ns)
        return found


class KubeletThreshold:
    """kubelet's own hard eviction threshold for memory.available, on the same measurements.

    Of a node cgroup the available memory is the limit less usage without inactive page cache, as kubelet counts it. Of
    a machine it is MemAvailable, which is more: kubelet counts active page cache as used, and may be earlier.
    Source:  kubernetes pkg/kubelet/eviction, signal memory.available.

    Args:
        hard_bytes: the threshold.
    """

    def __init__(self, hard_bytes: int) -> None:
        self._hard_bytes = hard_bytes
        self._below_ns: int | None = None  # when it was last below

    def crossed(self, now_ns: int, node: NodeMeasure) -> bool:
        """Tell whether the node came to have less available than the threshold, a minute or more after the last."""
        available = available_bytes(node)
        if available is None or available >= self._hard_bytes:
            return False
        last_ns, self._below_ns = self._below_ns, now_ns
        return last_ns is None or now_ns - last_ns >= _APART_NS


def available_bytes(node: NodeMeasure) -> int | None:
    """Return memory.available as near to kubelet's as the measurement allows; None: not known."""
    if node.scope == "cgroup" and (memory := node.memory) is not None:
        return node.total_bytes - max(memory.usage_bytes - memory.inactive_file_bytes, 0)
    return None if node.used_bytes is None else node.total_bytes - node.used_bytes
