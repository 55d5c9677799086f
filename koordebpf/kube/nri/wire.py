"""ttrpc on a multiplexed connection, without its socket: bytes in, messages out, and the reverse.

Shape:   a frame is connection ID and length, 4 bytes each, then bytes of that connection; in those a message is length
         and stream ID, 4 bytes each, type and flags, one each, then its data. All big endian.
Source:  containerd/nri pkg/net/multiplex/mux.go; containerd/ttrpc PROTOCOL.md, channel.go.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from koordebpf.errors import DecodeError

PLUGIN_CONN, RUNTIME_CONN = 1, 2  # calls of the runtime, calls of the plugin
REQUEST, RESPONSE = 1, 2
MOST_DATA = 4 << 20  # of a message, by ttrpc's own rule

_FRAME = struct.Struct("!II")
_HEADER = struct.Struct("!IIBB")
# Why 4,096: the receiver reads a frame into the buffer of a bufio.Reader, and fails with ENOMEM where it has more.
_MOST_SENT = 4096


class Message(NamedTuple):
    """One message. `data` is None of one that exceeds `MOST_DATA`: it was dropped."""

    conn: int
    stream: int
    kind: int
    data: bytes | None


def frames_of(conn: int, stream: int, kind: int, data: bytes) -> bytes:
    """Return the bytes that send one message.

    Raises:  ValueError: it exceeds MOST_DATA.
    """
    if len(data) > MOST_DATA:
        raise ValueError(f"a message of {len(data)} bytes, more than {MOST_DATA}")
    whole = _HEADER.pack(len(data), stream, kind, 0) + data
    out = bytearray()
    for at in range(0, len(whole), _MOST_SENT):
        part = whole[at : at + _MOST_SENT]
        out += _FRAME.pack(conn, len(part)) + part
    return bytes(out)


class Wire:
    """What one socket delivers, put together. What a connection may make it keep is one message."""

    def __init__(self) -> None:
        self._head = bytearray()  # of a frame
        self._conn = self._left = 0  # the frame that is being received, and how many bytes of it are missing
        self._streams: dict[int, _Messages] = {
            PLUGIN_CONN: _Messages(PLUGIN_CONN),
            RUNTIME_CONN: _Messages(RUNTIME_CONN),
        }

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take in what was received; yield the messages that are complete. Frames of other connections are skipped.

        Raises:  DecodeError: a frame that no sender of this protocol makes.
        """
        view = memoryview(data)
        while view:
            if not self._left:
                missing = _FRAME.size - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) < _FRAME.size:
                    return
                self._conn, self._left = _FRAME.unpack(self._head)
                self._head.clear()
                if self._left > MOST_DATA + _HEADER.size:
                    raise DecodeError(f"a frame of {self._left} bytes, more than {MOST_DATA + _HEADER.size}")
                continue
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            if (messages := self._streams.get(self._conn)) is not None:
                yield from messages.feed(part)


class _Messages:
    def __init__(self, conn: int) -> None:
        self._conn = conn
        self._kept = bytearray()
        self._dropping = 0  # bytes of a message that is too large

    def feed(self, part: memoryview) -> Iterator[Message]:
        dropped = min(self._dropping, len(part))
        self._dropping -= dropped
        self._kept += part[dropped:]
        while len(self._kept) >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(self._kept)
            if length > MOST_DATA:
                rest = len(self._kept) - _HEADER.size
                self._dropping = max(0, length - rest)
                del self._kept[: _HEADER.size + min(length, rest)]
                yield Message(self._conn, stream, kind, None)
                continue
            end = _HEADER.size + length
            if len(self._kept) < end:
                return
            with memoryview(self._kept) as view:
                body = bytes(view[_HEADER.size : end])
            del self._kept[:end]
            yield Message(self._conn, stream, kind, body)
