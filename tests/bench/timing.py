"""How long one call takes, again and again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def times_ms(call: Callable[[], object], n: int, clock: Callable[[], int] = time.perf_counter_ns) -> list[float]:
    """Return the milliseconds of each of `n` calls; with `time.thread_time_ns` only what others do not take from it.

    As in the agent after its first tick, the garbage collector does not go through what was there before.
    """
    gc.collect()
    gc.freeze()
    samples = []
    for _ in range(n):
        started = clock()
        call()
        samples.append((clock() - started) / 1e6)
    gc.unfreeze()
    return samples
