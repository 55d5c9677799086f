"""The page of `koordebpf top` out of an agent's last round: what it answers as /top on its Unix socket."""

from __future__ import annotations

import msgspec

from koordebpf.report.top.page import TopPage, pod_rows, sorted_rows, top_cpu
from koordebpf.slo.strategies.threshold_bytes import threshold_bytes
from koordebpf.store.sink import RoundEnded


def top_of_round(ended: RoundEnded | None) -> TopPage | None:
    """Return the page of a round: pods by usage; None: there was none yet."""
    if ended is None:
        return None
    frame, view = ended.tick.frame, ended.view
    strategy = frame.strategyInForce
    return TopPage(
        schema="koordebpf.top/v1",
        time=frame.time or "",
        level="pod",
        sort="usage",
        capacity_bytes=view.capacity_bytes,
        threshold_bytes=threshold_bytes(None if strategy is msgspec.UNSET else strategy, view.capacity_bytes),
        node=frame.measured.node,
        forecast=view.forecast,
        quality=ended.signals.quality,
        rows=tuple(sorted_rows(pod_rows(view.pods, frame.measured), "usage")),
        ledger=view.ledger,
        cpu=top_cpu(frame.measured.cpu),
    )
