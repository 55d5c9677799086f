"""Undo journal: what cgroup files held before the first write, so that they can be restored after a crash.

Lines of JSON: a header with the boot's id, then an original for each file, or null for one that is done with. The last
line of a file counts. A line is in the file before the file it speaks of is written.

That write is synchronous, since without it a killed agent would leave limits without a record; it is refused when
there is no room, and then nothing is changed. No line is synced: it has to outlive the agent, not the machine, whose
next boot has other cgroups. On a tmpfs, as /run is, it waits for no disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.act.writer.places import Original
from koordebpf.errors import ActuationError, ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.degraded import Degraded, reason_of
from koordebpf.kernel.io.regular_file import open_part, open_regular, read_regular_file
from koordebpf.kernel.io.table import field, raw, shown
from koordebpf.policy.reconcile import FileKey, is_below_mount
from koordebpf.units import MIB

# A tmpfs: it lives as long as the cgroups and sysctls do whose values it holds.
JOURNAL_PATH = Path("/run/koordebpf/machine/writes.journal")
# The ladder's own, as agents wrote it before each line had its owners: one is still restored where it is found.
OLD_LADDER_JOURNAL = "ladder.journal"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA: Literal["koordebpf.journal/v1"] = "koordebpf.journal/v1"
_BEGIN = f'{{"schema":"{_SCHEMA}"'.encode()  # of a header, whole or torn
_MAX_FILES = 20_000  # Why: 500 pods of 3 containers with 8 files each are 16,000
_MOST_BYTES = 256 * MIB  # Why: no file of a run directory, a tmpfs, is that long
_SPARE_LINES = 1000  # superseded lines that are kept before the file is rewritten


class _Header(msgspec.Struct, frozen=True):
    schema: Literal["koordebpf.journal/v1"]
    boot_id: str


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    file: str
    original: Original | None
    # In hexadecimal, of a path and of an original's text that are no UTF-8; the others are for people then.
    path_bytes: str | None = None
    text_bytes: str | None = None


def read_journal(path: Path) -> tuple[dict[FileKey, Original], int]:
    """Return the originals on disk, oldest first, and how many lines could not be read.

    None of another boot, whose cgroups are gone.

    Raises:  ActuationError: the file cannot be read, or is no journal.
    """
    try:
        data = read_regular_file(path, _MOST_BYTES)
    except (ConfigError, OSError) as error:
        raise ActuationError(f"{path}: {reason_of(error)}") from error
    parsed = _parse(path, data, this_boot())
    return parsed.originals, len(parsed.lost)


def this_boot() -> str:
    """Return the id of this boot of the machine."""
    return _BOOT_ID.read_text().strip()


class Journal(Closing):
    """The journal of one writer, locked against a second one.

    `lost_lines` could not be read when it was opened, as of a later version that writes other files. They are kept.

    Args:
        path: of the file.
        boot_id: of this boot.
        may_lack: one that cannot be opened is no error: `record` opens it, and fails until it can.
    Raises:  ActuationError: it cannot be opened, and `may_lack` is false.
    """

    def __init__(self, path: Path, boot_id: str | None = None, *, may_lack: bool = False) -> None:
        self.path = path
        self._boot_id = boot_id or this_boot()
        self._fd = -1
        self._originals: dict[FileKey, Original] = {}
        self._lost: list[bytes] = []
        self._lines = 0
        self._is_lacking = False
        self._degraded = Degraded(path, "no cgroup file is written, since none could be restored")
        try:
            self._open()
        except ActuationError as error:
            if not may_lack:
                raise
            self._is_lacking = True
            self._degraded.report(_why(error, path))

    def _open(self) -> None:
        path = self.path
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._fd = _open_locked(path)
            data = read_regular_file(path, _MOST_BYTES)
            parsed = _parse(path, data, self._boot_id)
            self._originals, self._lost, self._lines = parsed.originals, parsed.lost, parsed.lines
            if parsed.good_bytes == 0:
                self._rewrite()
            elif parsed.good_bytes < len(data):
                os.ftruncate(self._fd, parsed.good_bytes)  # a torn line: what it speaks of was never written
        except BaseException as error:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._originals, self._lost, self._lines = {}, [], 0
            if isinstance(error, BlockingIOError):
                raise ActuationError(f"{path}: an agent is using it. Stop the agent first") from error
            if isinstance(error, ConfigError | OSError):
                raise ActuationError(f"{path}: {reason_of(error)}") from error
            raise

    @property
    def lost_lines(self) -> int:
        """How many lines could not be read."""
        return len(self._lost)

    @property
    def originals(self) -> Mapping[FileKey, Original]:
        """What each file held that has been written since, oldest first."""
        return self._originals

    def record(self, originals: Mapping[FileKey, Original]) -> None:
        """Record what files hold, before they are written.

        Raises:  OSError: it is not there. Nothing may be written then.
        Cost:    one write.
        """
        if not originals:
            return
        if self._is_lacking:
            self._reopen()
        if len(self._originals) + len(originals) > _MAX_FILES:
            raise OSError(errno.ENOSPC, f"{self.path}: {_MAX_FILES} files are on record, which is the most")
        self._append(originals)
        self._originals.update(originals)

    def _reopen(self) -> None:
        try:
            self._open()
        except ActuationError as error:
            why = _why(error, self.path)
            self._degraded.report(why)
            raise OSError(errno.EIO, why) from error
        self._is_lacking = False
        self._degraded.report(None)

    def forget(self, keys: Iterable[FileKey]) -> None:
        """Drop these files from the journal: restored, gone, or owned by another process.

        Raises:  OSError: it could not be written.
        """
        known = [key for key in keys if key in self._originals]
        if not known:
            return
        self._append(dict.fromkeys(known))
        for key in known:
            del self._originals[key]

    def compact(self) -> None:
        """Rewrite the file once it has many superseded lines.

        Raises:  OSError: it could not be written; the old one stays.
        """
        if self._lines > 2 * len(self._originals) + len(self._lost) + _SPARE_LINES:
            self._rewrite()

    def close(self) -> None:
        """Give the lock back; an empty journal is removed."""
        if self._fd < 0:
            return
        try:
            if not self._originals and not self._lost:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)
            self._fd = -1

    def _append(self, originals: Mapping[FileKey, Original | None]) -> None:
        size = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, _encode(originals))
        except OSError:
            os.ftruncate(self._fd, size)  # half a line would hide the next one
            raise
        self._lines += len(originals)

    # The new file is complete before it takes the old one's name.
    def _rewrite(self) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        fd = open_part(new, os.O_RDWR | os.O_APPEND)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            header = msgspec.json.encode(_Header(_SCHEMA, self._boot_id)) + b"\n"
            _write_all(fd, header + b"".join(line + b"\n" for line in self._lost) + _encode(self._originals))
            os.fsync(fd)
            new.replace(self.path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                new.unlink()  # half of it would take the room that others need
            raise
        os.close(self._fd)
        self._fd = fd
        self._lines = len(self._lost) + len(self._originals)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _encode(originals: Mapping[FileKey, Original | None]) -> bytes:
    return b"".join(
        msgspec.json.encode(_line(path, file.value, original)) + b"\n" for (path, file), original in originals.items()
    )


# A container with a writable cgroup file system names its cgroups as it likes.
def _line(path: str, file: str, original: Original | None) -> _Line:
    said, path_bytes = _said(path)
    if original is None:
        return _Line(said, file, None, path_bytes)
    text, text_bytes = _said(original.text)
    if text_bytes is not None:
        original = msgspec.structs.replace(original, text=text)
    return _Line(said, file, original, path_bytes, text_bytes)


# A text as JSON can say it, and its bytes where that is another one.
def _said(text: str) -> tuple[str, str | None]:
    if text.isascii():
        return text, None
    try:
        text.encode()
    except UnicodeEncodeError:
        data = raw(text)
        return shown(data), data.hex()
    return text, None


def _write_all(fd: int, data: bytes) -> None:
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _open_locked(path: Path) -> int:
    while True:
        fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have put a new file in its place, or removed it, before it gave the lock back.
            if path.exists() and path.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _why(error: ActuationError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ")


class _Parsed(msgspec.Struct):
    originals: dict[FileKey, Original] = msgspec.field(default_factory=dict)
    lost: list[bytes] = msgspec.field(default_factory=list)
    lines: int = 0
    good_bytes: int = 0  # of whole lines; 0: the file has to be recreated


def _parse(path: Path, data: bytes, boot_id: str) -> _Parsed:
    parsed = _Parsed()
    good_bytes = data.rfind(b"\n") + 1
    if good_bytes == 0 and _BEGIN.startswith(data[: len(_BEGIN)]):
        return parsed
    head, *lines = data[:good_bytes].split(b"\n")[:-1] or [data]
    try:
        header = msgspec.json.decode(head, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ActuationError(f"{path}: not a journal of koordebpf: {error}. Remove it or name another one") from error
    if header.boot_id != boot_id:
        return parsed
    parsed.good_bytes, parsed.lines = good_bytes, len(lines)
    for text in lines:
        try:
            line = msgspec.json.decode(text, type=_Line)
            path_text = line.path if line.path_bytes is None else field(bytes.fromhex(line.path_bytes))
            original = line.original
            if original is not None and line.text_bytes is not None:
                original = msgspec.structs.replace(original, text=field(bytes.fromhex(line.text_bytes)))
            key = (path_text, _file(line.file))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
            parsed.lost.append(text)
            continue
        if not is_below_mount(path_text):
            parsed.lost.append(text)
        elif original is None:
            parsed.originals.pop(key, None)
        else:
            parsed.originals[key] = original
    return parsed


def _file(name: str) -> CgroupFile | Sysctl:
    return Sysctl(name) if name in Sysctl._value2member_map_ else CgroupFile(name)
