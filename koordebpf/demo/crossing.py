"""When a demo's node crossed its threshold and came back, out of samples of its usage."""

from __future__ import annotations

from array import array
from bisect import bisect_left

import msgspec


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The node at one moment; `used_bytes` leaves out page cache (docs/decisions.md, What "used" means)."""

    at_ns: int
    usage_bytes: int
    used_bytes: int


class Crossing:
    """Remembers peaks, the crossing and the way back; `below_ns` is the first reading after it."""

    def __init__(self, threshold_bytes: int, lower_bytes: int) -> None:
        self._threshold_bytes = threshold_bytes
        self._lower_bytes = lower_bytes
        self.peak_usage_bytes = 0
        self.peak_used_bytes = 0
        self._sampled_ns = array("q")
        self._above_ns: int | None = None  # the first reading above
        self.below_ns: int | None = None

    def push(self, now: Usage) -> None:
        """Take the next sample."""
        if self._above_ns is None and now.used_bytes >= self._threshold_bytes:
            self._above_ns = now.at_ns
        if self._above_ns is not None and self.below_ns is None and now.used_bytes < self._lower_bytes:
            self.below_ns = now.at_ns
        self._sampled_ns.append(now.at_ns)
        self.peak_usage_bytes = max(self.peak_usage_bytes, now.usage_bytes)
        self.peak_used_bytes = max(self.peak_used_bytes, now.used_bytes)

    def crossed_ns(self, seen_ns: int | None = None) -> int | None:
        """Return the last reading below the threshold before it was first seen above: here, or by another at `seen_ns`.

        No latency that is counted from it is shown shorter than it was. The other may see the crossing alone: an agent
        needs a few milliseconds from there until the memory is back. None: none was seen.
        """
        seen = [ns for ns in (self._above_ns, seen_ns) if ns is not None]
        if not seen:
            return None
        earlier = bisect_left(self._sampled_ns, min(seen)) - 1
        return self._sampled_ns[earlier] if earlier >= 0 else None
