"""A recording without names: each round with hashes in place of them, and the decision on that."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgspec

from koordebpf.decision.frames import decode_json
from koordebpf.decision.tick_frame import TickFrame
from koordebpf.errors import ConfigError
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.store.recorder.values import NodeSample, RecordedEvent
from koordebpf.tools.recorder.names import Names
from koordebpf.tools.recorder.rounds import DecidesAgain
from koordebpf.tools.recorder.words import KINDS
from koordebpf.units import GIB, NS_PER_S


def redact_recording(recording: Recording, output: Path) -> str:
    """Write a redacted copy, whole or not at all; return what it has, in words.

    Raises:  ConfigError: it cannot be written.
    """
    names, again, encoder = Names(secrets.token_bytes(32)), DecidesAgain(), RoundEncoder(is_bounded=False)
    events, samples = recording.events(), sorted(recording.samples(), key=lambda each: each.at_ns)
    redacted = _Rounds(names)
    written = otherwise = refused = 0
    store = FileStore(output, Run(secrets.token_hex(4), "redacted"), GIB, redacted=True, option="OUT")
    try:
        for each in recording.rounds():
            tick = redacted.tick(each.tick)
            if tick is None:
                refused += 1
                continue
            decision = again.decide(tick)
            otherwise += (decision.carried is not None) != each.is_decision
            made = encoder.encode(tick, decision, each.wall_ns)
            before = [event for event in events if event.wall_s * NS_PER_S <= each.wall_ns]
            events = events[len(before) :]
            taken = [sample for sample in samples if sample.at_ns <= made.mono_ns]
            samples = samples[len(taken) :]
            store.add(made, _samples_raw(taken), [redacted.event(event) for event in before])
            written += 1
        store.add_events([redacted.event(event) for event in events], int(1e9 * (events[-1].wall_s if events else 0)))
        store.commit()
    except OSError as error:
        raise ConfigError("OUT", str(output), f"must be a file that can be written: {error.strerror}") from error
    finally:
        store.close()
    of = f"{written} rounds; {otherwise} act now and did not before, or the other way round"
    return f"{of}; {refused} could not be redacted and are left out" if refused else of


def _samples_raw(samples: list[NodeSample]) -> bytes:
    return msgspec.json.encode(samples) if samples else b""


class _Rounds:
    # What was redacted before is the same value again, so that it is encoded once.
    def __init__(self, names: Names) -> None:
        self._names = names
        self._pods: tuple[object, Any] = (None, None)

    def tick(self, tick: TickFrame) -> TickFrame | None:
        plain = msgspec.json.decode(msgspec.json.encode(tick))
        try:
            found = decode_json(msgspec.json.encode(self._names.redacted(plain)), "redacted", TickFrame)
        except ConfigError:
            return None
        before, pods = self._pods
        if tick.frame.pods is before and pods == found.frame.pods:
            found = msgspec.structs.replace(found, frame=msgspec.structs.replace(found.frame, pods=pods))
        self._pods = tick.frame.pods, found.frame.pods
        return found

    def event(self, event: RecordedEvent) -> RecordedEvent:
        kind = event.kind if event.kind in KINDS else "Other"
        return msgspec.structs.replace(event, kind=kind, data=self._names.redacted(event.data))
