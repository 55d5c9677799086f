"""Follows the kernel's records of one node until enough were seen or a signal ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from koordebpf.agent.watch import NodeWatch
from koordebpf.attribution.owner import Owner
from koordebpf.events.records import Record
from koordebpf.kernel.loop import Loop
from koordebpf.report.trace import TraceFilter
from koordebpf.units import NS_PER_S


def wall_clock_offset_ns() -> int:
    """Return what to add to CLOCK_MONOTONIC to get the time of day now."""
    return time.time_ns() - time.monotonic_ns()


def follow(watch: NodeWatch, wanted: TraceFilter, count: int | None) -> Iterator[tuple[Record, Owner | None, datetime]]:
    """Yield the wanted records, their owners and their time of day, as they come, until SIGTERM, SIGINT or `count`."""
    offset_ns = wall_clock_offset_ns()
    seen = 0
    with Loop() as loop:
        loop.stop_on_signals()
        if watch.source:
            watch.source.start(loop.wake)
        if watch.signals.ring:
            loop.watch(watch.signals.ring.fileno(), lambda: None)
        while not loop.stopping:
            watch.cluster()
            for record, owner in watch.drain():
                if wanted.lets_pass(record, owner):
                    yield record, owner, datetime.fromtimestamp((record.ts_ns + offset_ns) / NS_PER_S, UTC).astimezone()
                    seen += 1
                    if seen == count:
                        return
            loop.wait(time.monotonic_ns() + NS_PER_S)
