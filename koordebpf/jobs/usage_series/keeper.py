"""The job that keeps the series of usage for the agent that starts next."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from koordebpf.clock import Due
from koordebpf.collect.scope import folder_of
from koordebpf.jobs.usage_series.snapshot import SnapshotWriter, restore_series
from koordebpf.units import NS_PER_S, format_bytes

if TYPE_CHECKING:
    from koordebpf.runner.context import NodeContext
    from koordebpf.state.series.store import NodeSeries, SeriesCounts, SeriesSettings

log = logging.getLogger("koordebpf")
SNAPSHOT_NAME = "series.snapshot"
_SAY_NS = 60 * NS_PER_S


def open_job(node: NodeContext) -> SeriesKeeper:
    """Continue the series of the agent before this one, if this one acts."""
    settings, series = node.config.series, node.measuring.series
    if not node.acts:
        return SeriesKeeper(None, settings)
    path = folder_of(node.config.run_dir, node.measuring.watch.scope) / SNAPSHOT_NAME
    restore_series(path, series, time.monotonic_ns())
    return SeriesKeeper(SnapshotWriter(path, series), settings)


class SeriesKeeper:
    """Keeps series over a restart, and says in the log what there was no room for.

    A snapshot is written each `series.snapshot`, some series a second, and a whole one at the end. Without a `writer`,
    where another agent may act on the node, none is.
    """

    name = "snapshots of the series"
    period_ns = NS_PER_S

    def __init__(self, writer: SnapshotWriter | None, settings: SeriesSettings) -> None:
        self._writer = writer
        self._settings = settings
        self._due = Due(settings.snapshot_ns)
        self._due.done(time.monotonic_ns())
        self._say_due = Due(_SAY_NS)
        self._said: SeriesCounts | None = None

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Write some of the series where a snapshot is due."""
        if self._say_due.is_due(now_ns):
            self._say_due.done(now_ns)
            self._report(into.counts)
        if self._writer is None:
            return
        if not self._writer.is_writing and self._due.is_due(now_ns):
            self._due.done(now_ns)
            self._writer.start()
        self._writer.write_some(now_ns)

    def close(self) -> None:
        """Write what the agent that starts next continues from."""
        if self._writer is not None:
            self._writer.write(time.monotonic_ns())

    # What was dropped since the last time, at most once a minute.
    def _report(self, counts: SeriesCounts) -> None:
        before, self._said = self._said or counts, counts
        samples = counts.dropped_samples - before.dropped_samples
        series = counts.dropped_series - before.dropped_series
        refused = counts.refused_samples - before.refused_samples
        if samples or series or refused:
            log.warning(
                "series.budget of %s is full with %d series: %d samples and %d ended series were dropped within their"
                " window, %d samples refused",
                *(format_bytes(self._settings.budget_bytes), counts.series, samples, series, refused),
            )
