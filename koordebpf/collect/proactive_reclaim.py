"""Reads for proactive reclaim, each few seconds: pods that may be trimmed, stalls of those that must not, and swap."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from koordebpf.attribution.index import CgroupIndex
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.memory.lru_stat import LruStat, anon_bytes, file_bytes
from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.host.zram import zram_use
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.slo.pods.qos import koord_qos, koord_qos_or_default
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.proactive_reclaim import ReclaimMeasured, SwapState, TrimmedPod
from koordebpf.units import NS_PER_S

RECLAIM_FILE = "memory.reclaim"
_SENSITIVE = frozenset({"LSE", "LSR", "LS"})
_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)")
_TAKES_SWAPPINESS = (6, 11)


class ReclaimCollector(Closing):
    """Measures when it is due. Fds of pods that are gone are closed at the next look.

    Args:
        index: of the node's cgroups.
        known: of the cluster.
        hierarchy: of the memory controller.
        label: of pods that are trimmed beside best-effort ones; "": none.
        soft_limits: measure pods on cgroup v1, too, for their soft limits.
    """

    period_ns = 6 * NS_PER_S  # Why: senpai's interval; stalls of one interval say what the last step did

    def __init__(
        self,
        index: CgroupIndex,
        known: Known,
        hierarchy: MemoryHierarchy,
        label: str = "",
        *,
        soft_limits: bool = False,
    ) -> None:
        self._index = index
        self._known = known
        self._hierarchy = hierarchy
        self.mount_point = hierarchy.mount_point
        self._label = label
        self._soft_limits = soft_limits
        self._due = Due(self.period_ns)
        self._meminfo = Meminfo()
        self._stats: dict[int, LruStat] = {}
        self._pressures: dict[int, PressureFile] = {}
        self.takes_swappiness = _release() >= _TAKES_SWAPPINESS

    def measure(self, now_ns: int) -> ReclaimMeasured | None:
        """Return what is there now; None: it is not due, or the cluster is not known yet.

        Cost:    25 µs a pod that may be trimmed, 6 µs one that must not stall.
        """
        if not self._known.is_whole or not self._due.is_nearly_due(now_ns):
            return None
        self._due.done(now_ns)
        if self._hierarchy.version == 1 and not self._soft_limits:
            weaker = "strategies.proactiveReclaim.softLimits is weaker"
            return ReclaimMeasured(now_ns, lacks=f"cgroup v1 has no {RECLAIM_FILE}: {weaker}")
        trimmed: list[TrimmedPod] = []
        sensitive: dict[str, int] = {}
        seen: set[int] = set()
        for facts, cgroup_id, path in self._pods():
            qos = koord_qos_or_default(facts.pod.metadata.labels, facts.kube_qos)
            if self._may_be_trimmed(facts):
                seen.add(cgroup_id)
                if not self._is_v1 and (lacks := self._lacks(path)):
                    return ReclaimMeasured(now_ns, lacks=lacks)
                if (pod := self._trimmed(facts.uid, cgroup_id, path)) is not None:
                    trimmed.append(pod)
            elif qos in _SENSITIVE and not self._is_v1:
                seen.add(cgroup_id)
                if (stalled_us := self._stalled_us(cgroup_id, path)) is not None:
                    sensitive[facts.uid] = stalled_us
        self._keep_only(seen)
        return ReclaimMeasured(
            now_ns,
            tuple(trimmed),
            sensitive,
            self._swap(),
            takes_swappiness=self.takes_swappiness,
            soft_limits=self._is_v1,
        )

    def close(self) -> None:
        """Close every fd."""
        self._keep_only(set())
        self._meminfo.close()

    @property
    def _is_v1(self) -> bool:
        return self._hierarchy.version == 1

    # A directory counts as a pod's only where it bears that pod's own UID, whatever its annotations say.
    def _pods(self) -> Iterator[tuple[PodFacts, int, str]]:
        index = self._index
        cgroups = index.pod_cgroups()
        for facts in self._known.facts:
            cgroup_id = cgroups.get(facts.uid)
            path = index.path(cgroup_id) if cgroup_id is not None else None
            if cgroup_id is None or path is None or facts.phase != "Running":
                continue
            if bears(path.rpartition("/")[2], index.names_to_act_on(facts.uid)):
                yield facts, cgroup_id, path

    # As eviction: by the label, which a pod of no class does not have.
    def _may_be_trimmed(self, facts: PodFacts) -> bool:
        labels = facts.pod.metadata.labels or {}
        return koord_qos(labels) == "BE" or bool(self._label and labels.get(self._label) == "true")

    def _lacks(self, path: str) -> str:
        directory = self._hierarchy.mount_point / path
        if not (directory / RECLAIM_FILE).exists() and directory.is_dir():
            return f"this kernel has no {RECLAIM_FILE}, which came with Linux 5.19"
        if not (directory / "memory.pressure").exists() and directory.is_dir():
            return "this kernel accounts no pressure (psi=0): whether it hurts could not be seen"
        return ""

    def _trimmed(self, uid: str, cgroup_id: int, path: str) -> TrimmedPod | None:
        stalled_us = 0 if self._is_v1 else self._stalled_us(cgroup_id, path)
        if stalled_us is None:
            return None
        try:
            stat = self._stats.get(cgroup_id)
            if stat is None:
                stat = self._stats[cgroup_id] = LruStat(self._hierarchy.mount_point / path, self._hierarchy.version)
            usage_bytes, rows = stat.usage_bytes(), stat.rows()
        except (OSError, ValueError):  # it ended meanwhile
            return None
        return TrimmedPod(
            uid,
            cgroup_id,
            path,
            usage_bytes,
            file_bytes(rows),
            anon_bytes(rows),
            stalled_us,
            sum(count for name, count in rows.items() if name.startswith(b"workingset_refault")),
        )

    def _stalled_us(self, cgroup_id: int, path: str) -> int | None:
        try:
            file = self._pressures.get(cgroup_id)
            if file is None:
                directory = self._hierarchy.mount_point / path
                file = self._pressures[cgroup_id] = PressureFile(directory / "memory.pressure")
            return file.read().some.total_us
        except (CgroupGone, SupportError, KernelFileError):
            return None

    def _swap(self) -> SwapState:
        values = self._meminfo.read()
        return SwapState(values.swap_total_bytes or 0, values.swap_free_bytes or 0, *zram_use())

    def _keep_only(self, cgroups: set[int]) -> None:
        for cgroup_id in self._stats.keys() - cgroups:
            self._stats.pop(cgroup_id).close()
        for cgroup_id in self._pressures.keys() - cgroups:
            self._pressures.pop(cgroup_id).close()


def _release() -> tuple[int, int]:
    match = _RELEASE.match(os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
