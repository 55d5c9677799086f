"""One shard on disk while it is written: the file of records, and its index beside it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from koordebpf.kernel.io.closing import Closing
from koordebpf.store.output_file import OutputFile
from koordebpf.store.recorder.rounds import EncodedRound, ShardRounds
from koordebpf.store.recorder.shard import INDEX_BYTES, index_entry
from koordebpf.store.recorder.values import RecordedEvent, RecordingHeader

SUFFIX = ".rounds"
INDEX_SUFFIX = ".index"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class ShardFile(Closing):
    """A new shard, or with `output` a recording of its own, without an index, that is written there.

    What is appended is written whole or not at all; a crash leaves at most a torn last record.

    Raises:  OSError: it cannot be made.
    """

    def __init__(
        self,
        path: Path,
        header: RecordingHeader,
        *,
        with_samples: bool,
        wall_ns: int,
        output: OutputFile | None = None,
    ) -> None:
        self.path = path
        self.made_ns = wall_ns
        self.bytes = 0  # of both files
        self._rounds = ShardRounds(header, with_samples=with_samples)
        self._size = 0
        self._index = -1
        self._output = output
        self._fd = os.open(path, _FLAGS, 0o600) if output is None else output.fd
        try:
            if output is None:
                self._index = os.open(index_of(path), _FLAGS, 0o600)
            self.write([self._rounds.start(wall_ns)])
        except OSError:
            self.close()
            if output is None:
                self._unlink()
            raise

    def encode(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> list[bytes]:
        """Return the records of a round for this shard; they have to be written, or nothing more is."""
        return self._rounds.add(made, samples_raw, events)

    def encode_events(self, events: Sequence[RecordedEvent], wall_ns: int) -> list[bytes]:
        """Return the record of events alone."""
        return [self._rounds.events(events, wall_ns)]

    def write(self, records: Sequence[bytes]) -> None:
        """Append records, the data before their entries in the index.

        Raises:  OSError: none of them was written.
        """
        data = b"".join(records)
        try:
            if self._output is not None:
                self._output.write(data)
            elif os.write(self._fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)  # a full disk took a part
            raise
        entries, offset = [], self._size
        for record in records:
            entries.append(index_entry(record, offset))
            offset += len(record)
        self._size = offset
        self.bytes += len(data)
        if self._index < 0:
            return
        # Readers find the records without it.
        with contextlib.suppress(OSError):
            self.bytes += os.write(self._index, b"".join(entries))

    def sync(self) -> None:
        """Have what was written on the disk.

        Raises:  OSError: it is not there.
        """
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close both files. Twice is harmless."""
        if self._output is not None:
            self._output.close()
            self._fd = -1
        for name in ("_fd", "_index"):
            if (fd := getattr(self, name)) >= 0:
                setattr(self, name, -1)
                os.close(fd)

    def _unlink(self) -> None:
        for path in (self.path, index_of(self.path)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def index_of(path: Path) -> Path:
    """Return the place of a shard's index."""
    return path.with_suffix(INDEX_SUFFIX)


def size_on_disk(records: Sequence[bytes]) -> int:
    """Return what records take of the disk, with their entries in the index. Bytes."""
    return sum(map(len, records)) + INDEX_BYTES * len(records)
