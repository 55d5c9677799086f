"""The series of one node: one sample a second of each, for ten minutes."""

from __future__ import annotations

from koordebpf.state.series.kinds import SeriesKey
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_MS, NS_PER_S

NODE = ""  # the entity of the node itself; no pod has an empty uid
EVERY_NS = NS_PER_S  # koordlet's interval of collecting
LONGEST_NS = 600 * NS_PER_S  # Why: what took longer is no reaction

NodeSeries = SeriesStore[SeriesKey]


def node_series() -> NodeSeries:
    """Return an empty store. A wake-up some milliseconds early must not halve the pace."""
    return SeriesStore(LONGEST_NS // EVERY_NS + 1, LONGEST_NS, apart_ns=EVERY_NS - 50 * NS_PER_MS)
