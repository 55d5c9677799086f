"""The end of worker threads: what hangs in the kernel or in a library does not keep the agent from ending."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable


def have_ended(threads: Iterable[threading.Thread], within_s: float) -> bool:
    """Wait for threads, `within_s` for all of them together; return whether all ended."""
    deadline_s = time.monotonic() + within_s
    waited = list(threads)
    for thread in waited:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return not any(thread.is_alive() for thread in waited)
