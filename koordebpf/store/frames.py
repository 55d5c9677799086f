"""Frames of an agent's rounds with what was decided on each: one JSON line a round, to be decided again elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec

from koordebpf.decision.decide_tick import TickDecision, TickFrame, encode_decision
from koordebpf.decision.frames import decode_json
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.store.line_sink import LineSink
from koordebpf.store.previous import decision_of_today
from koordebpf.store.rotated_file import RotatedFile, check_file
from koordebpf.store.sink import AgentStopped, Event, RoundEnded
from koordebpf.units import MIB

log = logging.getLogger("koordebpf")

_MAX_BYTES = 64 * MIB  # Why: a minute of a node with 330 containers, and one more in the file before
KEPT = 1
_WAITING = 200  # lines; Why: a second of a disk that is busy
_CLOSE_S = 0.5


class RecordedTick(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One round: everything it was decided from, and the decision, as JSON."""

    tick: TickFrame
    decision: msgspec.Raw

    def is_same(self, decision: TickDecision) -> bool:
        """Tell whether a decision is the recorded one, bit for bit; `decision.decide_tick.decided_again` makes it."""
        return encode_decision(decision) == decision_of_today(bytes(self.decision))


class _Keys(msgspec.Struct):
    tick: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    frame: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class FrameLog:
    """The sink that appends each round to a file of 64 MiB, and keeps the one before.

    A thread writes; what does not fit is lost.
    """

    name = "frames"
    takes = (RoundEnded, AgentStopped)

    def __init__(self, path: Path) -> None:
        self._path = path
        degraded = Degraded(path, "frames wait in memory, and the oldest are lost")
        self._sink = LineSink(
            degraded.watching(RotatedFile(path, max_bytes=_MAX_BYTES, kept=KEPT).append),
            "frames",
            max_lines=_WAITING,
            recovered=_report_lost,
        )
        self._sink.start()

    def publish(self, event: Event) -> None:
        """Append a round; close at the end."""
        match event:
            case RoundEnded(tick, _, decision):
                self.write(tick, decision)
            case AgentStopped():
                self.close()

    def write(self, tick: TickFrame, decision: TickDecision) -> None:
        """Append one round."""
        recorded = RecordedTick(tick, msgspec.Raw(encode_decision(decision)))
        self._sink.put(msgspec.json.encode(recorded) + b"\n")

    def close(self) -> None:
        """Write what waits, for half a second at most."""
        if not self._sink.close(_CLOSE_S):
            log.warning("%d frames were not written to %s", self._sink.waiting, self._path)


def open_frames(path: Path | None) -> FrameLog | None:
    """Return what keeps the frames; None where none are wanted.

    Raises:  ConfigError: the file cannot be written.
    """
    if path is None:
        return None
    check_file("--frames", path, KEPT)
    return FrameLog(path)


def read_ticks(path: Path) -> Iterator[RecordedTick]:
    """Yield the rounds of a file; an unfinished last line is passed over.

    Raises:  ConfigError: a line is none; names its number, the place in it and the rule.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield decode_tick(line, f"{path}:{number}")


def is_recorded_tick(raw: bytes) -> bool:
    """Tell whether this is a line of such a file, as far as its keys say so."""
    return isinstance(_keys(raw).tick, msgspec.Raw)


def tick_in(raw: bytes, place: str) -> TickFrame | None:
    """Return the round of a line of such a file, or a round alone; None: by its keys it is neither.

    Raises:  ConfigError: names the place in it, the value and the rule.
    """
    keys = _keys(raw)
    if isinstance(keys.tick, msgspec.Raw):
        return decode_tick(raw, place).tick
    return decode_json(raw, place, TickFrame) if isinstance(keys.frame, msgspec.Raw) else None


def decode_tick(line: bytes, place: str) -> RecordedTick:
    """Return one line of such a file; `place` says where it came from.

    Raises:  ConfigError: names the place in it, the value and the rule.
    """
    return decode_json(line, place, RecordedTick)


def _keys(raw: bytes) -> _Keys:
    try:
        return msgspec.json.decode(raw, type=_Keys)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Keys()


def _report_lost(lines: int) -> None:
    log.warning("%d frames were lost: they could not be written for too long", lines)
