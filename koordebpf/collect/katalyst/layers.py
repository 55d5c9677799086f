"""Which overlay is the root filesystem of a container, by the node's own mounts, not by what it says itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from koordebpf.kernel.host.overlays import Overlay, overlays

_MAX_PROCESSES = 8  # Why: the first is the container's own; others may have a root of their own making
_PROCS_BYTES = 1 << 12
_OWN_BYTES = 1 << 16  # of a process's own table: its root is the first, and a container may mount 100,000 times more


class LayerTable:
    """The writable layers of the overlays that the node has.

    Args:
        mounts: of the node. What a container mounts is in its own mount namespace, and not among them.
        proc: of this process's pid namespace.
    """

    def __init__(self, mounts: Iterable[Overlay], proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._by_device = {each.device: each.upper for each in mounts}
        # containerd: /run/containerd/io.containerd.runtime.v2.task/k8s.io/<id>/rootfs
        self._by_id = {each.mount_point.parent.name: each.upper for each in mounts if each.mount_point.name == "rootfs"}

    def upper_of(self, container_id: str, cgroups: Iterable[str]) -> Path | None:
        """Return a container's writable layer; None: it is not found.

        By the container's id in the mount point, as containerd names it; else by the device that a process of the
        container has as its root, as of CRI-O and Docker, if the node has that mount too.
        """
        upper = self._by_id.get(container_id)
        if upper is not None:
            return upper
        for pid in _pids(cgroups):
            for device in self._root_devices(pid):
                if (upper := self._by_device.get(device)) is not None:
                    return upper
        return None

    def _root_devices(self, pid: int) -> list[str]:
        try:
            mounts = overlays(self._proc / str(pid) / "mountinfo", _OWN_BYTES)
        except OSError:
            return []
        return [each.device for each in mounts if each.mount_point == Path("/")]


# As this pid namespace has them; 0 is a process of another one.
def _pids(cgroups: Iterable[str]) -> list[int]:
    found: list[int] = []
    for path in cgroups:
        try:
            fd = os.open(f"{path}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found += [int(each) for each in os.read(fd, _PROCS_BYTES).split(b"\n")[:-1] if each != b"0"]
        except OSError:
            continue
        finally:
            os.close(fd)
        if len(found) >= _MAX_PROCESSES:
            break
    return found[:_MAX_PROCESSES]
