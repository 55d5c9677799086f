"""A file of the kernel that is opened once and read again and again: 2 µs a read, where opening it costs 15."""

from __future__ import annotations

import os

from koordebpf.kernel.io.closing import Closing


class KeptFile(Closing):
    """Closes the fd that the class built on it has opened."""

    _fd: int

    def close(self) -> None:
        """Close the fd; twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class KeptFiles(Closing):
    """The same for several files of one thing."""

    _fds: dict[str, int]  # by name

    def close(self) -> None:
        """Close every fd."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
