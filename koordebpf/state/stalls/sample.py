"""One look at how much latency-sensitive pods stall: a value of the frame, kept for as long as the net may ask for."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]


class StallSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The share of the last 10 s in which all tasks of a latency-sensitive pod waited for the node's memory.

    `ratio` is that of the pod for which most is known for certain, `pod` its namespace/name. `at_most_ratio` is the
    most that it can be for any of them, `at_most_pod` that pod. They differ where the kernel does not say when all
    tasks wait, or where a limit of the pod's own may be the reason. `is_whole`: every wait for memory is timed; else
    direct reclaim and compaction alone.
    """

    at_ns: Annotated[int, msgspec.Meta(ge=0)]
    ratio: _Ratio = 0.0
    at_most_ratio: _Ratio = 0.0
    pod: str = ""  # none: no latency-sensitive pod stalls
    at_most_pod: str = ""
    is_whole: bool = True
