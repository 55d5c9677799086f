"""The sets of CPUs of the best-effort directory and what lies below it, read a part in turn."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.collect.cpu.files import CgroupCpuFiles
from koordebpf.collect.cpu.owners import CpuOwners
from koordebpf.kernel.proc.cpu_usage import CgroupCpu
from koordebpf.state.cpu.best_effort import be_sets
from koordebpf.state.cpu.measured import BeCgroup

_CONTAINER_DEPTH = 2  # below the best-effort directory, as with kubelet
# What another process writes into a single set shows within so many rounds; the writer corrects it. Why 30: koordlet
# writes again after 60 s (resource-force-update-seconds); the sets of 221 directories take 1 ms, so many 0.04 ms.
_ROUNDS = 30


class BestEffortSets:
    """Remembers each directory's CPUs. `sets` are those of the last reading, each once."""

    def __init__(self, files: CgroupCpuFiles) -> None:
        self._files = files
        self._tree: tuple[BeCgroup, ...] = ()  # without CPUs
        self._paths: list[str] = []
        self._cgroups: tuple[BeCgroup, ...] = ()  # with those of the last reading
        self.sets: frozenset[tuple[int, ...]] = frozenset()  # of `_cgroups`
        self._cpus: dict[str, tuple[int, ...] | None] = {}
        self._turn = 0

    def watch(self, owners: CpuOwners) -> tuple[str, ...]:
        """Take the directories as they are now; return their paths, the best-effort directory first."""
        self._tree = () if owners.root is None else tuple(self._below(owners.root, owners))
        self._paths = [each.path for each in self._tree]
        self._cgroups = ()
        self._cpus = {path: self._cpus[path] for path in self._paths if path in self._cpus}
        return tuple(self._paths)

    # On v1 a set may hold only what each set below it leaves, so that everything below has to follow. On v2 what lies
    # below a container is the container's own affair.
    def _below(self, root: str, owners: CpuOwners) -> Iterable[BeCgroup]:
        mount = self._files.mounts.get("cpuset")
        deepest = _CONTAINER_DEPTH if mount is None or mount.version == 2 else None
        yield BeCgroup(root, "root")
        for path in sorted(path for path in owners.owned if path.startswith(f"{root}/")):
            depth = path.count("/") - root.count("/")
            if deepest is None or depth <= deepest:
                yield BeCgroup(path, "pod" if depth < _CONTAINER_DEPTH else "container", owners.owned[path].pod_uid)

    def read(self) -> tuple[BeCgroup, ...]:
        """Return the directories with their CPUs: a part of the sets is read in turn, all where one has changed."""
        paths = self._paths
        new = [path for path in paths if path not in self._cpus or path not in self._files]
        share = -(-len(paths) // _ROUNDS)
        due = {*paths[:1], *paths[self._turn : self._turn + share], *new}
        self._turn = self._turn + share if self._turn + share < len(paths) else 0
        is_other = self._read_sets(due)
        if is_other:
            self._read_sets(path for path in paths if path not in due)
        if is_other or new or not self._cgroups:
            self._cgroups = tuple(
                BeCgroup(each.path, each.level, each.uid, self._cpus[each.path])
                for each in self._tree
                if each.path in self._files  # else it is gone
            )
            self.sets = be_sets(self._cgroups)
        return self._cgroups

    # Returns whether one is another than when it was last read.
    def _read_sets(self, paths: Iterable[str]) -> bool:
        is_other = False
        for path in paths:
            cpus = self._files.read(path, CgroupCpu.cpus)
            is_other |= self._cpus.get(path, cpus) != cpus
            self._cpus[path] = cpus
        return is_other
