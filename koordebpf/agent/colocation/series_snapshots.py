"""The job that keeps the series of usage for the agent that starts next."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from koordebpf.agent.lifecycle.node_lock import folder_of
from koordebpf.clock import Due
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.agent.colocation.jobs import ColocationParts
    from koordebpf.collect.collector import Collector
    from koordebpf.state.series.node import NodeSeries
    from koordebpf.store.series.snapshot import SnapshotWriter

GATE = "UsageSeries"
SNAPSHOT_NAME = "series.snapshot"


def open_series_snapshots(parts: ColocationParts, stack: contextlib.ExitStack) -> Collector | None:
    """Continue the series of the agent before this one. None: the gate is off, or this agent only watches."""
    if not (parts.acts and parts.config.feature_gates.get(GATE)):
        return None
    from koordebpf.store.series.snapshot import SnapshotWriter, restore_series

    path = folder_of(parts.config.run_dir, parts.measuring.watch.scope) / SNAPSHOT_NAME
    restore_series(path, parts.measuring.series, time.monotonic_ns())
    return SeriesSnapshots(SnapshotWriter(path, parts.measuring.series), parts.config.series.snapshot_ns)


class SeriesSnapshots:
    """Writes a snapshot each `every_ns`, some series a second, and a whole one when it is closed."""

    name = "snapshots of the series"
    period_ns = NS_PER_S

    def __init__(self, writer: SnapshotWriter, every_ns: int) -> None:
        self._writer = writer
        self._due = Due(every_ns)
        self._due.done(time.monotonic_ns())

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Write some series where a snapshot is due; they are those of `into`."""
        if not self._writer.is_writing and self._due.is_due(now_ns):
            self._due.done(now_ns)
            self._writer.start()
        self._writer.write_some(now_ns)

    def close(self) -> None:
        """Write what the agent that starts next continues from."""
        self._writer.write(time.monotonic_ns())
