"""The bytes of a shard: records with a header, CRCs, zstd against the record of their kind before. Pure.

Shape:   record after record; each is a header of 48 bytes, little endian, and its payload. The header: magic, kind,
         flags, 2 bytes of padding, number, base, objects, length, raw length, wall clock in ns, CRC-32 of the payload
         as it lies there, 4 bytes that are zero, CRC-32 of the header before it. `base`: the number of the record that
         is the zstd dictionary of this one; 0: there is none. `objects`: that of the record with the round's objects.
         An index has 32 bytes for each record: offset, wall clock, whole length, number, kind, flags, 2 bytes of
         padding, CRC-32 of those before it.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import zstandard

from koordebpf.errors import DecodeError
from koordebpf.store.recorder.magic import MAGIC
from koordebpf.store.recorder.values import RecordingHeader

# Why: on the rounds of a busy node level 1 makes a fifth more bytes, level 5 a twentieth fewer in a quarter more time.
_LEVEL = 3
# Why: the tables that the level has by default take half a MiB more for 1 % fewer bytes of a round. With fewer entries
# than a quarter of the bytes a small change of objects with long annotations takes 11 KB, with as many 150 bytes.
_TABLE_LOG = range(14, 19)
_MIN_WINDOW_LOG = 18
# Records of a kind of which each needs the one before. Why: one that is damaged takes no more than half a minute of
# rounds with it, and against the one before a busy node's round takes 60 % of what it takes against the first.
_GROUP = 32
_MAX_RAW = 64 << 20  # Why: a round of 10,000 pods is 12 MB; what a damaged length says is not allocated
_MAX_RECORDS = 1_000_000  # Why: a file of a GiB, the largest that is written, has 650,000; each takes 200 bytes to read
_HEAD_OBJECT_BYTES = 200
_HEAD = struct.Struct("<4sBB2xIIIIIQI4x")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size
_INDEX = struct.Struct("<QQIIBB2x")
INDEX_BYTES = _INDEX.size + _CRC.size

FLAG_ZSTD = 1
FLAG_DECISION = 2  # a round of which something is carried out


class Kind(enum.IntEnum):
    """What a record holds."""

    HEADER = 1
    OBJECTS = 2
    ROUND = 3
    SAMPLES = 4  # of the node, before the next round
    EVENTS = 5


class Head(msgspec.Struct, frozen=True, gc=False):
    """A record's header, and where the record is. Lengths are bytes."""

    offset: int
    kind: int
    flags: int
    number: int
    base: int
    objects: int
    length: int
    raw_length: int
    wall_ns: int
    payload_crc: int

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + HEAD_BYTES + self.length

    @property
    def is_decision(self) -> bool:
        """Whether it is a round of which something is carried out."""
        return self.kind == Kind.ROUND and bool(self.flags & FLAG_DECISION)


class Damage(msgspec.Struct, frozen=True):
    """A part of a shard that cannot be read. `is_end`: the file ends within the record, as after a crash."""

    offset: int
    length: int
    reason: str
    is_end: bool = False

    def __str__(self) -> str:
        """Return it in words."""
        return f"offset {self.offset}: {self.length} bytes passed over: {self.reason}"


class ShardEncoder:
    """Makes the records of one shard, in order."""

    def __init__(self, header: RecordingHeader) -> None:
        self.header = header
        self._number = 0
        self._bases: dict[int, _Base] = {}
        self._objects = 0  # number of the record with them

    def start(self, wall_ns: int) -> bytes:
        """Return the first record. It is not compressed, so that `strings` shows it."""
        raw = msgspec.json.encode(self.header)
        return self._record(Kind.HEADER, 0, 0, raw, len(raw), wall_ns)

    def objects(self, raw: bytes, wall_ns: int) -> bytes:
        """Return the record with the objects of the rounds after it, as JSON of `RoundObjects`."""
        record = self._compressed(Kind.OBJECTS, 0, raw, wall_ns)
        self._objects = self._number
        return record

    def round(self, raw: bytes, wall_ns: int, *, is_decision: bool) -> bytes:
        """Return the record of a round, as JSON of `StoredRound`; its objects are the last ones."""
        return self._compressed(Kind.ROUND, FLAG_DECISION if is_decision else 0, raw, wall_ns)

    def loose(self, kind: Kind, raw: bytes, wall_ns: int) -> bytes:
        """Return a record of samples or events."""
        return self._record(kind, FLAG_ZSTD, 0, _compressor(None).compress(raw), len(raw), wall_ns)

    def _compressed(self, kind: Kind, flags: int, raw: bytes, wall_ns: int) -> bytes:
        base = self._bases.get(kind)
        if base is not None and base.depth < _GROUP - 1:
            packed = _compressor(base.raw).compress(raw)
            # What hardly resembles the one before is worth a record that needs none.
            if len(packed) <= base.plain_bytes // 2:
                record = self._record(kind, flags | FLAG_ZSTD, base.number, packed, len(raw), wall_ns)
                self._bases[kind] = _Base(self._number, raw, base.plain_bytes, base.depth + 1)
                return record
        packed = _compressor(None).compress(raw)
        record = self._record(kind, flags | FLAG_ZSTD, 0, packed, len(raw), wall_ns)
        self._bases[kind] = _Base(self._number, raw, len(packed), 0)
        return record

    def _record(self, kind: int, flags: int, base: int, payload: bytes, raw_length: int, wall_ns: int) -> bytes:
        self._number += 1
        objects = self._objects if kind == Kind.ROUND else 0
        head = _HEAD.pack(
            MAGIC, kind, flags, self._number, base, objects, len(payload), raw_length, wall_ns, zlib.crc32(payload)
        )
        return b"".join((head, _CRC.pack(zlib.crc32(head)), payload))


class _Base(NamedTuple):
    number: int
    raw: bytes
    plain_bytes: int  # of the last record that needed none
    depth: int  # how many records it needs


# A new one for each record: what it works with, a MiB for each shard that is open, would be held meanwhile.
def _compressor(raw: bytes | None) -> zstandard.ZstdCompressor:
    n_bytes = len(raw or b"")
    window_log = max(_MIN_WINDOW_LOG, (2 * n_bytes).bit_length())
    table_log = min(max(_TABLE_LOG[0], n_bytes.bit_length() - 2), _TABLE_LOG[-1])
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=window_log, hash_log=table_log, chain_log=table_log
    )
    if raw is None:
        return zstandard.ZstdCompressor(compression_params=parameters)
    dictionary = zstandard.ZstdCompressionDict(raw, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=dictionary)


def parse_head(data: bytes | memoryview, offset: int) -> Head | None:
    """Return the header that begins there; None: none does."""
    if offset + HEAD_BYTES > len(data):
        return None
    if zlib.crc32(data[offset : offset + _HEAD.size]) != _CRC.unpack_from(data, offset + _HEAD.size)[0]:
        return None
    magic, kind, flags, number, base, objects, length, raw_length, wall_ns, crc = _HEAD.unpack_from(data, offset)
    if magic != MAGIC:
        return None
    return Head(offset, kind, flags, number, base, objects, length, raw_length, wall_ns, crc)


def index_entry(record: bytes, offset: int) -> bytes:
    """Return the entry of the index for a record that begins at `offset` of its shard."""
    head = parse_head(record, 0)
    if head is None:
        raise DecodeError("a record without a header has no entry in an index")
    entry = _INDEX.pack(offset, head.wall_ns, len(record), head.number, head.kind, head.flags)
    return entry + _CRC.pack(zlib.crc32(entry))


def heads(data: bytes, index: bytes = b"") -> Iterator[Head | Damage]:
    """Yield the header of each record that is whole, and each part in between that is not.

    A record's place is taken from the index where its entry is whole and the record is there; else the records are
    found one behind the other. After a damaged part the next header is looked for.
    """
    offset, entries = 0, _entries(index)
    while offset < len(data):
        head = parse_head(data, offset)
        if head is not None and head.end <= len(data):
            if zlib.crc32(data[offset + HEAD_BYTES : head.end]) == head.payload_crc:
                yield head
            else:
                yield Damage(offset, head.end - offset, "the CRC of the record is not that of its content")
            offset = head.end
            continue
        following = _next(data, offset, entries)
        if following is None:
            yield Damage(offset, len(data) - offset, "the file ends within a record", is_end=True)
            return
        yield Damage(offset, following - offset, "no header of a record is there")
        offset = following


def _entries(index: bytes) -> deque[int]:
    found = []
    for at in range(0, len(index) - INDEX_BYTES + 1, INDEX_BYTES):
        entry = index[at : at + _INDEX.size]
        if zlib.crc32(entry) == _CRC.unpack_from(index, at + _INDEX.size)[0]:
            found.append(_INDEX.unpack(entry)[0])
    return deque(sorted(found))


# Takes the entries that it has looked at: offsets only grow.
def _next(data: bytes, offset: int, entries: deque[int]) -> int | None:
    while entries:
        at = entries.popleft()
        if at > offset and parse_head(data, at) is not None:
            return at
    at = data.find(MAGIC, offset + 1)
    while at >= 0:
        if parse_head(data, at) is not None:
            return at
        at = data.find(MAGIC, at + 1)
    return None


# As after a crash between the making of the file and its first write, or in it.
def _ends_within_header(data: bytes) -> bool:
    if len(data) < HEAD_BYTES:
        return MAGIC.startswith(data[: len(MAGIC)])
    head = parse_head(data, 0)
    return head is not None and head.kind == Kind.HEADER and head.end > len(data)


class ShardContent:
    """The records of a shard that can be read, and its damages; both together `most_records` at most.

    Raises:  DecodeError: it has no header of a recording, or more records.
    """

    def __init__(self, data: bytes, index: bytes = b"", *, most_records: int = _MAX_RECORDS) -> None:
        self._data = data
        self.damages: list[Damage] = []
        self.records: list[Head] = []
        for each in heads(data, index):
            if isinstance(each, Damage):
                self.damages.append(each)
            else:
                self.records.append(each)
            if len(self.records) + len(self.damages) > most_records:
                raise DecodeError(f"it has more than {most_records} records")
        self._by_number = {each.number: each for each in self.records}
        self._last: dict[int, tuple[int, bytes]] = {}  # kind → number of the record that was read last, and its content
        self._plain = zstandard.ZstdDecompressor()
        if _ends_within_header(data):
            raise DecodeError("the file ends within a record, its header: no round is in it")
        if not self.records or self.records[0].kind != Kind.HEADER:
            raise DecodeError("it does not begin with the header of a recording")
        try:
            self.header = msgspec.json.decode(self.raw(self.records[0]), type=RecordingHeader)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DecodeError(f"its header is none of this version: {error}") from error

    @property
    def held_bytes(self) -> int:
        """About as much as it takes of memory: itself, its places of records, and its events and samples once read."""
        loose = sum(each.raw_length for each in self.records if each.kind in (Kind.SAMPLES, Kind.EVENTS))
        return len(self._data) + _HEAD_OBJECT_BYTES * len(self.records) + loose

    def record(self, number: int) -> Head | None:
        """Return the record with this number; None: it cannot be read, or there is none."""
        return self._by_number.get(number)

    def raw(self, head: Head) -> bytes:
        """Return what a record holds.

        Raises:  DecodeError: the record that it is compressed against cannot be read, or it is damaged.
        """
        if not head.flags & FLAG_ZSTD:
            return self._payload(head)
        chain, raw = self._chain(head)
        for each in reversed(chain):
            raw = self._decompressed(each, raw)
            self._last[each.kind] = each.number, raw
        return raw

    def _payload(self, head: Head) -> bytes:
        return self._data[head.offset + HEAD_BYTES : head.end]

    # The records that are to be decompressed, the last one first, and the content of the one before them.
    def _chain(self, head: Head) -> tuple[list[Head], bytes]:
        number, content = self._last.get(head.kind, (0, b""))
        if number == head.number:
            return [], content
        chain = [head]
        while base := chain[-1].base:
            if base == number:
                return chain, content
            found = self._by_number.get(base)
            if found is None or found.kind != head.kind or base >= chain[-1].number:
                raise DecodeError(f"record {head.number}: it needs record {base}, which cannot be read")
            chain.append(found)
        return chain, b""

    def _decompressed(self, head: Head, base: bytes) -> bytes:
        payload = self._payload(head)
        if head.raw_length > _MAX_RAW:
            raise DecodeError(f"record {head.number}: {head.raw_length} bytes are more than a record has")
        decompressor = self._plain
        if head.base:
            dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            decompressor = zstandard.ZstdDecompressor(dict_data=dictionary)
        try:
            # It is what zstd allocates.
            if zstandard.frame_content_size(payload) != head.raw_length:
                raise DecodeError(f"record {head.number}: its content is not of the length that its header says")
            raw: bytes = decompressor.decompress(payload)
        except zstandard.ZstdError as error:
            raise DecodeError(f"record {head.number}: {error}") from error
        return raw
