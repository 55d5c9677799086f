"""Messages of a gRPC service by a table of their fields: nothing is generated, and only what is used is named.

A message is a dict of its fields. The library protobuf would do the same for 4 MiB of memory more (measured); what it
reads and writes is compared with this in tests/contract/test_protobuf.py.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from koordebpf.errors import DecodeError

Fields = Mapping[str, tuple[int, str]]
"""field → number and type: int32, int64, uint64, bool, double, string, bytes or a message of the same table; `*` is
repeated, `?` is sent also where it is 0 or "", as proto2 has it. A map is a list of key and value on the wire, and a
message that is only passed on is bytes."""
Messages = Mapping[str, Fields]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_INTEGERS = ("int32", "int64", "uint64", "bool")
_RANGES = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
    "bool": (0, 1),
}
_DOUBLE = struct.Struct("<d")
_MASK = (1 << 64) - 1
_DEFAULTS: Mapping[str, Any] = {
    "int32": 0, "int64": 0, "uint64": 0, "bool": False, "double": 0.0, "string": "", "bytes": b"",
}  # fmt: skip
_MOST_SHIFT = 63  # ten bytes of seven bits


def encode(messages: Messages, name: str, value: Mapping[str, Any]) -> bytes:
    """Return a message as bytes. A field that is not given, 0 or "" is not sent, as proto3 has it."""
    out = bytearray()
    for field, (number, kind) in messages[name].items():
        given = value.get(field)
        if kind.startswith("*"):
            for one in given or ():
                _encode_field(messages, out, number, kind[1:], one)
        elif given or (given is not None and (kind in messages or kind.startswith("?") or _is_negative_zero(given))):
            _encode_field(messages, out, number, kind.removeprefix("?"), given)
    return bytes(out)


def decode(messages: Messages, name: str, data: bytes) -> dict[str, Any]:
    """Return every field of the table: 0, "" or [] where it was not sent, None of a message or `?`. Others are skipped.

    Raises:  DecodeError: it ends too early, or a field has another type.
    """
    fields = messages[name]
    by_number = {number: (field, kind.removeprefix("?")) for field, (number, kind) in fields.items()}
    value = {field: _default(kind) for field, (_, kind) in fields.items()}
    for number, wire, content in _fields_of(data):
        field, kind = by_number.get(number, ("", ""))
        if not field:
            continue
        if not kind.startswith("*"):
            value[field] = _value(messages, kind, wire, content)
        elif wire == _BYTES and kind[1:] in _INTEGERS:  # packed
            at = 0
            while at < len(content):
                one, at = _varint(content, at)
                value[field].append(_signed(one, kind[1:]))
        else:
            value[field].append(_value(messages, kind[1:], wire, content))
    return value


def _encode_field(messages: Messages, out: bytearray, number: int, kind: str, value: Any) -> None:
    if kind in _INTEGERS:
        out += _as_varint(number << 3 | _VARINT) + _as_varint(_nearest(value, kind) & _MASK)
        return
    if kind == "double":
        out += _as_varint(number << 3 | _FIXED64) + _DOUBLE.pack(value)
        return
    content = value.encode() if kind == "string" else value if kind == "bytes" else encode(messages, kind, value)
    out += _as_varint(number << 3 | _BYTES) + _as_varint(len(content)) + content


# Cut to 64 bits, a number that a file has may be any other, also a negative one.
def _nearest(number: int, kind: str) -> int:
    least, most = _RANGES[kind]
    return max(min(number, most), least)


# It equals 0, and its bytes are others.
def _is_negative_zero(value: Any) -> bool:
    return isinstance(value, float) and math.copysign(1, value) < 0


def _default(kind: str) -> Any:
    if kind.startswith("*"):
        return []
    return _DEFAULTS.get(kind)


def _value(messages: Messages, kind: str, wire: int, content: Any) -> Any:
    if wire != (_VARINT if kind in _INTEGERS else _FIXED64 if kind == "double" else _BYTES):
        raise DecodeError(f"a field of type {kind} came as wire type {wire}")
    if kind in _INTEGERS:
        return _signed(content, kind)
    if kind == "double":
        return _DOUBLE.unpack(content)[0]
    if kind == "bytes":
        return bytes(content)
    return content.decode(errors="replace") if kind == "string" else decode(messages, kind, content)


def _signed(number: int, kind: str) -> int:
    if kind == "bool":
        return bool(number)
    if kind == "uint64":
        return number & _MASK
    bits = int(kind[3:])
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


# Number, wire type and content of each: an int, or bytes.
def _fields_of(data: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            content, at = _varint(data, at)
            yield number, wire, content
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise DecodeError(f"field {number} has wire type {wire}")
        if len(data) - at < length:
            raise DecodeError(f"field {number} ends after {len(data) - at} of {length} bytes")
        yield number, wire, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, _MOST_SHIFT + 1, 7):
        if at >= len(data):
            raise DecodeError("a number ends too early")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MASK, at
    raise DecodeError("a number has more than ten bytes")


def _as_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
