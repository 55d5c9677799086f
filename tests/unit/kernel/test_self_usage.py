"""What the agent says of itself is what another program sees of it."""

from __future__ import annotations

import os
import threading

import psutil

from koordebpf.kernel.self_usage import SelfUsageReader


def test_it_is_what_others_see() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    opened = os.open("/dev/null", os.O_RDONLY)
    try:
        process = psutil.Process()
        before = process.cpu_times()
        own = SelfUsageReader().read()
        after = process.cpu_times()
        # A hundredth of a second: what /proc rounds to.
        assert before.user + before.system - 0.02 <= own.cpu_s <= after.user + after.system + 0.02
        assert abs(own.rss_bytes - process.memory_info().rss) < 4 << 20
        # It does not count the one that lists them, as psutil does.
        assert (own.threads, own.open_fds) == (process.num_threads(), process.num_fds() - 1)
    finally:
        os.close(opened)
        release.set()
        thread.join()
