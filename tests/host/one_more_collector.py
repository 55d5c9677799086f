"""`koordebpf run` with one more collector; before it stands the command that `LiveAgent` runs."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from koordebpf.agent import jobs
from koordebpf.cli import main
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.kernel.io.loop import Loop
from koordebpf.state.series.store import NODE, NodeSeries
from koordebpf.units import NS_PER_MS, NS_PER_S

SAMPLES = 10


class LoadAverage:
    """How many tasks run or wait."""

    name = "load average"
    period_ns = 300 * NS_PER_MS

    def __init__(self, watch: NodeWatch, loop: Loop) -> None:
        self._began_ns: int | None = None
        self._asked = 0

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        self._began_ns = self._began_ns or now_ns
        into.append(("load1", NODE), now_ns, float(Path("/proc/loadavg").read_text().split()[0]))
        self._asked += 1
        if self._asked == SAMPLES:
            count = into.query(("load1", NODE), now_ns, 60 * NS_PER_S, "count")
            took_ms = (now_ns - self._began_ns) // NS_PER_MS
            logging.getLogger("koordebpf").info("asked %d times in %d ms: %d kept", SAMPLES, took_ms, count)

    def close(self) -> None:
        logging.getLogger("koordebpf").info("load average is closed")


if __name__ == "__main__":
    jobs.COLLECTORS = (*jobs.COLLECTORS, LoadAverage)
    sys.argv = ["koordebpf", *sys.argv[4:]]
    main()
