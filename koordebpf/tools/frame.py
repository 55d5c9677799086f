"""Frames out of a running node: what `koordebpf plan` decides again elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from koordebpf.kube.cache.objects import ClusterState
from koordebpf.state.view import ExecutorName, Frame, Measured, PastEviction, PendingRelease, RefusedEviction


def frame_of(
    state: ClusterState | None,
    measured: Measured,
    *,
    feature_gates: Mapping[str, bool],
    executor: ExecutorName,
    pending: Sequence[PendingRelease] = (),
    refused: Sequence[RefusedEviction] = (),
    last_evict_ns: int | None = None,
    wall_s: float | None = None,
    own_pod_uid: str | None = None,
    evictions: Sequence[PastEviction] = (),
    last_cpu_evict_ns: int | None = None,
    started_ns: int | None = None,
) -> Frame:
    """Return everything a decision at this moment rests on, as one value."""
    known = state or ClusterState(version=0, synced_at_ns=0)
    return Frame(
        schema="koordebpf.frame/v1",
        measured=measured,
        pods=known.pods,
        node=known.node,
        nodeResourceTopology=known.topology,
        nodeSLO=known.nodeslo if known.nodeslo is not None else msgspec.UNSET,
        sloControllerConfig=known.slo_controller_config,
        featureGates=dict(feature_gates),
        executor=executor,
        pending=tuple(pending),
        refused=tuple(refused),
        lastEvictNs=last_evict_ns,
        time=None if wall_s is None else datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds"),
        ownPodUid=own_pod_uid,
        evictions=tuple(evictions),
        podDisruptionBudgets=known.pdbs,
        lastCpuEvictNs=last_cpu_evict_ns,
        startedNs=started_ns,
        namespaces=known.namespaces or (),
    )
