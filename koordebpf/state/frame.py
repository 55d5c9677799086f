"""Frames on the wire: JSON to `Frame` with errors that name the place, and the schema others can check against."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from koordebpf.errors import ConfigError, json_error
from koordebpf.state.view import Frame

_AT = re.compile(r"^(?P<rule>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def decode_frame(raw: bytes, path: str) -> Frame:
    """Return the frame in `raw`; `path` says where it came from.

    Unknown fields of our own parts are refused; those of Kubernetes' objects are skipped, as the API does.

    Raises: ConfigError: names the JSON path, the value and the rule.
    """
    try:
        frame = msgspec.json.decode(raw, type=Frame)
    except msgspec.ValidationError as error:
        raise located(raw, path, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise json_error(path, raw, error) from error
    return check_frame(frame, path)


def check_frame(frame: Frame, path: str) -> Frame:
    """Return a decoded frame if each of its objects is there once, by name.

    Raises: ConfigError: names the JSON path, the value and the rule.
    """
    _refuse_unnamed_pods(frame, path)
    _refuse_namespaces_that_are_there_twice(frame, path)
    return frame


def encode_frame(frame: Frame) -> bytes:
    """Return the frame as JSON that `decode_frame` reads back to an equal value."""
    return msgspec.json.encode(frame)


def frame_schema() -> dict[str, Any]:
    """Return the JSON Schema of a frame."""
    return msgspec.json.schema(Frame)


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


def located(raw: bytes, path: str, message: str) -> ConfigError:
    """Return the error that names the place which msgspec's message names, and the value there."""
    found = _AT.match(message)
    rule, inner = (found["rule"], found["path"] or "") if found else (message, "")
    try:
        value: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = raw[:60].decode(errors="replace")
    for name, index in _STEP.findall(inner):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            break
    shown = value if not isinstance(value, dict | list) else f"{str(value)[:60]}…"
    return ConfigError(f"{path}: {inner.lstrip('.') or 'frame'}", shown, rule)
