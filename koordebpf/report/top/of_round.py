"""The page of `koordebpf top` out of a round: an agent's last one, or a recorded one."""

from __future__ import annotations

import msgspec

from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.report.top.choice import Sort
from koordebpf.report.top.values import TopPage, pod_rows, sorted_rows, top_cpu
from koordebpf.slo.strategies.threshold_bytes import threshold_bytes
from koordebpf.state.view import Frame, NodeView
from koordebpf.store.sink import RoundEnded


def top_of_round(ended: RoundEnded | None) -> TopPage | None:
    """Return the page of an agent's round: pods by usage; None: there was none yet."""
    if ended is None:
        return None
    return top_of_frame(ended.tick.frame, ended.view, ended.signals.quality, "usage")


def top_of_frame(frame: Frame, view: NodeView, quality: SignalQuality | None, sort: Sort) -> TopPage:
    """Return the page of a frame and the view that was made of it. `quality` None: it is not known."""
    strategy = frame.strategyInForce
    return TopPage(
        schema="koordebpf.top/v1",
        time=frame.time or "",
        level="pod",
        sort=sort,
        capacity_bytes=view.capacity_bytes,
        threshold_bytes=threshold_bytes(None if strategy is msgspec.UNSET else strategy, view.capacity_bytes),
        node=frame.measured.node,
        forecast=view.forecast,
        quality=quality,
        rows=tuple(sorted_rows(pod_rows(view.pods, frame.measured), sort)),
        ledger=view.measured.ledger,
        cpu=top_cpu(frame.measured.cpu),
    )
