"""Reads for proactive reclaim, each few seconds: pods that may be trimmed, stalls of those that must not, and swap."""

from __future__ import annotations

import os
import re

from koordebpf.attribution.index import CgroupIndex
from koordebpf.clock import Due
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.memory.files import PodFiles, anon_bytes, file_bytes
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.host.block_devices import zram_use
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.slo.pods.qos import koord_qos, koord_qos_or_default
from koordebpf.state.pods.facts import PodFacts
from koordebpf.strategies.proactive_reclaim.values import NO_RECLAIM_V1, ReclaimMeasured, SwapState, TrimmedPod
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
        self._known = known
        self._hierarchy = hierarchy
        self.mount_point = hierarchy.mount_point
        self._label = label
        self._soft_limits = soft_limits
        self.due = Due(self.period_ns)
        self._meminfo = Meminfo()
        self._files = PodFiles(index, known, hierarchy)
        self.takes_swappiness = _release() >= _TAKES_SWAPPINESS

    def measure(self, now_ns: int) -> ReclaimMeasured | None:
        """Return what is there now; None: it is not due, or the cluster is not known yet.

        Cost:    25 µs a pod that may be trimmed, 6 µs one that must not stall.
        """
        if not self._known.is_whole or not self.due.is_nearly_due(now_ns):
            return None
        self.due.done(now_ns)
        if self._hierarchy.version == 1 and not self._soft_limits:
            return ReclaimMeasured(now_ns, lacks=NO_RECLAIM_V1)
        trimmed: list[TrimmedPod] = []
        sensitive: dict[str, int] = {}
        seen: set[int] = set()
        for facts, cgroup_id, path in self._files.running():
            qos = koord_qos_or_default(facts.pod.metadata.labels, facts.kube_qos)
            if self._may_be_trimmed(facts):
                seen.add(cgroup_id)
                if not self._is_v1 and (lacks := self._lacks(path)):
                    return ReclaimMeasured(now_ns, lacks=lacks)
                if (pod := self._trimmed(facts.uid, cgroup_id, path)) is not None:
                    trimmed.append(pod)
            elif qos in _SENSITIVE and not self._is_v1:
                seen.add(cgroup_id)
                if (stalled_us := self._files.stalled_us(cgroup_id, path)) is not None:
                    sensitive[facts.uid] = stalled_us
        self._files.keep_only(seen)
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
        self._files.close()
        self._meminfo.close()

    @property
    def _is_v1(self) -> bool:
        return self._hierarchy.version == 1

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
        stalled_us = 0 if self._is_v1 else self._files.stalled_us(cgroup_id, path)
        if stalled_us is None:
            return None
        try:
            stat = self._files.stat(cgroup_id, path)
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

    def _swap(self) -> SwapState:
        values = self._meminfo.read()
        return SwapState(values.swap_total_bytes or 0, values.swap_free_bytes or 0, *zram_use())


def _release() -> tuple[int, int]:
    match = _RELEASE.match(os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
