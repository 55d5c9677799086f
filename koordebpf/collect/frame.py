"""Frames out of a running node: what each round of an agent decides from, and `koordebpf plan` decides again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from koordebpf.collect.cluster_view import Known
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.state.measured import Measured
from koordebpf.state.view import ExecutorName, Frame

_NOTHING_REPORTED = ClusterState(version=0, synced_at_ns=0)


def frame_of(
    state: ClusterState | None,
    measured: Measured,
    *,
    feature_gates: Mapping[str, bool],
    executor: ExecutorName,
    wall_s: float | None = None,
) -> Frame:
    """Return what a decision at this moment rests on but for earlier evictions, as one value; nothing is copied."""
    known = state or _NOTHING_REPORTED
    return Frame(
        schema="koordebpf.frame/v3",
        measured=measured,
        pods=known.pods,
        node=known.node,
        nodeResourceTopology=known.topology,
        nodeSLO=known.nodeslo if known.nodeslo is not None else msgspec.UNSET,
        sloControllerConfig=known.slo_controller_config,
        featureGates=dict(feature_gates),
        executor=executor,
        time=None if wall_s is None else datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds"),
        podDisruptionBudgets=known.pdbs,
        namespaces=known.namespaces or (),
    )


def in_force(frame: Frame, known: Known) -> Frame:
    """Return the frame with what is in force: the last good one of what cannot be used, no labels that are too old."""
    return replace(
        frame,
        node=known.node,
        podDisruptionBudgets=known.pdbs,
        nodeResourceTopology=known.topology,
        namespaces=known.namespaces,
        strategyInForce=known.strategy,
    )
