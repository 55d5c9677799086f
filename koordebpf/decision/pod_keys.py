"""The annotations, labels and conditions of a pod that a decision may read: what a recording has to keep. Pure.

Each strategy names those that it reads; these are the others, and all together. The constants are those of the modules
that read them; tests/rules/test_pod_keys.py finds one that is missing.
"""

from __future__ import annotations

from typing import Any, Final

from koordebpf.attribution.static_pods import CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION
from koordebpf.decision.strategies import STRATEGIES, settings_of
from koordebpf.slo.pods.cpu_placement import RESOURCE_STATUS_ANNOTATION
from koordebpf.slo.pods.eviction import (
    EVICTION_ENABLED_LABEL,
    EVICTION_POLICY_ANNOTATION,
    EVICTION_PRIORITY_ANNOTATION,
    SUB_PRIORITY_LABEL,
)
from koordebpf.slo.pods.extended_resources import EXTENDED_RESOURCE_ANNOTATION
from koordebpf.slo.pods.qos import PRIORITY_CLASS_LABEL, QOS_LABEL
from koordebpf.state.pods.effective import RESIZE_IN_PROGRESS, RESIZE_PENDING
from koordebpf.state.pods.facts import READY
from koordebpf.state.pods.koordlet import LABEL as KOORDLET_LABEL

ANNOTATIONS: Final = frozenset(
    {
        CONFIG_HASH_ANNOTATION,
        CONFIG_MIRROR_ANNOTATION,
        EVICTION_POLICY_ANNOTATION,
        EVICTION_PRIORITY_ANNOTATION,
        EXTENDED_RESOURCE_ANNOTATION,
        RESOURCE_STATUS_ANNOTATION,
    }.union(*(each.annotations for each in STRATEGIES))
)
# By their own names. Selectors of PodDisruptionBudgets and of settings may name any other.
LABELS: Final = frozenset(
    {
        EVICTION_ENABLED_LABEL,
        KOORDLET_LABEL,
        PRIORITY_CLASS_LABEL,
        QOS_LABEL,
        SUB_PRIORITY_LABEL,
    }.union(*(each.labels for each in STRATEGIES))
)
CONDITIONS: Final = frozenset({READY, RESIZE_IN_PROGRESS, RESIZE_PENDING})


def annotations_read(sections: Any) -> frozenset[str]:
    """Return the keys of annotations that decisions under these settings may read; `sections` as for `settings_of`."""
    return ANNOTATIONS.union(*(each.annotations_named(settings_of(each, sections)) for each in STRATEGIES))


def read_by_name(sections: Any) -> frozenset[str]:
    """Return the keys of annotations and labels that decisions may read by their own names."""
    return annotations_read(sections) | LABELS
