"""The series of one node."""

from __future__ import annotations

from koordebpf.state.series.settings import SeriesSettings
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_MS, NS_PER_S

NODE = ""  # the entity of the node itself in keys that are not koordlet's; no pod has an empty uid
EVERY_NS = NS_PER_S  # koordlet's interval of collecting
LONGEST_NS = 600 * NS_PER_S  # Why: what took longer is no reaction

NodeSeries = SeriesStore


def node_series(settings: SeriesSettings | None = None) -> NodeSeries:
    """Return an empty store. A wake-up some milliseconds early must not halve the pace."""
    return SeriesStore(settings or SeriesSettings(), apart_ns=EVERY_NS - 50 * NS_PER_MS)
