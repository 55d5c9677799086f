"""How long latency-sensitive pods stand still for the node's memory: what the stall net is decided on, look by look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.bpf.programs import EVERY_STALL
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory
from koordebpf.slo.pods.qos import is_latency_sensitive
from koordebpf.state.measured import StallParts, StallShares
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.stalls.full_window import StalledPod, extended, stall_sample
from koordebpf.state.stalls.sample import StallSample
from koordebpf.units import NS_PER_S

_HIGH_COUNTS_NS = 10 * NS_PER_S  # Why: for as long as a stall stays in the sums it is taken out of


class FullStalls:
    """Keeps the window of samples.

    Args:
        watch: whose programs time the stalls. What only sums them up does not say whose limit was hit.
        full_of: the share in which one container waits as a whole, of those that the kernel says it of; 0 to 100.
    """

    def __init__(self, watch: NodeWatch, full_of: Callable[[str, int], float | None]) -> None:
        self._watch = watch
        self._full_of = full_of
        self._window: tuple[StallSample, ...] = ()
        self._high: dict[str, tuple[int, int | None]] = {}  # uid → hits of memory.high, when they rose last

    def look(
        self,
        now_ns: int,
        facts: Collection[PodFacts],
        stalls: Mapping[str, StallParts],
        shares: Mapping[str, StallShares],
    ) -> tuple[StallSample, ...]:
        """Take what stalled in the last seconds, by uid; return the window. Empty: nothing times the stalls of pods."""
        if self._watch.quality.stalls != "timed":
            self._window = ()
            return ()
        pods = [
            self._stalled(now_ns, each, stalls[each.uid], found)
            for each in facts
            if each.uid in stalls
            and (found := shares.get(each.uid)) is not None
            and not each.is_terminating
            and is_latency_sensitive(each.koord_qos, each.kube_qos)
        ]
        self._high = {uid: seen for uid, seen in self._high.items() if uid in stalls}
        self._window = extended(self._window, stall_sample(now_ns, pods, is_whole=self._is_whole()))
        return self._window

    def restart(self) -> None:
        """Restart the window: something was done about the stalls, and it takes time to see what that brought."""
        self._window = ()

    def _is_whole(self) -> bool:
        lost = {source.signal for source in self._watch.lost}
        return any(each.signal == EVERY_STALL and each.works for each in self._watch.signals.sources) and (
            EVERY_STALL not in lost
        )

    def _stalled(self, now_ns: int, pod: PodFacts, stall: StallParts, shares: StallShares) -> StalledPod:
        some, full = shares.some_at_most or shares.some, shares.full.avg10 if shares.full else None
        if full is None:
            full = self._full_of(pod.uid, now_ns)
        return StalledPod(
            f"{pod.namespace}/{pod.name}",
            stall,
            some.avg10 / 100,
            None if full is None else full / 100,
            shares.derived,
            self._meets_high(now_ns, pod.uid),
        )

    # Children's events are in those of the pod. cgroup v1 has no memory.high.
    def _meets_high(self, now_ns: int, uid: str) -> bool:
        scope: NodeScope = self._watch.scope
        cgroup_id = self._watch.index.pod_cgroup(uid)
        path = None if cgroup_id is None else self._watch.index.path(cgroup_id)
        if path is None or scope.hierarchy.version == 1:
            return False
        try:
            with CgroupMemory(scope.hierarchy.mount_point / path, 2) as files:
                high, *_ = files.events()
        except (CgroupGone, SupportError):
            return True  # nothing is known of it
        before, rose_ns = self._high.get(uid, (high, None))
        if high != before:
            rose_ns = now_ns
        self._high[uid] = high, rose_ns
        return rose_ns is not None and now_ns - rose_ns <= _HIGH_COUNTS_NS
