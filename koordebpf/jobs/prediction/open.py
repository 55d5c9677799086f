"""Opens the prediction of peaks where its feature gate is on, and loads nothing of it where it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from koordebpf.collect.collector import Collector
    from koordebpf.runner.context import NodeContext

GATE: Final = "PeakPrediction"


def open_prediction(node: NodeContext) -> Collector | None:
    """Return the job, which its schedule closes. None: the gate is off."""
    if not node.config.feature_gates.get(GATE):
        return None
    from koordebpf.jobs.prediction.run import prediction_of

    return prediction_of(node)
