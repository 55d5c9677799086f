"""The annotations, labels and conditions of a pod that a decision may read: what a recording has to keep. Pure.

The constants are those of the modules that read them; tests/rules/test_pod_keys.py finds one that is missing here.
"""

from __future__ import annotations

from typing import Final

from koordebpf.attribution.static_pods import CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION
from koordebpf.decision.strategies import settings_of
from koordebpf.decision.tick_frame import TickSettings
from koordebpf.policy.hooks.core_sched import GROUP_LABEL, POLICY_LABEL
from koordebpf.policy.hooks.group_identity import CPU_QOS_ANNOTATION
from koordebpf.policy.hooks.oom_score_adj import OOM_SCORE_ADJ_ANNOTATION, OOM_SCORE_ADJ_SPEC_ANNOTATION
from koordebpf.policy.katalyst.manager import KATALYST_EVICTION
from koordebpf.policy.katalyst.plugins.network import NIC_SELECTION_RESULT
from koordebpf.policy.katalyst.plugins.reclaimed_numa import NUMA_BIND_RESULT
from koordebpf.policy.katalyst.pods import CONFIG_SOURCE_ANNOTATION
from koordebpf.policy.katalyst.settings import KatalystSettings
from koordebpf.slo.katalyst.qos import MEMORY_ENHANCEMENT, QOS_LEVEL, SOFT_NOTICE
from koordebpf.slo.pods.block_io import BLKIO_QOS_ANNOTATION
from koordebpf.slo.pods.cpu_burst import CPU_BURST_ANNOTATION
from koordebpf.slo.pods.cpu_placement import RESOURCE_STATUS_ANNOTATION
from koordebpf.slo.pods.eviction import (
    EVICTION_ENABLED_LABEL,
    EVICTION_POLICY_ANNOTATION,
    EVICTION_PRIORITY_ANNOTATION,
    SUB_PRIORITY_LABEL,
)
from koordebpf.slo.pods.extended_resources import EXTENDED_RESOURCE_ANNOTATION
from koordebpf.slo.pods.memory_qos import MEMORY_QOS_ANNOTATION
from koordebpf.slo.pods.priority import PRIORITY_CLASS_LABEL
from koordebpf.slo.pods.qos import QOS_LABEL
from koordebpf.state.pods.effective import RESIZE_IN_PROGRESS, RESIZE_PENDING
from koordebpf.state.pods.facts import READY
from koordebpf.state.pods.koordlet import LABEL as KOORDLET_LABEL

ANNOTATIONS: Final = frozenset(
    {
        BLKIO_QOS_ANNOTATION,
        CONFIG_HASH_ANNOTATION,
        CONFIG_MIRROR_ANNOTATION,
        CONFIG_SOURCE_ANNOTATION,
        CPU_BURST_ANNOTATION,
        CPU_QOS_ANNOTATION,
        EVICTION_POLICY_ANNOTATION,
        EVICTION_PRIORITY_ANNOTATION,
        EXTENDED_RESOURCE_ANNOTATION,
        MEMORY_ENHANCEMENT,
        MEMORY_QOS_ANNOTATION,
        NIC_SELECTION_RESULT,
        NUMA_BIND_RESULT,
        OOM_SCORE_ADJ_ANNOTATION,
        OOM_SCORE_ADJ_SPEC_ANNOTATION,
        QOS_LEVEL,
        RESOURCE_STATUS_ANNOTATION,
        SOFT_NOTICE,
    }
)
# By their own names. Selectors of PodDisruptionBudgets and of settings may name any other.
LABELS: Final = frozenset(
    {
        EVICTION_ENABLED_LABEL,
        GROUP_LABEL,
        KOORDLET_LABEL,
        POLICY_LABEL,
        PRIORITY_CLASS_LABEL,
        QOS_LABEL,
        SUB_PRIORITY_LABEL,
    }
)
CONDITIONS: Final = frozenset({READY, RESIZE_IN_PROGRESS, RESIZE_PENDING})


def annotations_read(settings: TickSettings) -> frozenset[str]:
    """Return the keys of annotations that decisions under these settings may read."""
    return _annotations(settings_of(KATALYST_EVICTION, settings))


def read_by_name(katalyst: KatalystSettings) -> frozenset[str]:
    """Return the keys of annotations and labels that decisions may read by their own names."""
    return _annotations(katalyst) | LABELS


def _annotations(katalyst: KatalystSettings) -> frozenset[str]:
    return ANNOTATIONS.union(katalyst.skip.annotations, *katalyst.qos.by_level().values())
