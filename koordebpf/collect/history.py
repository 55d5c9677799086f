"""What is remembered of the node from one full measurement to the next, and what each one gains by it.

Stalls of the last seconds, the ledger of who caused them, stall shares where there are no pressure files, and the
forecasts. Everything is worked out in `state`; this reads what they need, in the order they need it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.forecasts import Forecasts
from koordebpf.collect.full_stalls import FullStalls
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.stall_reader import StallReader
from koordebpf.state.build import namespace_labels
from koordebpf.state.measured import Measured, NodeMeasure, Party, StallShares
from koordebpf.state.pods.exemptions import ExemptionSettings, judged_pods
from koordebpf.state.stalls.ledger import Charge, Ledger, Usage
from koordebpf.state.stalls.windows import NODE, StallGrowth
from koordebpf.units import NS_PER_S

_CONTAINER_ID_SHOWN = 12


class StallNews(msgspec.Struct, frozen=True):
    """What came with the last measurement."""

    by_pod: Mapping[str, StallGrowth] = {}  # and the node as `NODE`
    charges: tuple[Charge, ...] = ()


class NodeHistory:
    """Measures the node with what was before in mind."""

    period_ns = NS_PER_S  # of all pods, for growth, metrics and `top`

    def __init__(
        self,
        watch: NodeWatch,
        collector: MemoryCollector,
        exemptions: ExemptionSettings = ExemptionSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._watch = watch
        self._exemptions = exemptions
        self._collector = collector
        self._stalls = StallReader(watch, collector)
        self._ledger = Ledger()
        self._full_stalls = FullStalls(watch, self._stalls.full_of_container)
        self._forecasts = Forecasts(watch, collector)
        self.news = StallNews()

    def note(self, now_ns: int, node: NodeMeasure) -> None:
        """Remember how full the node was at a sample in between, for the forecast."""
        self._forecasts.note(now_ns, node)

    def measure(
        self, now_ns: int, known: Known, shmem_uids: Collection[str] = (), sampled: NodeMeasure | None = None
    ) -> Measured:
        """Return the node and all its pods as they are now, with stalls, shares, the ledger and forecasts.

        `sampled` is what the collector said of the node a moment ago, if it was asked: then there is a hurry, and what
        only shows something, or only prepares the next measurement, is left for that one.

        Raises:  CgroupGone: the node's cgroup was removed.
        Cost:    0.1 ms more than the collector while nothing stalls (tests/bench/tick.py).
        """
        stalled = self._stalls.read(now_ns)
        self.news = StallNews(self._stalls.by_pod)
        stalls = self._stalls.window()
        measured = self._collector.everything(stalls, shmem_uids, stalls.get(NODE), sampled)
        now_ns = measured.now_ns
        self.note(now_ns, measured.node)
        if stalled or (sampled is None and self._ledger.is_due(now_ns)):
            self._charge(now_ns, known, measured, stalled)
        shares = {uid: found for uid in stalls if uid != NODE and (found := self._stalls.shares_of_pod(uid, now_ns))}
        if sampled is None:
            self._forecasts.look_at_pods(now_ns, shares)
        forecasts = self._forecasts.pods
        pods = measured.pods
        if shares or forecasts:
            pods = tuple(
                msgspec.structs.replace(pod, shares=shares.get(pod.uid), forecast=forecasts.get(pod.uid))
                if pod.uid in shares or pod.uid in forecasts
                else pod
                for pod in pods
            )
        facts = [each for each in known.facts if each.uid in stalls]
        facts = judged_pods(facts, self._exemptions, namespace_labels(known.namespaces))
        window = self._full_stalls.look(now_ns, facts, stalls, shares)
        node = msgspec.structs.replace(measured.node, shares=self._stalls.shares_of_node(now_ns, measured.node))
        node = msgspec.structs.replace(node, forecast=self._forecasts.of_node(known, node))
        ledger = self._ledger.view(now_ns)
        return msgspec.structs.replace(measured, node=node, pods=pods, ledger=ledger, stall_window=window)

    def restart_stall_window(self) -> None:
        """Restart the window of the stall net, after something was done about the stalls."""
        self._full_stalls.restart()

    def shares_of(self, cgroup_id: int, now_ns: int) -> StallShares | None:
        """Return the stall shares of one cgroup, a container's say, as `StallReader.shares_of`."""
        return self._stalls.shares_of(cgroup_id, now_ns)

    def shares_of_pod(self, uid: str, now_ns: int) -> StallShares | None:
        """Return the stall shares of a pod, as `StallReader.shares_of_pod`."""
        return self._stalls.shares_of_pod(uid, now_ns)

    def _charge(self, now_ns: int, known: Known, measured: Measured, stalled: Mapping[int, StallGrowth]) -> None:
        index, facts = self._watch.index, {each.uid: each for each in known.facts}
        usages: list[Usage] = []
        for pod in measured.pods:
            if pod.memory and (its := facts.get(pod.uid)):
                party = Party(its.uid, "pod", f"{its.namespace}/{its.name}", uid=its.uid)
                held = pod.memory.usage_bytes + self._collector.swap_bytes(pod.cgroup_id)
                usages.append(Usage(party, held, its.terms.memory_request_bytes))
        for stray in measured.strays:
            if stray.memory and stray.uid:
                held = stray.memory.usage_bytes + self._collector.swap_bytes(stray.cgroup_id)
                usages.append(Usage(Party(stray.uid, "pod", stray.uid, uid=stray.uid), held))
        for cgroup_id, held in self._collector.outside().items():
            owner = index.owner(cgroup_id)
            if owner is not None and owner.kind is not OwnerKind.ROOT:
                usages.append(Usage(_party(cgroup_id, owner), held))
        victims: dict[Party, StallGrowth] = {}
        for cgroup_id, growth in stalled.items():
            victims.setdefault(_party(cgroup_id, index.owner(cgroup_id)), StallGrowth()).add(growth)
        charges = tuple(self._ledger.push(now_ns, victims, usages))
        self.news = msgspec.structs.replace(self.news, charges=charges)


def _party(cgroup_id: int, owner: Owner | None) -> Party:
    if owner is None:
        return Party(f"cgroup {cgroup_id}", "cgroup", f"cgroup {cgroup_id}")
    if owner.pod_uid is None:
        path = owner.path or "/"
        return Party(path, "cgroup", path)
    uid = owner.pod_uid
    name = f"{owner.namespace}/{owner.pod_name}" if owner.pod_known else uid
    if owner.container_id is None:
        return Party(uid, "pod", name, uid=uid)
    container = owner.container_name or owner.container_id[:_CONTAINER_ID_SHOWN]
    return Party(f"{uid}/{owner.container_id}", "pod", name, container, uid)
