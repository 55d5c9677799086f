"""A snapshot of a node's series: the agent that starts next continues their windows.

Shape:   the line `koordebpf.series/v1`, then frames: a tag, length and CRC-32 of tag and what follows (`<cII`), and
         MessagePack: `S` some series, at last one `E`, with the boot that the times are of and the rounds of each kind.
Bounds:  a file has at most the budget of the series and their keys, a frame 16 MiB.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

from koordebpf.act.writer.journal import this_boot
from koordebpf.errors import ConfigError, DecodeError
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.regular_file import open_part, open_regular
from koordebpf.state.series.kinds import SavedRounds, SavedSeries
from koordebpf.state.series.store import SeriesSettings, SeriesStore
from koordebpf.units import NS_PER_S, format_bytes

log = logging.getLogger("koordebpf")
T = TypeVar("T")
_MAGIC: Final = b"koordebpf.series/v1\n"
_FRAME: Final = struct.Struct("<cII")
_MOST_BYTES: Final = 16 << 20
_AT_ONCE: Final = 32  # series. Why: 0.3 ms, which the loop can spare each second
_DAY_NS: Final = 24 * 3600 * NS_PER_S
_MOST_STORE_BYTES: Final = 1 << 30
_SHOWN: Final = 3  # problems in a log line


class SavedMoment(msgspec.Struct, frozen=True):
    """When a snapshot was complete, by both clocks, and what its samples' times mean."""

    boot_id: str
    monotonic_ns: int
    wall_ns: int
    rounds: tuple[SavedRounds, ...]


class SnapshotWriter:
    """Writes the series of a store into the file at `path`, some at a time, in place of the one before.

    The file is replaced once it is complete: one that is there is whole.

    Cost:    0.3 ms for 32 series of 30 minutes; the file 4 MiB for 1,320 of them, beside the one before.
    """

    def __init__(self, path: Path, store: SeriesStore) -> None:
        self._path = path
        self._part = path.with_suffix(".part")
        self._store = store
        self._file: BinaryIO | None = None
        self._keys: list[tuple[str, ...]] = []
        self._degraded = Degraded(path, "a restarted agent will not know the series")

    @property
    def is_writing(self) -> bool:
        """A snapshot was started and is not complete."""
        return self._file is not None

    def start(self) -> None:
        """Start with the series that there are now."""
        self.cancel()
        try:
            fd = open_part(self._part)
            self._file = os.fdopen(fd, "wb", buffering=0)
            _write(self._file, _MAGIC)
        except OSError as error:
            self._failed(error)
            return
        self._keys = [key for kind in self._store.kinds() for key in self._store.keys(kind)]

    def write_some(self, now_ns: int) -> None:
        """Write the next series, and after the last of them the end."""
        if self._file is None:
            return
        some, self._keys = self._keys[:_AT_ONCE], self._keys[_AT_ONCE:]
        try:
            _write_frame(self._file, b"S", self._store.saved(some))
            if not self._keys:
                end = SavedMoment(this_boot(), now_ns, time.time_ns(), self._store.saved_rounds())
                _write_frame(self._file, b"E", end)
                self._file.close()
                self._file = None
                self._part.replace(self._path)
                self._degraded.report(None)
        except OSError as error:
            self._failed(error)

    def write(self, now_ns: int) -> None:
        """Write a whole snapshot now."""
        self.start()
        while self.is_writing:
            self.write_some(now_ns)

    def cancel(self) -> None:
        """Leave the file as it was."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):  # a broken disk: the next one begins with an empty file
                self._part.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> None:
        self.cancel()
        self._degraded.report(error)


class Snapshot:
    """A snapshot that was found whole; its series are read when they are asked for.

    Raises:  FileNotFoundError, OSError, ConfigError: it cannot be read. DecodeError: it is no snapshot, of another
             version, cut short or changed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        for tag, payload in self._frames():
            if tag == b"E":
                self.moment = _decoded(payload, SavedMoment, path)
                return
        raise DecodeError(f"{path} is cut short")

    def series(self) -> Iterator[SavedSeries]:
        """Yield every series."""
        for tag, payload in self._frames():
            if tag == b"E":
                return
            yield from _decoded(payload, list[SavedSeries], self._path)

    def _frames(self) -> Iterator[tuple[bytes, bytes]]:
        fd = open_regular(self._path, os.O_RDONLY)
        with os.fdopen(fd, "rb") as file:
            if (magic := file.read(len(_MAGIC))) != _MAGIC:
                found = magic.partition(b"\n")[0].decode(errors="replace")
                raise DecodeError(f"{self._path} begins with {found!r}, not with {_MAGIC.decode().strip()!r}")
            while head := file.read(_FRAME.size):
                if len(head) < _FRAME.size:
                    break
                tag, length, checksum = _FRAME.unpack(head)
                if length > _MOST_BYTES:
                    raise DecodeError(f"{self._path} has a frame of {format_bytes(length)}")
                payload = file.read(length)
                if len(payload) < length:
                    break
                if _checksum(tag, payload) != checksum:
                    raise DecodeError(f"{self._path} was changed: a checksum is wrong")
                yield tag, payload


def read_store(path: Path) -> tuple[SeriesStore, SavedMoment]:
    """Return the series of a snapshot, whatever boot it is of, and when it was complete.

    Raises:  OSError, ConfigError, DecodeError: as `Snapshot`.
    """
    snapshot = Snapshot(path)
    store = SeriesStore(SeriesSettings(keep_ns=_DAY_NS, budget_bytes=_MOST_STORE_BYTES))
    store.restore(snapshot.moment.rounds, snapshot.series(), snapshot.moment.monotonic_ns)
    return store, snapshot.moment


def restore_series(path: Path, store: SeriesStore, now_ns: int) -> None:
    """Put the snapshot at `path` before what the store has; what cannot be used is named in the log and left out."""
    try:
        snapshot = Snapshot(path)
        if snapshot.moment.boot_id != this_boot():
            log.info("%s is of another boot: series start empty", path)
            return
        age_s = (now_ns - snapshot.moment.monotonic_ns) / 1e9
        count, problems = store.restore(snapshot.moment.rounds, snapshot.series(), now_ns)
    except FileNotFoundError:
        return
    except (ConfigError, DecodeError, OSError) as error:
        log.warning("series start empty: %s", error)
        return
    if problems:
        more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        log.warning("%s: left out: %s%s", path, "; ".join(problems[:_SHOWN]), more)
    log.info("%d series continue from %.0f s ago", count, age_s)


def _write_frame(file: BinaryIO, tag: bytes, value: object) -> None:
    payload = msgspec.msgpack.encode(value)
    _write(file, _FRAME.pack(tag, len(payload), _checksum(tag, payload)) + payload)


def _checksum(tag: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(tag))


def _write(file: BinaryIO, raw: bytes) -> None:
    left = memoryview(raw)
    while left:
        left = left[file.write(left) :]


def _decoded(payload: bytes, into: type[T], path: Path) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=into)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"{path} has another layout: {error}") from error
