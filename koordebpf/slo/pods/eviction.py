"""What a pod itself says of its eviction, by labels and annotations.

Source: koordinator apis/extension/evict.go, priority.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from koordebpf.decoding import decoder
from koordebpf.slo.pods.qos import koord_qos

EVICTION_POLICY_ANNOTATION = "koordinator.sh/eviction-policy"
EVICTION_ENABLED_LABEL = "koordinator.sh/eviction-enabled"
EVICTION_PRIORITY_ANNOTATION = "koordinator.sh/eviction-priority"
SUB_PRIORITY_LABEL = "koordinator.sh/priority"


def allows_eviction(policy: str | None, feature: str) -> bool:
    """Tell whether the annotation lets `feature` evict the pod.

    Absent allows every feature. Present allows those it lists; what is no JSON array of strings allows none.
    """
    if policy is None:
        return True
    try:
        return feature in decoder(list[str]).decode(policy)
    except (msgspec.DecodeError, RecursionError):
        return False


def is_eviction_enabled(labels: Mapping[str, str] | None) -> bool:
    """Tell whether the pod lets features that go by priority evict it: the label is exactly `true`."""
    return labels is not None and labels.get(EVICTION_ENABLED_LABEL) == "true"


def may_be_evicted(labels: Mapping[str, str] | None) -> bool:
    """Tell whether some feature could ever choose the pod: it is best-effort, or lets itself be chosen by priority."""
    return koord_qos(labels) == "BE" or is_eviction_enabled(labels)


def eviction_priority(annotations: Mapping[str, str] | None) -> int:
    """Return the pod's eviction priority, the lowest is evicted first; 0 where absent or not an integer of 32 bits."""
    return _integer((annotations or {}).get(EVICTION_PRIORITY_ANNOTATION), 32, 0)


def sub_priority(labels: Mapping[str, str] | None, priority: int) -> int:
    """Return the priority within the band; `priority` where the label is absent or no integer."""
    return _integer((labels or {}).get(SUB_PRIORITY_LABEL), 64, priority)


def _integer(text: str | None, bits: int, otherwise: int) -> int:
    # strconv.ParseInt with base 10: a sign and digits, nothing else.
    if text is None or not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        return otherwise
    number = int(text) if len(text) <= 20 else 1 << bits
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else otherwise
