"""By how much the CPUs of a node are faster than those that limits are written for, and whose quotas that counts for.

Source: koordinator pkg/koordlet/runtimehooks/hooks/cpunormalization; apis/extension/cpu_normalization.go.
"""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.slo.pods.cpu_placement import RESOURCE_STATUS_ANNOTATION
from koordebpf.slo.pods.resource_status import ResourceStatus
from koordebpf.state.pods.hook_pods import HookPod

CPU_NORMALIZATION = "CPUNormalization"  # the feature gate
RATIO_ANNOTATION = "node.koordinator.sh/cpu-normalization-ratio"  # of the Node
_MAX_RATIO = 100.0  # Why: koord-manager writes 1 to 5; what is absurd would stop every pod


def normalization_ratio(annotations: Mapping[str, str] | None, problems: list[str]) -> float | None:
    """Return the node's ratio; None: there is none, it is at most 1, or it cannot be read."""
    text = (annotations or {}).get(RATIO_ANNOTATION)
    if text is None:
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = float("nan")
    if ratio == -1 or 0 < ratio <= 1:
        return None
    if not 1 < ratio <= _MAX_RATIO:
        problems.append(f"annotation {RATIO_ANNOTATION}: {text[:40]!r}: must be -1, or a number up to {_MAX_RATIO:g}")
        return None
    return ratio


def is_normalized(pod: HookPod, status: ResourceStatus | None) -> bool:
    """Tell whether the hook is for this pod: LS or no label, and no CPUs of its own."""
    if RESOURCE_STATUS_ANNOTATION in pod.annotations and (status is None or status.cpus):
        return False
    return pod.koord_qos in ("LS", "")
