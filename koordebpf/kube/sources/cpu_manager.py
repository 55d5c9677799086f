"""Kubelet's CPU manager, by the file in which it keeps what it gave away: the node's own word, without any object."""

from __future__ import annotations

from pathlib import Path

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError, KernelFileError
from koordebpf.kernel.cgroup.files import parse_cpu_list

STATE = Path("/var/lib/kubelet/cpu_manager_state")


class CpuManagerState(msgspec.Struct, frozen=True):
    """The policy's name, the CPUs of each pod that has some for itself, and with policy static those of all others."""

    policy: str
    pinned: dict[str, tuple[int, ...]]
    shared: tuple[int, ...] = ()


class _State(msgspec.Struct):
    policyName: str
    defaultCpuSet: str = ""
    entries: dict[str, dict[str, str]] = {}  # pod uid → container → CPUs


class CpuManagerFile:
    """Reads the file again when it was replaced; kubelet writes another one over it for each change."""

    def __init__(self, path: Path = STATE) -> None:
        """Remember where it is; there need not be one."""
        self.path = path
        self._seen: tuple[int, int] | None = None
        self._state: CpuManagerState | None = None

    def read(self) -> CpuManagerState | None:
        """Return what it says, None where there is no such file, or it cannot be reached from here.

        Raises:  ConfigError: it is no state of a CPU manager.
        Cost:    3 µs where it is the same as before.
        """
        try:
            stat = self.path.stat()
            if (seen := (stat.st_ino, stat.st_mtime_ns)) != self._seen:
                self._state = parse_cpu_manager_state(self.path.read_bytes(), str(self.path))
                self._seen = seen
        except OSError:
            self._seen = self._state = None
        return self._state


def parse_cpu_manager_state(raw: bytes, path: str) -> CpuManagerState:
    """Return the state in `raw`; `path` says where it came from.

    Source:  k8s.io/kubernetes pkg/kubelet/cm/cpumanager/state/checkpoint.go, CPUManagerCheckpointV2.
    Raises:  ConfigError: it is none.
    """
    try:
        state = decoder(_State).decode(raw)
        pinned = {
            uid: frozenset[int]().union(*(parse_cpu_list(cpus, path) for cpus in containers.values()))
            for uid, containers in state.entries.items()
        }
        shared = tuple(sorted(parse_cpu_list(state.defaultCpuSet, path)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KernelFileError) as error:
        shown = raw[:80].decode(errors="backslashreplace")
        raise ConfigError(path, shown, f"must be a state of kubelet's CPU manager: {error}") from error
    return CpuManagerState(state.policyName, {uid: tuple(sorted(cpus)) for uid, cpus in pinned.items() if cpus}, shared)
