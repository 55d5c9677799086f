"""Which files of slices were written since, by whomever: systemd puts back there what a slice's properties say.

It does so when a unit in the slice starts or ends, and when a property of the slice is set, as the kubelet does each
minute. inotify says so at once: vfs_write (fs/read_write.c) calls fsnotify_modify for the files of cgroups, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from koordebpf.act.writer.places import Held
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.inotify import IN_IGNORED, IN_MODIFY, IN_Q_OVERFLOW, Inotify
from koordebpf.policy.reconcile import FileKey

log = logging.getLogger("koordebpf")

# Why 256: those of 100 pods and the levels above them. A watch takes 1 KB of the kernel's memory.
_WATCHES = 256
_SUFFIX = ".slice"


def is_slice(key: FileKey) -> bool:
    """Tell whether a file is of a slice of systemd."""
    return key[0].endswith(_SUFFIX)


class Overwritten(Closing):
    """Watches the files of slices that the writer holds. What cannot be watched is logged once.

    Raises:  OSError: EMFILE: fs.inotify.max_user_instances is used up.
    """

    def __init__(self) -> None:
        self._inotify = Inotify()
        self._watches: dict[tuple[Path, int], int] = {}  # file and inode: a cgroup may be made again
        self._files: dict[int, tuple[Path, int]] = {}  # several keys may be columns of one file
        self._is_refused = False
        self.is_due = False

    def fileno(self) -> int:
        """Return the fd, readable when a file was written."""
        return self._inotify.fileno()

    def see(self) -> None:
        """Take note that the fd is readable."""
        self.is_due = True

    def poll(self, held: Mapping[FileKey, Held]) -> list[FileKey]:
        """Watch what is held and was written here; return what is to be looked at again.

        That is what was written since the last call, here too, and what is watched from now on.
        """
        self.is_due = False
        wanted = {key: (each.path, each.inode) for key, each in held.items() if each.is_ours and is_slice(key)}
        files = set(wanted.values())
        for file in self._watches.keys() - files:
            number = self._watches.pop(file)
            del self._files[number]
            self._inotify.remove(number)
        found = self._read()
        for file in files - self._watches.keys():
            if len(self._watches) < _WATCHES and self._add(file):
                found.add(file)
        return [key for key, file in wanted.items() if file in found]

    def _read(self) -> set[tuple[Path, int]]:
        found = set()
        for event in self._inotify.read():
            if event.mask & IN_Q_OVERFLOW:
                return set(self._watches)
            file = self._files.get(event.wd)
            if file is not None and event.mask & IN_IGNORED:  # its cgroup is gone
                del self._watches[file], self._files[event.wd]
            elif file is not None:
                found.add(file)
        return found

    def _add(self, file: tuple[Path, int]) -> bool:
        path, _ = file
        try:
            number = self._inotify.add(str(path), IN_MODIFY)
        except FileNotFoundError:
            return False  # the next look says so
        except OSError as error:
            if not self._is_refused:
                log.warning("what systemd resets is seen late: %s cannot be watched: %s", path, error.strerror)
            self._is_refused = True
            return False
        self._watches[file], self._files[number] = number, file
        return True

    def close(self) -> None:
        """Remove every watch."""
        self._inotify.close()
