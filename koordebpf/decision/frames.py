"""Frames and rounds on the wire: values from JSON, with errors that name the place, and schemas to check against. Pure.

What was measured for one strategy is of a type that it alone knows: `decision.strategies.PARTS` has them. Of a pod's
annotations, labels and conditions a recording keeps those that a decision may read: each strategy names its own.
tests/rules/test_pod_keys.py finds one that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from koordebpf.attribution.static_pods import CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION
from koordebpf.decision.decide_tick import TickFrame
from koordebpf.decision.strategies import PARTS, STRATEGIES, settings_of
from koordebpf.errors import ConfigError, json_error, rule_and_place, type_error
from koordebpf.slo.pods.cpu_placement import RESOURCE_STATUS_ANNOTATION
from koordebpf.slo.pods.eviction import (
    EVICTION_ENABLED_LABEL,
    EVICTION_POLICY_ANNOTATION,
    EVICTION_PRIORITY_ANNOTATION,
    SUB_PRIORITY_LABEL,
)
from koordebpf.slo.pods.extended_resources import EXTENDED_RESOURCE_ANNOTATION
from koordebpf.slo.pods.qos import PRIORITY_CLASS_LABEL, QOS_LABEL
from koordebpf.state.guard_facts import LABEL as KOORDLET_LABEL
from koordebpf.state.measured import MeasuredParts
from koordebpf.state.pods.effective import RESIZE_IN_PROGRESS, RESIZE_PENDING
from koordebpf.state.pods.facts import READY
from koordebpf.state.view import Frame

ANNOTATIONS: Final = frozenset(
    {
        CONFIG_HASH_ANNOTATION,
        CONFIG_MIRROR_ANNOTATION,
        EVICTION_POLICY_ANNOTATION,
        EVICTION_PRIORITY_ANNOTATION,
        EXTENDED_RESOURCE_ANNOTATION,
        RESOURCE_STATUS_ANNOTATION,
    }.union(*(each.annotations for each in STRATEGIES))
)
# By their own names. Selectors of PodDisruptionBudgets and of settings may name any other.
LABELS: Final = frozenset(
    {
        EVICTION_ENABLED_LABEL,
        KOORDLET_LABEL,
        PRIORITY_CLASS_LABEL,
        QOS_LABEL,
        SUB_PRIORITY_LABEL,
    }.union(*(each.labels for each in STRATEGIES))
)
CONDITIONS: Final = frozenset({READY, RESIZE_IN_PROGRESS, RESIZE_PENDING})
T = TypeVar("T")
_V1: Final = "koordebpf.frame/v1"
_V2: Final = "koordebpf.frame/v2"
_V3: Final = "koordebpf.frame/v3"
# Field of `measured` in koordebpf.frame/v1 → its part.
_V1_PARTS: Final = {
    "katalyst": "katalystEviction",
    "hooks": "runtimeHooks",
    "block_io": "blockIO",
    "proactive_reclaim": "proactiveReclaim",
    "resctrl": "rdtResctrl",
    "system": "systemConfig",
    "burst": "cpuBurst",
    "memory_qos": "memoryQos",
    "page_cache": "bePageCacheSuppress",
}
# Where koordebpf.frame/v2 had what a strategy decides from, of which each now has its own: its name.
_V2_STATES: Final = {"suppression": "suppress"}  # field of a frame → of `states`
_V2_SETTINGS: Final = {"suppress": "suppress"}  # field of a round's settings → of their `strategies`
_V3_SETTINGS: Final = b'"strategies":{"suppress":{'  # as every one has them since
_V2_PARTS: Final = {"woken_by": "suppress"}  # field of a round → part of `measured`, which has a field of that name


def annotations_read(sections: Any) -> frozenset[str]:
    """Return the keys of annotations that decisions under these settings may read; `sections` as for `settings_of`."""
    return ANNOTATIONS.union(*(each.annotations_named(settings_of(each, sections)) for each in STRATEGIES))


def read_by_name(sections: Any) -> frozenset[str]:
    """Return the keys of annotations and labels that decisions may read by their own names."""
    return annotations_read(sections) | LABELS


def decode_frame(raw: bytes, path: str) -> Frame:
    """Return the frame in `raw`; `path` says where it came from.

    Unknown fields of our own parts are refused; those of Kubernetes' objects are skipped, as the API does.

    Raises: ConfigError: names the JSON path, the value and the rule.
    """
    return check_frame(decode_json(raw, path, Frame), path)


def decode_json(raw: bytes, path: str, as_type: type[T]) -> T:
    """Return JSON as a frame, a round or what else holds one, also of koordebpf.frame/v1 and v2.

    Raises: ConfigError: names the JSON path, the value and the rule.
    """
    raw = upgraded_json(raw)
    try:
        return msgspec.json.decode(raw, type=as_type, dec_hook=_typed)
    except msgspec.ValidationError as error:
        raise type_error(path, raw, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise json_error(path, raw, error) from error


def decode_msgpack(raw: bytes, as_type: type[T]) -> T:
    """Return MessagePack as `decode_json` returns JSON.

    Raises: msgspec.DecodeError: it is none.
    """
    raw = _upgraded(raw, msgspec.msgpack.decode, msgspec.msgpack.encode)
    return msgspec.msgpack.decode(raw, type=as_type, dec_hook=_typed)


def upgraded_json(raw: bytes) -> bytes:
    """Return JSON that is or holds a frame of koordebpf.frame/v1 or v2 as it is today; what holds none as it is."""
    return _upgraded(raw, msgspec.json.decode, msgspec.json.encode)


def upgraded_settings_json(raw: bytes) -> bytes:
    """Return a JSON object that has a round's settings, as rounds of koordebpf.frame/v2 had them or as they are."""
    if _V3_SETTINGS in raw:
        return raw
    whole = msgspec.json.decode(raw)
    if isinstance(whole, dict) and isinstance(settings := whole.get("settings"), dict):
        _moved(settings, _V2_SETTINGS, settings, "strategies")
    return msgspec.json.encode(whole)


def encode_frame(frame: Frame) -> bytes:
    """Return the frame as JSON that `decode_frame` reads back to an equal value."""
    return msgspec.json.encode(frame)


def frame_schema() -> dict[str, Any]:
    """Return the JSON Schema of a frame."""
    return schema_of(Frame)


def tick_frame_schema() -> dict[str, Any]:
    """Return the JSON Schema of a tick's frame."""
    return schema_of(TickFrame)


def schema_of(as_type: Any) -> dict[str, Any]:
    """Return the JSON Schema of a frame, or of what holds one."""
    (found,), definitions = schemas_of([as_type])
    return {**found, "$defs": definitions}


def schemas_of(types: Iterable[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return the JSON Schema of each type, and the definitions that they share."""
    types = tuple(types)
    parts, _ = msgspec.json.schema_components(PARTS.values(), ref_template="#/$defs/{name}")
    by_name = {"type": "object", "properties": dict(zip(PARTS, parts, strict=True)), "additionalProperties": False}
    found, definitions = msgspec.json.schema_components(
        (*types, *PARTS.values()), schema_hook=lambda _: by_name, ref_template="#/$defs/{name}"
    )
    return tuple(found[: len(types)]), definitions


def check_frame(frame: Frame, path: str) -> Frame:
    """Return a decoded frame if each of its objects is there once, by name.

    Raises: ConfigError: names the JSON path, the value and the rule.
    """
    _refuse_unnamed_pods(frame, path)
    _refuse_namespaces_that_are_there_twice(frame, path)
    return frame


# msgspec's dec_hook. msgspec adds the place of the part to an error, in front of the place in it.
def _typed(kind: type[Any], given: Any) -> MeasuredParts:
    if kind is not MeasuredParts or not isinstance(given, Mapping):
        raise ValueError("Expected `object`")
    parts = MeasuredParts()
    for name, each in given.items():
        if name not in PARTS:
            raise ValueError(f"Object contains unknown field `{name}`")
        try:
            parts[name] = msgspec.convert(each, PARTS[name], str_keys=True)
        except msgspec.ValidationError as error:
            rule, place = rule_and_place(error)
            raise ValueError(f"{rule} - at `$.{name}{place}`") from error
    return parts


# A frame may be the whole, of a round, or of a line with the decision on the round.
def _upgraded(raw: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> bytes:
    if _V1.encode() not in raw and _V2.encode() not in raw:
        return raw
    try:
        whole = decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw  # and what is wrong with it is found by its type
    round_ = whole.get("tick", whole) if isinstance(whole, dict) else None
    frame = round_.get("frame", round_) if isinstance(round_, dict) else None
    if not isinstance(round_, dict) or not isinstance(frame, dict) or frame.get("schema") not in (_V1, _V2):
        return raw
    measured = frame.get("measured")
    if frame["schema"] == _V1 and isinstance(measured, dict):
        _moved(measured, _V1_PARTS, measured, "parts")
        measured.setdefault("parts", {})
    frame["schema"] = _V3
    _moved(frame, _V2_STATES, round_, "states")
    if round_ is not frame:
        _moved_of_round(round_, measured)
    return encode(whole)


def _moved_of_round(round_: dict[str, Any], measured: Any) -> None:
    if isinstance(settings := round_.get("settings"), dict):
        _moved(settings, _V2_SETTINGS, settings, "strategies")
    for field, part in _V2_PARTS.items():
        if (value := round_.pop(field, None)) is not None and isinstance(measured, dict):
            measured.setdefault("parts", {})[part] = {field: value}


# Takes fields away from where they were, and puts those that are set below one name.
def _moved(there: dict[str, Any], names: Mapping[str, str], below: dict[str, Any], name: str) -> None:
    found = {new: there.pop(old) for old, new in names.items() if old in there}
    if found := {new: value for new, value in found.items() if value is not None}:
        below[name] = {**(below.get(name) or {}), **found}


def _refuse_namespaces_that_are_there_twice(frame: Frame, path: str) -> None:
    seen: set[str] = set()
    for index, each in enumerate(frame.namespaces):
        if each.metadata.name in seen:
            raise ConfigError(f"{path}: namespaces[{index}].metadata.name", each.metadata.name, "must be unique")
        seen.add(each.metadata.name)


def _refuse_unnamed_pods(frame: Frame, path: str) -> None:
    seen: set[str] = set()
    for index, pod in enumerate(frame.pods):
        if not pod.uid:
            raise ConfigError(f"{path}: pods[{index}].metadata.uid", pod.uid, "must not be empty")
        if pod.uid in seen:
            raise ConfigError(f"{path}: pods[{index}].metadata.uid", pod.uid, "must be unique")
        seen.add(pod.uid)
    measured: set[str] = set()
    for index, measure in enumerate(frame.measured.pods):
        if measure.uid in measured:
            raise ConfigError(f"{path}: measured.pods[{index}].uid", measure.uid, "must be unique")
        measured.add(measure.uid)
