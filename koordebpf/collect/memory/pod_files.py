"""Memory files of running pods through kept fds: memory.stat, usage and memory.pressure."""

from __future__ import annotations

from collections.abc import Iterator

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.memory.lru_stat import LruStat
from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.state.pods.facts import PodFacts


class PodFiles(Closing):
    """Finds running pods and keeps their files open, until `keep_only` leaves a pod out."""

    def __init__(self, index: CgroupIndex, known: Known, hierarchy: MemoryHierarchy) -> None:
        self._index = index
        self._known = known
        self._hierarchy = hierarchy
        self._stats: dict[int, LruStat] = {}
        self._pressures: dict[int, PressureFile] = {}

    def running(self) -> Iterator[tuple[PodFacts, int, str]]:
        """Yield each running pod with its cgroup's id and path.

        A directory counts as a pod's only where it bears that pod's own UID, whatever its annotations say.
        """
        index = self._index
        cgroups = index.pod_cgroups()
        for facts in self._known.facts:
            cgroup_id = cgroups.get(facts.uid)
            path = index.path(cgroup_id) if cgroup_id is not None else None
            if cgroup_id is None or path is None or facts.phase != "Running":
                continue
            if bears(path.rpartition("/")[2], index.names_to_act_on(facts.uid)):
                yield facts, cgroup_id, path

    def stat(self, cgroup_id: int, path: str) -> LruStat:
        """Return memory.stat and the usage of a pod.

        Raises:  OSError: the cgroup is gone.
        """
        stat = self._stats.get(cgroup_id)
        if stat is None:
            stat = self._stats[cgroup_id] = LruStat(self._hierarchy.mount_point / path, self._hierarchy.version)
        return stat

    def stalled_us(self, cgroup_id: int, path: str) -> int | None:
        """Return for how long some task of a pod stalled; None: the kernel does not account it, or the pod is gone."""
        try:
            file = self._pressures.get(cgroup_id)
            if file is None:
                directory = self._hierarchy.mount_point / path
                file = self._pressures[cgroup_id] = PressureFile(directory / "memory.pressure")
            return file.read().some.total_us
        except (CgroupGone, SupportError, KernelFileError):
            return None

    def keep_only(self, cgroups: set[int]) -> None:
        """Close the files of all other cgroups."""
        for cgroup_id in self._stats.keys() - cgroups:
            self._stats.pop(cgroup_id).close()
        for cgroup_id in self._pressures.keys() - cgroups:
            self._pressures.pop(cgroup_id).close()

    def close(self) -> None:
        """Close every fd."""
        self.keep_only(set())
