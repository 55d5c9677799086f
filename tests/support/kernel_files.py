"""A file system whose files answer as a kernel's do: each write(2) is an order that may be refused, mkdir makes files.

Of plain files no test could tell a refused write from one that was done. Served by a thread over /dev/fuse
(include/uapi/linux/fuse.h, protocol 7.19 and later); needs the right to mount. Refuses: links, owners, times.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _MKDIR, _RMDIR, _OPEN, _READ, _WRITE = 1, 2, 3, 4, 9, 11, 14, 15, 16
_RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS = 18, 25, 26, 27, 28, 29, 34
_INTERRUPT, _DESTROY, _BATCH_FORGET = 36, 38, 42
_NO_ANSWER = {_FORGET, _BATCH_FORGET, _INTERRUPT, _DESTROY}
_HEADER, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_ATTR, _DIRECT_IO, _DETACH = struct.Struct("<6Q10I"), 1, 2
_BUFFER_BYTES = 1 << 18


class KernelFile:
    """One file: what it reads as, and what is done with the text of one write(2); OSError is the kernel's answer."""

    def __init__(self, read: Callable[[], str], write: Callable[[str], None] | None = None) -> None:
        self.read = read
        self.write = write


class KernelFolder:
    """A directory; `make` gets the name of one that is to be made and returns it, `remove` may refuse."""

    def __init__(
        self,
        make: Callable[[str], KernelFolder] | None = None,
        remove: Callable[[str], None] | None = None,
        **children: KernelFile | KernelFolder,
    ) -> None:
        self.children: dict[str, KernelFile | KernelFolder] = dict(children)
        self.make = make
        self.remove = remove


class KernelFiles:
    """The mount, from entering the context to leaving it.

    Args:
        mount_point: an empty directory.
        root: what is there.
    Raises:  OSError: it cannot be mounted.
    """

    def __init__(self, mount_point: Path, root: KernelFolder) -> None:
        self._mount_point = mount_point
        self._numbers: dict[int, KernelFile | KernelFolder] = {1: root}
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self._libc.mount(b"koordebpf-test", os.fsencode(mount_point), b"fuse", 0, options) != 0:
            os.close(self._fd)
            raise OSError(ctypes.get_errno(), "mount fuse")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._libc.umount2(os.fsencode(self._mount_point), _DETACH)
        self._thread.join(10)
        os.close(self._fd)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, _BUFFER_BYTES)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return  # ENODEV: it is unmounted
            _, code, unique, number, *_ = _HEADER.unpack_from(request)
            body = request[_HEADER.size :]
            try:
                answer, failed = self._answer(code, number, body), 0
            except OSError as error:
                answer, failed = b"", error.errno or errno.EIO
            except Exception:  # a fault of the fake must not hang who waits for it
                answer, failed = b"", errno.EIO
            if code in _NO_ANSWER:
                continue
            try:
                os.write(self._fd, _OUT.pack(_OUT.size + len(answer), -failed, unique) + answer)
            except OSError:
                continue  # who asked was killed

    def _answer(self, code: int, number: int, body: bytes) -> bytes:
        match code:
            case c if c == _INIT:
                minor = struct.unpack_from("<II", body)[1]
                return struct.pack("<4I2H2I2H8I", 7, min(minor, 31), 0, 0, 8, 6, 1 << 16, 1, 16, 0, *[0] * 8)
            case c if c in _NO_ANSWER | {_RELEASE, _RELEASEDIR, _FLUSH, _ACCESS}:
                return b""
            case c if c in (_GETATTR, _SETATTR):
                return struct.pack("<QII", 0, 0, 0) + self._attributes(number)
            case c if c in (_OPEN, _OPENDIR):
                self._found(number)
                return struct.pack("<QII", 0, _DIRECT_IO if c == _OPEN else 0, 0)
            case c if c == _LOOKUP:
                return self._entry(self._folder(number).children.get(_name(body)))
            case c if c == _READDIR:
                return self._listing(number, *struct.unpack_from("<QQI", body)[1:])
            case c if c == _READ:
                offset, size = struct.unpack_from("<QQI", body)[1:]
                return self._file(number).read().encode()[offset : offset + size]
            case c if c == _WRITE:
                return self._written(number, body)
            case c if c == _MKDIR:
                return self._made(number, _name(body[8:]))
            case c if c == _RMDIR:
                return self._removed(number, _name(body))
        raise OSError(errno.ENOSYS, "no such request")

    def _written(self, number: int, body: bytes) -> bytes:
        size = struct.unpack_from("<QQI", body)[2]
        write = self._file(number).write
        if write is None:
            raise OSError(errno.EACCES, "not to be written")
        write(body[40 : 40 + size].decode())
        return struct.pack("<II", size, 0)

    def _made(self, number: int, name: str) -> bytes:
        folder = self._folder(number)
        if folder.make is None:
            raise OSError(errno.EPERM, "mkdir")
        if name in folder.children:
            raise OSError(errno.EEXIST, "mkdir")
        folder.children[name] = folder.make(name)
        return self._entry(folder.children[name])

    def _removed(self, number: int, name: str) -> bytes:
        folder = self._folder(number)
        if folder.remove is None or not isinstance(folder.children.get(name), KernelFolder):
            raise OSError(errno.EPERM, "rmdir")
        folder.remove(name)
        del folder.children[name]
        return b""

    def _found(self, number: int) -> KernelFile | KernelFolder:
        if number not in self._numbers:
            raise OSError(errno.ENOENT, "no such inode")
        return self._numbers[number]

    def _folder(self, number: int) -> KernelFolder:
        found = self._found(number)
        if not isinstance(found, KernelFolder):
            raise OSError(errno.ENOTDIR, "no directory")
        return found

    def _file(self, number: int) -> KernelFile:
        found = self._found(number)
        if not isinstance(found, KernelFile):
            raise OSError(errno.EISDIR, "a directory")
        return found

    def _number(self, node: KernelFile | KernelFolder) -> int:
        for number, known in self._numbers.items():
            if known is node:
                return number
        number = max(self._numbers) + 1
        self._numbers[number] = node
        return number

    def _entry(self, node: KernelFile | KernelFolder | None) -> bytes:
        if node is None:
            raise OSError(errno.ENOENT, "no such file")
        number = self._number(node)
        return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + self._attributes(number)

    def _attributes(self, number: int) -> bytes:
        node = self._found(number)
        mode = stat.S_IFDIR | 0o755 if isinstance(node, KernelFolder) else stat.S_IFREG | 0o644
        return _ATTR.pack(number, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _listing(self, number: int, offset: int, size: int) -> bytes:
        listed = b""
        for at, (name, node) in enumerate(list(self._folder(number).children.items())[offset:], offset + 1):
            raw = name.encode()
            kind = stat.S_IFDIR >> 12 if isinstance(node, KernelFolder) else stat.S_IFREG >> 12
            entry = struct.pack("<QQII", self._number(node), at, len(raw), kind) + raw
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed


def _name(body: bytes) -> str:
    return body.split(b"\0", 1)[0].decode()


class SchedFeatures:
    """The scheduler's features of a kernel, one word a write, unknown ones EINVAL (kernel/sched/debug.c)."""

    def __init__(self, **features: bool) -> None:
        self.features = features
        self.written: list[str] = []
        self.refusal: int | None = None  # errno of each write: EPERM on a locked-down kernel

    def root(self) -> KernelFolder:
        """Return what debugfs is."""
        return KernelFolder(sched=KernelFolder(features=KernelFile(self._read, self._write)))

    def _read(self) -> str:
        return " ".join(name if is_on else f"NO_{name}" for name, is_on in self.features.items()) + " \n"

    def _write(self, text: str) -> None:
        if self.refusal is not None:
            raise OSError(self.refusal, "refused")
        word = text[:63].strip()
        name = word.removeprefix("NO_")
        if name not in self.features:
            raise OSError(errno.EINVAL, "no such feature")
        self.features[name] = word == name
        self.written.append(word)
