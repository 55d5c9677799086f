"""Whether koordlet runs on this node, by its pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import FINISHED_PHASES

# Of Koordinator's chart. In another namespace anyone who may create pods could give a pod this label.
NAMESPACE = "koordinator-system"
LABEL, NAME = "koord-app", "koordlet"


def koordlet_pod(pods: Iterable[PodFacts]) -> str | None:
    """Return koordlet's pod on this node as namespace/name; None: there is none."""
    for pod in pods:
        labels = pod.pod.metadata.labels or {}
        if pod.namespace == NAMESPACE and labels.get(LABEL) == NAME and pod.phase not in FINISHED_PHASES:
            return pod.pod.key
    return None
