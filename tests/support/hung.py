"""Pipes without a reader and filesystems that do not answer, for the tests of what must not wait for them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_PIPE_BYTES = 4096
_FREE_BYTES = 1000  # a few lines fit
_FUSE = Path("/dev/fuse")


class CannotHang(Exception):
    """This machine has no such thing; the text says what."""


class FullPipe:
    """A pipe of a page that is nearly full and is not read until `drain`."""

    def __init__(self, free_bytes: int = _FREE_BYTES) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.write(self.writing, b"x" * (_PIPE_BYTES - free_bytes - 1) + b"\n")

    def drain(self) -> bytes:
        """Read all that comes until no process has the other end open; ours is closed."""
        self.close_writing()
        found = bytearray()
        while part := os.read(self.reading, 1 << 16):
            found += part
        return bytes(found)

    def close_writing(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        self.close_writing()
        os.close(self.reading)


@contextlib.contextmanager
def hung_filesystem(folder: Path) -> Iterator[Path]:
    """Mount over `folder` a filesystem that answers nothing, as a hard NFS mount whose server is gone.

    A process that opens a file in it waits until it is killed. It is FUSE, whose requests are not read.

    Raises:  CannotHang: there is no FUSE, or it may not be mounted.
    """
    if not _FUSE.exists():
        raise CannotHang("the kernel has no FUSE")
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open(_FUSE, os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={fuse},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}".encode()
        if libc.mount(b"hung", bytes(folder), b"fuse", 0, options):
            raise CannotHang(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    finally:
        os.close(fuse)  # a waiting process gets an error now
