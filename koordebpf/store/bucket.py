"""So many of something at once, and then one each so often. Pure."""

from __future__ import annotations

import msgspec


class Bucket(msgspec.Struct):
    """A token bucket that begins full.

    `each_ns`  until there is one more.
    `most`     that may be spent at once.
    `full_ns`  when that many are there again.
    """

    each_ns: int
    most: int
    full_ns: int = 0

    def spend(self, now_ns: int) -> bool:
        """Spend one; tell whether there was one."""
        full_ns = max(self.full_ns, now_ns) + self.each_ns
        if full_ns - now_ns > self.most * self.each_ns:
            return False
        self.full_ns = full_ns
        return True
