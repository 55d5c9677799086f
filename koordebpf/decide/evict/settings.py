"""What an operator may set about eviction rounds."""

from __future__ import annotations

import msgspec

from koordebpf.units import NS_PER_S


class EvictSettings(msgspec.Struct, frozen=True):
    """Times of eviction rounds.

    `cool_time_ns`   no new round so soon after an eviction while what was evicted has not given its memory back.
                     Why: koordlet's memory-evict-cool-time-seconds is 4. It waits in any case, because it cannot see
                     memory come back; here the wait ends with the last pending release.
    `pending_max_ns` a release that takes longer is no longer counted on, so that a pod which cannot die does not keep
                     others from going. Why: koordlet forgets an eviction after 2 minutes.
    """

    cool_time_ns: int = 4 * NS_PER_S
    pending_max_ns: int = 120 * NS_PER_S
