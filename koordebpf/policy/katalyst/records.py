"""Records of candidates for plugins outside the process: PodDisruptionBudgets, and evictions of the last hours. Pure.

Source: katalyst-core pkg/agent/evictionmanager/record, which has an interface and no implementation; its plugins look
at windows of 30 minutes to two hours (plugin/rules).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from koordebpf.policy.evict.candidates.disruption import Disruptions
from koordebpf.policy.katalyst.requests import BUCKET_NS, Past, PastCount, added
from koordebpf.policy.katalyst.state import RemoteCall
from koordebpf.state.katalyst.measured import EvictionRecord, PastBucket
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import NS_PER_S

_MOST_INT32 = 2**31 - 1


def with_records(call: RemoteCall, view: NodeView, past: Past) -> RemoteCall:
    """Return the call with what is known of the candidates of each plugin that is asked for pods."""
    if not call.asks:
        return call
    uids = {uid for ask in call.asks for uid in ask.candidates}
    found = {each.uid: each for each in records_of(view, past, uids)}
    return replace(
        call,
        asks=tuple(
            replace(ask, records=tuple(found[uid] for uid in ask.candidates if uid in found)) for ask in call.asks
        ),
    )


def records_of(view: NodeView, past: Past, uids: Collection[str]) -> tuple[EvictionRecord, ...]:
    """Return what is known of each of these pods, in the order of the view; nothing of one of which nothing is.

    Of several PodDisruptionBudgets of one pod the one that allows least counts, and it allows none: the API server
    refuses such a pod. Numbers are bounded by the wire's 32 bits.
    """
    disruptions = Disruptions(view.frame.podDisruptionBudgets)
    counts = added(past.counts, [each for each in view.frame.evictions if each.at_ns > past.until_ns])
    found = []
    for pod in view.pods:
        if pod.uid not in uids:
            continue
        buckets = _buckets(view, pod, counts)
        if disruptions.is_known or buckets:
            found.append(_record(pod, disruptions, buckets))
    return tuple(found)


def _record(pod: PodView, disruptions: Disruptions, buckets: tuple[PastBucket, ...]) -> EvictionRecord:
    pdbs = disruptions.matching(pod)
    if not pdbs:
        return EvictionRecord(pod.uid, buckets=buckets)
    status = min(pdbs, key=lambda pdb: (pdb.status.disruptionsAllowed, pdb.key)).status
    return EvictionRecord(
        pod.uid,
        has_pdb=True,
        buckets=buckets,
        disruptions_allowed=_int32(status.disruptionsAllowed) if len(pdbs) == 1 else 0,
        current_healthy=_int32(status.currentHealthy),
        desired_healthy=_int32(status.desiredHealthy),
        expected_pods=_int32(status.expectedPods),
    )


def _buckets(view: NodeView, pod: PodView, counts: Iterable[PastCount]) -> tuple[PastBucket, ...]:
    workload = pod.terms.workload
    if workload is None or view.wall_s is None:
        return ()
    wall_s, now_ns = view.wall_s, view.now_ns
    return tuple(
        PastBucket(int(wall_s - (now_ns - each.start_ns) / NS_PER_S), BUCKET_NS // NS_PER_S, each.count)
        for each in counts
        if each.workload == workload
    )


def _int32(number: int) -> int:
    return min(max(number, 0), _MOST_INT32)
