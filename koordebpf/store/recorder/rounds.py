"""One shard's rounds: to records, and back to what was decided from and the decision. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings, encode_decision
from koordebpf.decision.frames import annotations_read, upgraded_settings_json
from koordebpf.errors import DecodeError
from koordebpf.store.previous import decision_of_today
from koordebpf.store.recorder.objects import RecordedObjects
from koordebpf.store.recorder.shard import Damage, Head, Kind, ShardContent, ShardEncoder
from koordebpf.store.recorder.values import (
    NodeSample,
    RecordedEvent,
    RecordingHeader,
    RoundObjects,
    decode_round,
    encode_round,
    objects_of,
)

T = TypeVar("T")


class EncodedRound(msgspec.Struct, frozen=True, gc=False):
    """A round that is ready for any shard. `objects_raw` is JSON of `objects`, which compare quickly."""

    wall_ns: int
    mono_ns: int
    raw: bytes
    objects: RoundObjects
    objects_raw: bytes
    samples: bytes  # since the round before, as `pack_sample`
    is_decision: bool


class RoundEncoder:
    """Makes rounds ready; objects that stay the same are encoded once.

    `is_bounded`: they come from a cluster, so only so much of them is recorded as `RecordedObjects` gives each tenant.
    """

    def __init__(self, *, is_bounded: bool = True) -> None:
        self._objects: RoundObjects | None = None
        self._objects_raw = b""
        self._recorded = RecordedObjects() if is_bounded else None
        self._settings: TickSettings | None = None  # of the last round, and what decisions read under them
        self._keys: frozenset[str] = frozenset()

    def encode(self, tick: TickFrame, decision: TickDecision, wall_ns: int, samples: bytes = b"") -> EncodedRound:
        """Return a round; `samples` are those since the round before. Cost: 60 µs at 110 pods."""
        objects = self._objects_of(tick)
        if self._objects is None or objects != self._objects:
            self._objects, self._objects_raw = objects, msgspec.json.encode(objects)
        return EncodedRound(
            wall_ns=wall_ns,
            mono_ns=tick.frame.measured.now_ns,
            raw=encode_round(tick, encode_decision(decision)),
            objects=self._objects,
            objects_raw=self._objects_raw,
            samples=samples,
            is_decision=decision.carried is not None,
        )

    def _objects_of(self, tick: TickFrame) -> RoundObjects:
        if self._recorded is None:
            return objects_of(tick)
        if tick.settings is not self._settings:
            self._settings, self._keys = tick.settings, annotations_read(tick.settings)
        frame, now_ns = tick.frame, tick.frame.measured.now_ns
        pods = self._recorded.pods(frame.pods, self._keys, now_ns)
        pdbs = frame.podDisruptionBudgets
        return objects_of(tick, pods, None if pdbs is None else self._recorded.pdbs(pdbs, now_ns))


class ShardRounds:
    """Puts rounds and what happened between them into one shard's records."""

    def __init__(self, header: RecordingHeader, *, with_samples: bool) -> None:
        self._encoder = ShardEncoder(header)
        self._with_samples = with_samples
        self._objects: bytes | None = None

    def start(self, wall_ns: int) -> bytes:
        """Return the shard's first record."""
        return self._encoder.start(wall_ns)

    def add(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> list[bytes]:
        """Return the records of a round: its objects where they have changed, samples, events, the round."""
        encoder, records = self._encoder, []
        if made.objects_raw is not self._objects and made.objects_raw != self._objects:
            records.append(encoder.objects(made.objects_raw, made.wall_ns))
            self._objects = made.objects_raw
        if self._with_samples and samples_raw:
            records.append(encoder.loose(Kind.SAMPLES, samples_raw, made.wall_ns))
        if events:
            records.append(self.events(events, made.wall_ns))
        records.append(encoder.round(made.raw, made.wall_ns, is_decision=made.is_decision))
        return records

    def events(self, events: Sequence[RecordedEvent], wall_ns: int) -> bytes:
        """Return a record of events."""
        return self._encoder.loose(Kind.EVENTS, msgspec.json.encode(events), wall_ns)


class ReadRound(msgspec.Struct, frozen=True):
    """One round of a recording. `decision` is JSON, as `encode_decision` makes it."""

    wall_ns: int
    tick: TickFrame
    decision: bytes
    is_decision: bool

    def is_same(self, decision: TickDecision) -> bool:
        """Tell whether a decision is the recorded one, bit for bit; `decision.decide_tick.decided_again` makes it."""
        return encode_decision(decision) == self.decision


class ShardReader:
    """Reads one shard's records. What cannot be read is passed over and stands in `damages`.

    Raises:  DecodeError: it has no header of a recording of this version.
    """

    def __init__(self, data: bytes, index: bytes = b"") -> None:
        self.content = ShardContent(data, index)
        self.header = self.content.header
        self.damages: list[Damage] = list(self.content.damages)
        self.rounds: tuple[Head, ...] = tuple(each for each in self.content.records if each.kind == Kind.ROUND)
        self._objects: tuple[int, RoundObjects] | None = None

    def round(self, head: Head) -> ReadRound | None:
        """Return a round; None: it cannot be read, and `damages` says why. Cost: 0.1 ms at 110 pods."""
        try:
            tick, decision = decode_round(self.content.raw(head), self._objects_of(head))
            return ReadRound(head.wall_ns, tick, decision_of_today(decision), head.is_decision)
        except (DecodeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.damages.append(Damage(head.offset, head.end - head.offset, str(error)))
            return None

    def events(self) -> Iterator[RecordedEvent]:
        """Yield what happened, in order."""
        for head in self.content.records:
            if head.kind == Kind.EVENTS:
                yield from self._loose(head, list[RecordedEvent])

    def samples(self) -> Iterator[NodeSample]:
        """Yield the samples of the node, in order."""
        for head in self.content.records:
            if head.kind == Kind.SAMPLES:
                yield from self._loose(head, list[NodeSample])

    def _loose(self, head: Head, kind: type[list[T]]) -> list[T]:
        try:
            found: list[T] = _decoded(self.content.raw(head), kind)
        except DecodeError as error:
            self.damages.append(Damage(head.offset, head.end - head.offset, str(error)))
            return []
        return found

    # The same object as long as the record is the same: who decides again looks at that.
    def _objects_of(self, head: Head) -> RoundObjects:
        if self._objects is None or self._objects[0] != head.objects:
            found = self.content.record(head.objects)
            if found is None or found.kind != Kind.OBJECTS:
                raise DecodeError(f"record {head.number}: it needs record {head.objects}, which cannot be read")
            self._objects = head.objects, _decoded(self.content.raw(found), RoundObjects)
        return self._objects[1]


def _decoded(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(upgraded_settings_json(raw) if kind is RoundObjects else raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"its content is none of this version: {error}") from error
