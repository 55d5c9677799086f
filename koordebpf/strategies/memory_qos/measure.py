"""Finds what memory QoS writes: directories of pods, which of its files this kernel has, and what protects those above.

Directories are found as for runtime hooks.
"""

from __future__ import annotations

from koordebpf.collect.pod_directories import HookCollector
from koordebpf.errors import CgroupGone, KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, Value, file_name, parse_value
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.state.pods.directories import HooksMeasured
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured, Protection

_ALL = "Guaranteed"  # the directory of all pods
_FILES = tuple(each for each in CgroupFile if each.controller == "memory")


class MemoryQosCollector(Closing):
    """Measures for memory QoS.

    Args:
        directories: looks when it is due.
        memory: the mount of the memory controller.
        node_path: of the node below the mount, "" for the machine. Its own protection is from what is outside it.
    """

    def __init__(self, directories: HookCollector, memory: ControllerMount, node_path: str = "") -> None:
        self._directories = directories
        self._memory = memory
        self._node_path = node_path
        self._files: tuple[str, ...] = ()  # of this kernel, once a pod's directory is there
        self._last: MemoryQosMeasured | None = None

    def measure(self, now_ns: int) -> MemoryQosMeasured | None:
        """Return what is there now; None: nothing has changed, and the last look is less than 10 s ago.

        Raises:  KernelFileError: a file above the pods is not of its form.
        Cost:    2 µs where nothing has changed; else as HookCollector, and 30 µs a directory above pods.
        """
        found = self._directories.measure(now_ns)
        if found is None:
            return None
        self._files = self._files or self._support(found)
        measured = MemoryQosMeasured(
            pods=found.pods,
            directories=found.directories,
            above=self._above(found.directories.get(_ALL)),
            files=self._files,
            qos=found.qos,
        )
        # The same value again lets everything that was worked out from it be found by identity.
        self._last = self._last if measured == self._last else measured
        return self._last

    def close(self) -> None:
        """Close what finding directories keeps open."""
        self._directories.close()

    def _support(self, found: HooksMeasured) -> tuple[str, ...]:
        for each in found.pods:
            directory = self._memory.mount_point / each.path
            if directory.is_dir():
                names = ((file, file_name(file, self._memory.version)) for file in _FILES)
                return tuple(file.value for file, name in names if name and (directory / name).exists())
        return ()

    # The root of the hierarchy has no such files, and limits nothing.
    def _above(self, path: str | None) -> tuple[Protection, ...]:
        above: list[Protection] = []
        while path and (path := path.rpartition("/")[0]) not in ("", self._node_path):
            try:
                least, low = self._bytes(path, CgroupFile.MEMORY_MIN), self._bytes(path, CgroupFile.MEMORY_LOW)
            except (OSError, CgroupGone):
                continue
            above.append(Protection(path, least, low))
        return tuple(reversed(above))

    def _bytes(self, path: str, file: CgroupFile) -> int | None:
        name = file_name(file, self._memory.version)
        if name is None:
            raise FileNotFoundError(file.value)
        at = self._memory.mount_point / path / name
        value: Value = parse_value(file, self._memory.version, read_kernel_file(at).text, str(at))
        if value is not None and not isinstance(value, int):
            raise KernelFileError(str(at), str(value), "must be a number or max")
        return value
