"""What the recorder keeps of the agent's events between two rounds."""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.kernel.signals import SignalQuality
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.store.sink import Event, PlanDecided

# The kinds that are no class of the sinks.
ROUNDS_LOST = "RoundsLost"
SIGNALS_SEEN = "SignalsSeen"


def recorded(event: Event, wall_s: float) -> RecordedEvent:
    """Return an event as a recording has it. A plan is in the round that it was decided in, and not here."""
    data: dict[str, Any]
    if isinstance(event, PlanDecided):
        data = {
            "outcomes": event.outcomes,
            "crossed_ns": event.crossed_ns,
            "decided_ns": event.decided_ns,
            "wall_s": event.wall_s,
        }
    else:
        data = {name: getattr(event, name) for name in event.__struct_fields__}
    plain = msgspec.to_builtins(data, str_keys=True, enc_hook=str)
    return RecordedEvent(type(event).__name__, wall_s, plain)


def rounds_lost(count: int, wall_s: float) -> RecordedEvent:
    """Return the event that says how many rounds before it were not recorded."""
    return RecordedEvent(ROUNDS_LOST, wall_s, {"rounds": count})


def signals_seen(quality: SignalQuality, kernel: str, wall_s: float) -> RecordedEvent:
    """Return the event that says what the decisions after it rest on; `kernel` is its release."""
    data = {"quality": msgspec.to_builtins(quality), "kernel": kernel}
    return RecordedEvent(SIGNALS_SEEN, wall_s, data)
