"""Memory of the machine that is in use and that no cgroup is charged: of zram, of ZFS' cache, and of balloons.

Nothing here ends a reading: what is odd, absent or gone is 0, and odd rows are counted by the table's reader.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.table import first_of_each, is_number, keyed, nested, report_odd, text_or_none
from koordebpf.units import PAGE_BYTES

PROC, SYSFS = Path("/proc"), Path("/sys")
_FILE_BYTES = 1 << 15  # vmstat and arcstats have 5 to 10 KiB
_LIST_EVERY = 10  # Why: a listing costs 60 µs; a module that is loaded now is seen within some seconds
_ARC = (b"size", b"c_min")
_BALLOON = (b"balloon_inflate", b"balloon_deflate")
_DEFLATE_ON_OOM = 2  # VIRTIO_BALLOON_F_DEFLATE_ON_OOM, include/uapi/linux/virtio_balloon.h


class Uncharged(msgspec.Struct, frozen=True, gc=False):
    """What is charged to no cgroup, in bytes.

    All zram devices together store `zram_stored_bytes` and hold `zram_held_bytes` in memory for it. `arc_bytes`: what
    ZFS' cache has above its minimum. `balloon_bytes`: what balloons hold of MemTotal.
    """

    zram_stored_bytes: int
    zram_held_bytes: int
    arc_bytes: int = 0
    balloon_bytes: int = 0


class UnchargedFiles(Closing):
    """Reads them through kept fds. A device or module that comes later is seen at every tenth reading."""

    def __init__(self, proc: Path = PROC, sysfs: Path = SYSFS) -> None:
        self._sysfs = sysfs
        self._arcstats, self._vmstat = proc / "spl/kstat/zfs/arcstats", proc / "vmstat"
        self._fds: dict[Path, int] = {}
        self._devices: list[Path] = []
        self._has_arc = False
        self._has_balloon = True  # as far as is known
        self._readings = 0

    def read(self, balloon_bytes: int | None = 0) -> Uncharged:
        """Return what it is now.

        Args:
            balloon_bytes: Balloon of /proc/meminfo; None: this kernel has no such row, and its vmstat is read.
        Cost:    10 µs a zram device and 30 µs for ZFS; 30 µs more before Linux 6.17 where a balloon may be.
        """
        if self._readings % _LIST_EVERY == 0:
            self._list()
        self._readings += 1
        stored, held = self._zram()
        return Uncharged(stored, held, self._arc() if self._has_arc else 0, self._balloon(balloon_bytes))

    # Documentation/admin-guide/blockdev/zram.rst, mm_stat: orig_data_size, compr_data_size, mem_used_total.
    def _zram(self) -> tuple[int, int]:
        stored = held = 0
        for path in self._devices:
            words = [word for word in (self._read(path) or b"").split(b" ") if word]
            if len(words) >= 3 and all(is_number(word) for word in words[:3]):
                stored += int(words[0])
                held += int(words[2])
            elif words:
                report_odd(path, b" ".join(words), "it must begin with three numbers of bytes")
        return stored, held

    # Rows of name, type and data: OpenZFS, module/os/linux/spl/spl-kstat.c. What is above zfs_arc_min is freed when
    # memory is short: man zfs.4.
    def _arc(self) -> int:
        data = self._read(self._arcstats) or b""
        ours = b"\n".join([row for row in data.split(b"\n") if row.lstrip(b" ").startswith(_ARC)])
        found = (
            (key, int(words[1]) if len(words) == 2 and is_number(words[1]) else None, b" ".join((key, *words)))
            for key, words in nested(ours)
            if key in _ARC
        )
        try:
            values = first_of_each(self._arcstats, found, "must have a name, a type and a number")
        except KernelFileError:
            return 0
        return max(values.get(b"size", 0) - values.get(b"c_min", 0), 0)

    # Most drivers take their pages out of MemTotal (adjust_managed_page_count): hv_balloon since Linux 5.11, pseries'
    # cmm, Xen's, and virtio_balloon unless the host lets it deflate when memory runs out. In MemTotal, and so in use,
    # are the pages of that one and of vmw_balloon: drivers/virtio/virtio_balloon.c fill_balloon, drivers/misc.
    def _balloon(self, reported_bytes: int | None) -> int:
        held = self._inflated_bytes() if reported_bytes is None else reported_bytes
        return held if held and self._is_in_total() else 0

    def close(self) -> None:
        """Close every fd."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _inflated_bytes(self) -> int:
        if not self._has_balloon or (data := self._read(self._vmstat)) is None:
            return 0
        found = keyed(self._vmstat, data, _BALLOON)
        self._has_balloon = bool(found.values or found.odd)  # not without CONFIG_MEMORY_BALLOON
        if len(found.values) < len(_BALLOON):
            return 0
        inflated, deflated = (found.values[name] for name in _BALLOON)
        return max(inflated - deflated, 0) * PAGE_BYTES

    def _is_in_total(self) -> bool:
        if (self._sysfs / "module/vmw_balloon").is_dir():
            return True
        try:
            for each in (self._sysfs / "bus/virtio/drivers/virtio_balloon").glob("virtio*"):
                # A digit for each bit, the lowest one first: drivers/virtio/virtio.c features_show.
                if (text_or_none(each / "features") or "")[_DEFLATE_ON_OOM:].startswith("1"):
                    return True
        except OSError:
            return False
        return False

    def _list(self) -> None:
        try:
            self._devices = sorted(each / "mm_stat" for each in (self._sysfs / "block").glob("zram*"))
        except OSError:
            self._devices = []
        self._has_arc = self._arcstats.exists()
        for path in self._fds.keys() - {*self._devices, self._arcstats, self._vmstat}:
            os.close(self._fds.pop(path))

    # None: there is no such file, it cannot be read, or it is longer than any is.
    def _read(self, path: Path) -> bytes | None:
        fd = self._fds.get(path)
        try:
            if fd is None:
                fd = self._fds[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(fd, _FILE_BYTES, 0)
        except OSError:
            if fd is not None:
                os.close(self._fds.pop(path))  # the device or the module is gone
            return None
        return data.strip() if len(data) < _FILE_BYTES else None


def zram_use(sysfs: Path = SYSFS) -> tuple[int, int]:
    """Return what all zram devices together store and what they hold in memory for it, in bytes.

    Cost:    60 µs, and 30 µs a device.
    """
    with UnchargedFiles(sysfs=sysfs) as files:
        found = files.read()
    return found.zram_stored_bytes, found.zram_held_bytes
