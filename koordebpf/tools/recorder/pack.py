"""A recording as one stream, and back: how one comes from a node to another machine."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from koordebpf.errors import ConfigError, KubeError
from koordebpf.kernel.io.regular_file import open_to_read
from koordebpf.store.recorder.shard_file import INDEX_SUFFIX, SUFFIX
from koordebpf.units import format_bytes

_MOST_BYTES: Final = 4 << 30  # unpacked. Why: what a node may send must not fill the disk of who asks
_MOST_FILES: Final = 10_000
MOST_SENT_BYTES: Final = _MOST_BYTES + 2 * _MOST_FILES * tarfile.BLOCKSIZE + tarfile.RECORDSIZE  # with tar's own
_CHUNK_BYTES: Final = 256 << 10


class _Sent(io.RawIOBase):
    # What tarfile writes, to be taken out again in between.
    def __init__(self) -> None:
        self._waiting = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self._waiting += memoryview(data)  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]

    def drain(self) -> bytes:
        taken, self._waiting = bytes(self._waiting), bytearray()
        return taken


def packed(folder: Path) -> Iterator[bytes]:
    """Yield a tar archive of the recordings below a folder, also while an agent writes to them.

    A shard is as long as it was when its turn came; one that is removed meanwhile is left out.

    Raises:  ConfigError: there is no recording.
    """
    found = (path for suffix in (SUFFIX, INDEX_SUFFIX) for path in folder.rglob(f"*{suffix}"))
    paths = sorted(path for path in found if not path.is_symlink())
    if not any(path.suffix == SUFFIX for path in paths):
        raise ConfigError(str(folder), None, "has no recording of an agent")
    sent = _Sent()
    with tarfile.open(fileobj=sent, mode="w|", bufsize=_CHUNK_BYTES) as archive:
        for path in paths:
            with contextlib.suppress(FileNotFoundError, ConfigError):  # removed meanwhile, or no regular file
                _add(archive, path, path.relative_to(folder).as_posix())
            yield sent.drain()
    yield sent.drain()


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    with open_to_read(path) as file:
        found = os.fstat(file.fileno())
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime, entry.mode = found.st_size, int(found.st_mtime), 0o600
        archive.addfile(entry, file)


class Incoming:
    """What another machine sends, on its way into a file: counted before it is written.

    Args:
        file: takes it.
        most_bytes: of all.
        name: of what is sent, for the error.
    """

    def __init__(self, file: IO[bytes], most_bytes: int, name: str) -> None:
        self._file, self._left, self._most, self._name = file, most_bytes, most_bytes, name

    def write(self, chunk: bytes) -> None:
        """Write a part.

        Raises:  KubeError: with it there are more than `most_bytes`; nothing of it is written. OSError: of the file.
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise KubeError(f"{self._name}: it sent more than {format_bytes(self._most)}", retry=False)
        self._file.write(chunk)


def unpack(stream: IO[bytes], folder: Path) -> int:
    """Write the recordings of an archive into a new folder; return the bytes that they have.

    Of what is in it only plain files of recordings are taken, below the folder: the node is not trusted.

    Raises:  ConfigError: the folder is there already, or the archive is none, cut, or too large.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(str(folder), None, f"must be a new folder: {error.strerror}") from error
    total = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for number, entry in enumerate(archive, start=1):
                parts = Path(entry.name).parts
                if not entry.isreg() or Path(entry.name).suffix not in (SUFFIX, INDEX_SUFFIX) or ".." in parts:
                    continue
                total += entry.size
                if total > _MOST_BYTES or number > _MOST_FILES:
                    raise ConfigError(str(folder), f"{number} files", f"more than {_MOST_BYTES >> 30} GiB were sent")
                target = folder.joinpath(*(part for part in parts if part != "/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                read = archive.extractfile(entry)
                assert read is not None  # a plain file
                with target.open("xb") as file:
                    shutil.copyfileobj(read, file)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ConfigError(str(folder), None, f"what was sent is no whole recording: {error}") from error
    return total
