"""The file format of recordings: kernel records are written as they come and decoded later.

Shape:   magic, u32 version, u32 length of the header; the header as JSON, padded to 8; then the ring's own frames, each
         a u32 length with flags, a u32 that means nothing here, the record, padding to 8; then the end mark with four
         u64: records, bytes of the frames, lost (all ones: not known), ns from begin to end.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec

from koordebpf import __version__
from koordebpf.errors import ConfigError, SupportError
from koordebpf.events.columns import STRUCTS
from koordebpf.events.layout import KIND_NUMBERS, LAYOUTS, expected_offsets
from koordebpf.kernel.bpf.ring import Batch
from koordebpf.kernel.io.closing import Closing
from koordebpf.store.outputs.output_file import OutputFile
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)

VERSION = 1
_MAGIC = b"koordrec"
_PREFIX = struct.Struct("<8sII")
_FRAME = struct.Struct("<II")
_DISCARD = 1 << 30  # BPF_RINGBUF_DISCARD_BIT, include/uapi/linux/bpf.h
# Read as a frame it would be one of 800 MB, more than any ring holds, so it cannot be one.
_END = struct.Struct("<8sQQQQ")
_END_MARK = b"koordend"
_NOT_KNOWN = (1 << 64) - 1


class StructLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A C structure as the recording's writer knew it. Units: bytes."""

    size: int
    offsets: Mapping[str, int]


class RecordingHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a reader has to know beside the records."""

    koordebpf: str  # the writer's version
    host: str
    began_ns: int  # CLOCK_MONOTONIC, as the records' ts_ns
    clock_offset_ns: int  # add it to CLOCK_MONOTONIC for the time of day
    kinds: Mapping[str, int]  # as the records' tags spell them → koord_head.kind
    layouts: Mapping[str, StructLayout]
    cgroups: Mapping[int, str]  # id → path below the hierarchy's mount point, of those that were there at the begin


class RecordingSummary(msgspec.Struct, frozen=True):
    """What one recording took. `bytes` is the file's size; `lost` None: this backend does not count losses."""

    records: int
    bytes: int
    lost: int | None
    seconds: float


def own_header(cgroups: Mapping[int, str]) -> RecordingHeader:
    """Return the header of a recording that begins now on this host."""
    host = os.uname()
    now_ns = time.monotonic_ns()
    layouts = {name: StructLayout(*expected_offsets(name)) for name in ("koord_head", *STRUCTS.values())}
    return RecordingHeader(
        __version__,
        f"{host.nodename}, {host.sysname} {host.release} {host.machine}, {os.cpu_count()} CPUs",
        now_ns,
        time.time_ns() - now_ns,
        KIND_NUMBERS,
        layouts,
        cgroups,
    )


class Recorder(Closing):
    """A recording that is being written. Killed at any moment it leaves a file with whole records up to the last write.

    Raises:  ConfigError: the file cannot be written; it keeps the whole records before that.
    """

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        self.path = path
        self.records = 0
        self.bytes = 0
        self._header = header
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % 8)
        self._output = OutputFile("recording", path)
        self._output.commit()  # killed, it leaves what it has by then
        self._write(_PREFIX.pack(_MAGIC, VERSION, len(text)) + text)
        self._head_bytes = self.bytes

    def _write(self, data: memoryview | bytes) -> None:
        try:
            self._output.write(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._output.fd, self.bytes)
            rule = f"cannot be written after {self.records} records: {error.strerror}"
            raise ConfigError("recording", str(self.path), rule) from error
        self.bytes += len(data)

    def write(self, batch: Batch) -> None:
        """Append a batch as it lies in the ring; it may be released afterwards."""
        self._write(batch.frames)
        self.records += batch.count

    def add(self, records: Iterable[bytes]) -> None:
        """Append records that do not come out of a mapped ring."""
        taken = list(records)
        self._write(b"".join(_FRAME.pack(len(each), 0) + each + bytes(-len(each) % 8) for each in taken))
        self.records += len(taken)

    def finish(self, lost: int | None) -> RecordingSummary:
        """Append the end mark and close the file."""
        elapsed_ns = time.monotonic_ns() - self._header.began_ns
        frames = self.bytes - self._head_bytes
        self._write(_END.pack(_END_MARK, self.records, frames, _NOT_KNOWN if lost is None else lost, elapsed_ns))
        self.close()
        return RecordingSummary(self.records, self.bytes, lost, elapsed_ns / NS_PER_S)

    def close(self) -> None:
        """Close the file; without `finish` it counts as cut. Twice is harmless."""
        self._output.close()


class Recording(Iterator[bytes]):
    """The records of a file, oldest first, as `koordebpf.events.layout.decode` takes them.

    A file without its end was cut: its whole records come all the same, and a warning says how many.

    Attributes:
        header: what the writer knew.
        summary: what the writer took; None: the file was cut.
    Raises:  ConfigError: no recording, or one of a newer version. SupportError: its layouts are not this package's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map_file(path)
        self.header, self._at = _read_header(path, self._data)
        self._stop = len(self._data)
        self.summary: RecordingSummary | None = None
        self.records = 0  # given so far
        end_at = self._stop - _END.size
        if end_at >= self._at:
            mark, records, frames, lost, elapsed_ns = _END.unpack_from(self._data, end_at)
            if mark == _END_MARK and self._at + frames == end_at:
                known = None if lost == _NOT_KNOWN else lost
                self.summary = RecordingSummary(records, len(self._data), known, elapsed_ns / NS_PER_S)
                self._stop = end_at

    @property
    def is_cut(self) -> bool:
        """Whether the file lacks its end."""
        return self.summary is None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        while self._at + _FRAME.size <= self._stop:
            head, _ = _FRAME.unpack_from(self._data, self._at)
            length = head & (_DISCARD - 1)
            begin = self._at + _FRAME.size
            # A record is never shorter than its head: what a crash of the host left unwritten reads as zeros.
            if begin + length > self._stop or length < self.header.layouts["koord_head"].size:
                break
            self._at = begin + (length + 7) // 8 * 8
            if not head & _DISCARD:
                self.records += 1
                return bytes(self._data[begin : begin + length])
        if self._at < self._stop or self.is_cut:
            log.warning("%s was cut: it gives %d whole records", self.path, self.records)
            self._stop = self._at = 0
        raise StopIteration


def read_recording(path: Path) -> Recording:
    """Return the recording in `path`, whose layouts are this package's."""
    return Recording(path)


def _map_file(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    except OSError as error:
        raise ConfigError("recording", str(path), f"cannot be read: {error.strerror}") from error


def _read_header(path: Path, data: memoryview) -> tuple[RecordingHeader, int]:
    if len(data) < _PREFIX.size or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise ConfigError("recording", str(path), f"must begin with {_MAGIC.decode()}: it is no recording")
    _, version, length = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise ConfigError("recording", str(path), f"is of version {version}, this package reads {VERSION}")
    end = _PREFIX.size + length
    if end > len(data):
        raise ConfigError("recording", str(path), "is cut within its header, so that it holds no records")
    try:
        header = msgspec.json.decode(data[_PREFIX.size : end], type=RecordingHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("recording", str(path), f"has a broken header: {error}") from error
    _check_layouts(path, header)
    return header, end


def _check_layouts(path: Path, header: RecordingHeader) -> None:
    remedy = f"Read it with koordebpf {header.koordebpf}, which wrote it."
    for name, layout in header.layouts.items():
        own = StructLayout(*expected_offsets(name)) if name in LAYOUTS else None
        if layout != own:
            raise SupportError(f"recording {path}", f"it lays {name} out as {layout}, this package as {own}", remedy)
    for kind, number in header.kinds.items():
        if KIND_NUMBERS.get(kind) != number:
            reason = f"its records of kind {number} are {kind}, which this package knows as {KIND_NUMBERS.get(kind)}"
            raise SupportError(f"recording {path}", reason, remedy)
    if "koord_head" not in header.layouts:
        raise ConfigError("recording", str(path), "its header must lay out koord_head")
