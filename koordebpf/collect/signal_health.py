"""What the backend counts, and which of its probes it lost."""

from __future__ import annotations

import logging
import time

from koordebpf.clock import Due
from koordebpf.events.layout import decode_totals
from koordebpf.events.records import Totals
from koordebpf.kernel.signals.interface import Backend, SignalSource
from koordebpf.kernel.signals.quality import SignalQuality, quality_of
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)


class SignalHealth:
    """How good the signals are now: `quality`, and in `lost` those that worked at start only."""

    period_ns = 10 * NS_PER_S

    def __init__(self, signals: Backend) -> None:
        self._signals = signals
        self._raw_totals: bytes | None = None  # the last ones, and what they say
        self._totals: Totals | None = None
        self._due = Due(self.period_ns)
        self._due.done(time.monotonic_ns())
        self.lost: tuple[SignalSource, ...] = ()
        self.quality: SignalQuality = quality_of(signals)

    def totals(self) -> Totals | None:
        """Return the backend's counters; None where it has none."""
        raw = self._signals.totals()
        if raw != self._raw_totals:
            self._raw_totals, self._totals = raw, decode_totals(raw) if raw else None
        return self._totals

    def look(self, now_ns: int) -> None:
        """Ask the backend which probes it lost, if that is due."""
        if not self._due.is_due(now_ns):
            return
        self._due.done(now_ns)
        lost = tuple(self._signals.lost_probes())
        for source in lost:
            if source.signal not in {known.signal for known in self.lost}:
                log.warning("lost: %s: %s. %s", source.signal, source.reason, source.remedy)
        totals = self.totals()
        self.lost = lost
        self.quality = quality_of(self._signals, lost, totals.missed_runs if totals else 0)
