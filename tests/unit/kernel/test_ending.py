"""The end of worker threads, one of which hangs."""

from __future__ import annotations

import threading
import time

from koordebpf.kernel.io.closing import have_ended
from tests.support.patience import patience


def test_one_deadline_holds_for_all_threads() -> None:
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    begin_s = time.monotonic()
    assert not have_ended(threads, 0.5)
    assert time.monotonic() - begin_s < patience(5)
    over.set()
    assert have_ended(threads, patience(10))
