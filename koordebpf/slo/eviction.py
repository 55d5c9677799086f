"""Which features may evict a pod, by its own annotation."""

from __future__ import annotations

import msgspec

EVICTION_POLICY_ANNOTATION = "koordinator.sh/eviction-policy"


def allows_eviction(policy: str | None, feature: str) -> bool:
    """Tell whether the annotation lets `feature` evict the pod.

    Absent allows every feature. Present allows those it lists; what is no JSON array of strings allows none.

    Source: koordinator apis/extension/evict.go.
    """
    if policy is None:
        return True
    try:
        return feature in msgspec.json.decode(policy, type=list[str])
    except (msgspec.DecodeError, RecursionError):
        return False
