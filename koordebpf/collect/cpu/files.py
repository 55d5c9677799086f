"""Kept CPU files of cgroups, and kubelet's cpu_manager_state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

from koordebpf.errors import CgroupGone, ConfigError, SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.proc.cpu_usage import CgroupCpu
from koordebpf.kube.sources.cpu_manager import CpuManagerFile, CpuManagerState
from koordebpf.state.cpu.measured import CpuManager

log = logging.getLogger(__name__)

T = TypeVar("T")


class CgroupCpuFiles:
    """Opens the files of a cgroup when they are first read. `path in files`: they are open."""

    def __init__(self, mounts: Mapping[str, ControllerMount]) -> None:
        self.mounts = dict(mounts)  # by controller
        self._files: dict[str, CgroupCpu] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def read(self, path: str, what: Callable[[CgroupCpu], T]) -> T | None:
        """Return what a cgroup's files say; None: it is gone, or has no such file."""
        files = self._files.get(path)
        if files is None:
            files = self._files[path] = CgroupCpu(self.mounts, path)
        try:
            return what(files)
        except SupportError:
            return None
        except CgroupGone:
            self._files.pop(path).close()
            return None

    def keep_only(self, known: Collection[str]) -> None:
        """Close the files of all other cgroups."""
        for path in self._files.keys() - set(known):
            self._files.pop(path).close()

    def close(self) -> None:
        """Close every fd."""
        for files in self._files.values():
            files.close()
        self._files.clear()


class CpuManagerReader:
    """Reads which CPUs kubelet has pinned: from its file, or from kubelet itself where that cannot be reached."""

    def __init__(self, file: Path, kubelet: Callable[[], CpuManagerState | None] | None) -> None:
        self._file = CpuManagerFile(file)
        self._kubelet = kubelet
        self._problem: str | None = None

    def read(self) -> CpuManager | None:
        """Return its state; None: there is none, or it is malformed, which is logged once."""
        try:
            state = self._file.read()
        except ConfigError as error:
            if str(error) != self._problem:
                log.warning("%s", error)
                self._problem = str(error)
            return None
        self._problem = None
        if state is None and self._kubelet is not None:
            state = self._kubelet()
        return None if state is None else CpuManager(state.policy, state.pinned, state.shared)
