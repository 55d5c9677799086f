"""Files of cgroups that this project's machines have not, over FUSE: numbers of Anolis kernels, and io.cost."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from koordebpf.kernel.cgroup.files import CgroupFile, Version, broken_rule, file_name
from tests.support.kernel_files import KernelFile, KernelFolder


class FakeNumbers:
    """Cgroups in which a file holds a number, and one beyond its range is refused.

    `refusals` are errors that a cgroup's file answers whatever is right; `wrote` is called after a write of a cgroup's.
    """

    def __init__(self, file: CgroupFile, version: Version, **numbers: int) -> None:
        self._file = file
        self._name = file_name(file, version) or ""
        self.numbers = numbers  # by cgroup
        self.refusals: dict[str, int] = {}
        self.wrote: dict[str, Callable[[str], None]] = {}

    def root(self) -> KernelFolder:
        """Return what is at the mount point."""
        return KernelFolder(None, self._remove, **{cgroup: self._folder(cgroup) for cgroup in self.numbers})

    def _folder(self, cgroup: str) -> KernelFolder:
        file = KernelFile(lambda: f"{self._of(cgroup)}\n", lambda text: self._set(cgroup, text))
        return KernelFolder(**{self._name: file})

    def _remove(self, cgroup: str) -> None:
        del self.numbers[cgroup]

    # kernfs answers so to who has a file open whose cgroup was removed.
    def _of(self, cgroup: str) -> int:
        if cgroup not in self.numbers:
            raise OSError(errno.ENODEV, "its cgroup is removed")
        return self.numbers[cgroup]

    def _set(self, cgroup: str, text: str) -> None:
        self._of(cgroup)
        if (number := self.refusals.get(cgroup)) is not None:
            raise OSError(number, "refused")
        if broken_rule(self._file, int(text)) is not None:
            raise OSError(errno.EINVAL, "out of range")
        self.numbers[cgroup] = int(text)
        self.wrote.get(cgroup, lambda _: None)(text)


class FakeThrottle:
    """A cgroup's file of limits by device, as blkio.throttle.read_bps_device.

    `next_write` is called once, after the next write; what another process does then comes before any look.
    """

    def __init__(self, file: CgroupFile, version: Version, *cgroups: str) -> None:
        self._name = file_name(file, version) or ""
        self.rows: dict[str, dict[str, int]] = {cgroup: {} for cgroup in cgroups}
        self.next_write: Callable[[], None] | None = None

    def root(self) -> KernelFolder:
        """Return what is at the mount point."""
        return KernelFolder(**{cgroup: self._folder(cgroup) for cgroup in self.rows})

    def _folder(self, cgroup: str) -> KernelFolder:
        return KernelFolder(
            **{self._name: KernelFile(lambda: self._show(cgroup), lambda text: self._set(cgroup, text))}
        )

    def _show(self, cgroup: str) -> str:
        return "".join(f"{device} {limit}\n" for device, limit in self.rows[cgroup].items())

    def _set(self, cgroup: str, text: str) -> None:
        device, limit = text.split()
        self.rows[cgroup].pop(device, None)
        if int(limit):
            self.rows[cgroup][device] = int(limit)
        then, self.next_write = self.next_write, None
        if then is not None:
            then()


_QOS = {"rpct": "95.00", "rlat": "25000", "wpct": "95.00", "wlat": "50000", "min": "50.00", "max": "150.00"}
_MODEL = dict.fromkeys(("rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"), "1000")
_SWITCHES = {
    "qos": {"enable": ("0", "1"), "ctrl": ("auto", "user")},
    "model": {"ctrl": ("auto", "user"), "model": ("linear",)},
}


class FakeIoCost:
    """io.cost.qos and io.cost.model of the root for some devices (block/blk-iocost.c: ioc_qos_write and the like).

    A device has a row from its first write on. With ctrl=auto its numbers are the kernel's own again. `devices` may be
    taken away; `refusals` are errors that a file answers whatever is right, by `qos` and `model`.
    """

    def __init__(self, version: Version, *devices: str) -> None:
        self._prefix = "blkio" if version == 1 else "io"
        self.devices = set(devices)
        self.refusals: dict[str, int] = {}
        self._rows: dict[str, dict[str, dict[str, str]]] = {"qos": {}, "model": {}}
        self._defaults: Mapping[str, dict[str, str]] = {"qos": _QOS, "model": _MODEL}

    def root(self) -> KernelFolder:
        """Return what is at the mount point."""
        files = {f"{self._prefix}.cost.{kind}": self._file(kind) for kind in self._rows}
        return KernelFolder(None, None, **files)

    def _file(self, kind: str) -> KernelFile:
        return KernelFile(lambda: self._show(kind), lambda text: self._set(kind, text))

    def _show(self, kind: str) -> str:
        rows = {device: row for device, row in self._rows[kind].items() if device in self.devices}
        return "".join(f"{device} {' '.join(map('='.join, row.items()))}\n" for device, row in rows.items())

    def _set(self, kind: str, text: str) -> None:
        device, *words = text.split()
        if (number := self.refusals.get(kind)) is not None:
            raise OSError(number, "refused")
        if device not in self.devices:
            raise OSError(errno.ENODEV, "no such device")
        switches, defaults = _SWITCHES[kind], self._defaults[kind]
        row = self._rows[kind].get(device) or {name: known[0] for name, known in switches.items()} | defaults
        row = dict(row)
        for name, value in (word.split("=") for word in words):
            if name in switches and value in switches[name]:
                row[name] = value
            elif name in defaults and value.isdigit() and not (name.endswith("pct") and int(value) > 100):
                row |= {name: f"{value}.00" if "." in defaults[name] else value, "ctrl": "user"}
            else:
                raise OSError(errno.EINVAL, "not taken")
        self._rows[kind][device] = row | defaults if row["ctrl"] == "auto" else row
