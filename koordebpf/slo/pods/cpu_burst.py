"""Annotation cpuBurst: what a pod asks for in place of the node's CPU burst strategy.

Source: koordinator apis/slo/v1alpha1/pod.go, GetPodCPUBurstConfig.
"""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import overlaid
from koordebpf.slo.overlay import decode_object
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy

CPU_BURST_ANNOTATION = "koordinator.sh/cpuBurst"
_PLACE = f"annotation {CPU_BURST_ANNOTATION}"


def pod_cpu_burst(
    node: CPUBurstStrategy, annotations: Mapping[str, str]
) -> tuple[CPUBurstStrategy, ConfigError | None]:
    """Return the strategy of a pod: the node's with what its annotation names, and what is wrong with that.

    An annotation that cannot be read changes nothing. sharePoolThresholdPercent is always the node's.
    """
    written = annotations.get(CPU_BURST_ANNOTATION)
    if not written:
        return node, None
    try:
        asked = decode_object(written, _PLACE)
        asked.pop("sharePoolThresholdPercent", None)
        return overlaid(node, asked, _PLACE), None
    except ConfigError as error:
        return node, error
