"""What a recording holds, as values: rounds in two parts, samples of the node between them, and events. Pure.

A round is a `TickFrame` and the decision on it. Only full measurements are rounds, once a second or sooner; at tick
rate the agent samples the node alone. So the frames between two rounds are samples, and a round has those before it.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.decision.frames import decode_msgpack, schemas_of
from koordebpf.kernel.signals import SignalQuality
from koordebpf.kube.cache.objects import Namespace, Node, NodeResourceTopology, Pod, PodDisruptionBudget
from koordebpf.quantity import within_int64
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.measured import NodeMeasure
from koordebpf.state.view import Frame
from koordebpf.store.sink import Event, PlanDecided

SCHEMA = "koordebpf.recording/v1"
_NO_SETTINGS = TickSettings()
# In memory a sample is as long as this, not the 400 bytes of the objects it is made of: 30 s at 4 ms are 7,500 of them.
_SAMPLE = struct.Struct("<qqqdqq")
SAMPLE_BYTES = _SAMPLE.size
_NOT_KNOWN = -1
# The kinds that are no class of the sinks.
ROUNDS_LOST = "RoundsLost"
SIGNALS_SEEN = "SignalsSeen"


class Pace(enum.StrEnum):
    """Which rounds a shard has: every one around a decision, one each second, one each 5 s, or every one."""

    DECISIONS = "decisions"
    SECONDS = "seconds"
    DAY = "day"
    ALL = "all"  # of `koordebpf record`


class RecordingHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first record of a shard. `run` names one run of one agent: shards of two runs are two recordings."""

    schema: Literal["koordebpf.recording/v1"] = "koordebpf.recording/v1"
    koordebpf: str  # the writer's version
    run: str
    node: str
    pace: Pace
    wall_s: float  # when the shard was made
    redacted: bool = False


class RoundObjects(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The part of a round that rarely changes: Kubernetes' objects and settings, stored once for each change.

    The fields are those of `Frame` with these names, and `settings` of `TickFrame`.
    """

    settings: TickSettings
    pods: tuple[Pod, ...] = ()
    node: Node | None = None
    nodeResourceTopology: NodeResourceTopology | None = None
    nodeSLO: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sloControllerConfig: dict[str, str] | None = None
    featureGates: dict[str, bool] = {}
    podDisruptionBudgets: tuple[PodDisruptionBudget, ...] | None = None
    namespaces: tuple[Namespace, ...] = ()
    strategyInForce: ResourceThresholdStrategy | msgspec.UnsetType | None = msgspec.UNSET


OBJECT_FIELDS = tuple(name for name in RoundObjects.__struct_fields__ if name != "settings")
_NO_OBJECTS = {each.name: each.default for each in msgspec.structs.fields(RoundObjects) if each.name in OBJECT_FIELDS}
_NO_OBJECTS["featureGates"] = {}  # msgspec has a factory for it


class StoredRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round without its objects, as MessagePack: numbers that change are half as long as in JSON.

    `tick` has the default settings, no object and, but for what an older frame had in another place, no state. `states`
    (those of `TickFrame`) and `decision` (as `encode_decision` makes it) are JSON: of what they hold the types are not
    known here.
    """

    tick: TickFrame
    states: bytes
    decision: bytes


class NodeSample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One look at the node between two rounds. `at_ns` CLOCK_MONOTONIC; None: not known. Stalls: memory.pressure."""

    at_ns: int
    total_bytes: int
    used_bytes: int | None
    growth_bytes_per_s: float | None
    some_total_us: int | None
    full_total_us: int | None


class RecordedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happened between two rounds. `kind` is the event's class in `store.sink`, `data` its fields as JSON."""

    kind: str
    wall_s: float
    data: Mapping[str, Any] = {}


def objects_of(
    tick: TickFrame,
    pods: tuple[Pod, ...] | None = None,
    pdbs: tuple[PodDisruptionBudget, ...] | None = None,
) -> RoundObjects:
    """Return the part of a round that rarely changes, with these in place of its own; nothing is copied."""
    frame = tick.frame
    return RoundObjects(
        settings=tick.settings,
        pods=frame.pods if pods is None else pods,
        node=frame.node,
        nodeResourceTopology=frame.nodeResourceTopology,
        nodeSLO=frame.nodeSLO,
        sloControllerConfig=frame.sloControllerConfig,
        featureGates=frame.featureGates,
        podDisruptionBudgets=frame.podDisruptionBudgets if pdbs is None else pdbs,
        namespaces=frame.namespaces,
        strategyInForce=frame.strategyInForce,
    )


def without_objects(tick: TickFrame) -> TickFrame:
    """Return the other part; `joined` puts the two together again."""
    return replace(tick, settings=_NO_SETTINGS, frame=replace(tick.frame, **_NO_OBJECTS))


def joined(tick: TickFrame, objects: RoundObjects) -> TickFrame:
    """Return the whole round."""
    frame: Frame = replace(tick.frame, **{name: getattr(objects, name) for name in OBJECT_FIELDS})
    return replace(tick, settings=objects.settings, frame=frame)


def encode_round(tick: TickFrame, decision: bytes) -> bytes:
    """Return the round without its objects as MessagePack, each number the nearest that 64 bits hold."""
    rest = StoredRound(replace(without_objects(tick), states={}), msgspec.json.encode(tick.states), decision)
    try:
        return msgspec.msgpack.encode(rest)
    except OverflowError:
        return msgspec.msgpack.encode(_with_numbers_of_64_bits(msgspec.to_builtins(rest, builtin_types=(bytes,))))


def _with_numbers_of_64_bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers_of_64_bits(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_numbers_of_64_bits(each) for each in value]
    return within_int64(value) if type(value) is int else value


def decode_round(raw: bytes, objects: RoundObjects) -> tuple[TickFrame, bytes]:
    """Return the whole round and its decision as JSON.

    Raises:  msgspec.DecodeError: it is none.
    """
    stored = decode_msgpack(raw, StoredRound)
    states = msgspec.json.decode(stored.states, type=dict[str, Any])
    return replace(joined(stored.tick, objects), states={**stored.tick.states, **states}), stored.decision


def pack_sample(at_ns: int, node: NodeMeasure) -> bytes:
    """Return a sample as 48 bytes. Cost: 1 µs."""
    some, full, growth = node.psi_some, node.psi_full, node.growth_bytes_per_s
    return _SAMPLE.pack(
        at_ns,
        node.total_bytes,
        _NOT_KNOWN if node.used_bytes is None else node.used_bytes,
        math.nan if growth is None else growth,
        _NOT_KNOWN if some is None else some.total_us,
        _NOT_KNOWN if full is None else full.total_us,
    )


def unpack_samples(packed: bytes) -> list[NodeSample]:
    """Return the samples of `pack_sample`, one behind the other."""
    return [
        NodeSample(at, total, _known(used), None if math.isnan(growth) else growth, _known(some), _known(full))
        for at, total, used, growth, some, full in _SAMPLE.iter_unpack(packed)
    ]


def _known(number: int) -> int | None:
    return None if number == _NOT_KNOWN else number


def recording_schema() -> dict[str, Any]:
    """Return the JSON Schemas of what the records of a recording hold, by kind."""
    kinds = {
        "header": RecordingHeader,
        "objects": RoundObjects,
        "round": StoredRound,
        "samples": list[NodeSample],
        "events": list[RecordedEvent],
    }
    found, components = schemas_of(kinds.values())
    return {"$defs": components, "properties": dict(zip(kinds, found, strict=True))}


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
