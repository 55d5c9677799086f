"""What a plugin is asked for pods with, and the records of candidates: budgets and past evictions. Values only.

Source: katalyst-api pkg/protocol/evictionplugin/v1alpha1/api.proto, EvictionRecord.
"""

from __future__ import annotations

import msgspec


class PastBucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evictions of a workload's pods within some time: `time_s` is its start, in seconds since the epoch."""

    time_s: int
    duration_s: int
    count: int


class EvictionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of one candidate. Without a PodDisruptionBudget the numbers of its status are 0.

    `buckets` none: no pod of its workload was evicted, or it has no workload.
    """

    uid: str
    has_pdb: bool = False
    buckets: tuple[PastBucket, ...] = ()
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class TopAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GetTopEvictionPods of one plugin: how many pods, for which scope, of which pods by UID, with their records."""

    plugin: str
    scope: str
    top_n: int
    candidates: tuple[str, ...]
    records: tuple[EvictionRecord, ...] = ()
