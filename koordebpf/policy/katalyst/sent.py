"""What of a round's queue was sent, for as long as the queue stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.policy.katalyst.state import ManagerState
from koordebpf.state.view import MINUTE_NS, NodeView


def sent_since(state: ManagerState, view: NodeView) -> Mapping[str, int]:
    """Return which pods of the queue were sent since it was made, and when.

    The view lists the evictions of one minute: those before that are remembered here. One that is younger and not
    listed was refused, and may be sent again.
    """
    asked = {each.uid for each in (*state.queue, *state.soft)}
    kept = {uid: at_ns for uid, at_ns in state.sent.items() if uid in asked and view.now_ns - at_ns >= MINUTE_NS}
    listed = {each.uid: each.at_ns for each in view.evictions if each.uid in asked and each.at_ns >= state.queued_ns}
    return {**kept, **listed}
