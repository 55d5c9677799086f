"""How much of a pod's annotations is recorded: a tenant may change 256 KiB of each pod's each second. Pure.

Policy reads annotations of Koordinator's, Katalyst's and Kubernetes' domains; the longest are some hundred bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from koordebpf.kube.cache.objects import Pod

_DOMAINS = ("koordinator.sh", "kubewharf.io", "kubernetes.io", "k8s.io")
_MAX_FOREIGN = 256  # characters of a value
_MAX_VALUE = 4096  # Why: last-applied-configuration is longer, and nothing reads it
_MAX_POD = 16 << 10  # of all annotations of a pod


def bounded(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """Return the pods without annotations that are too long to be recorded; the same pods where there is none."""
    return tuple(map(_bounded, pods))


def _bounded(pod: Pod) -> Pod:
    annotations = pod.metadata.annotations
    if not annotations:
        return pod
    kept: dict[str, str] = {}
    left = _MAX_POD
    # The short ones first: of those that are too much together the longest are left out.
    for key, value in sorted(annotations.items(), key=lambda each: len(each[1])):
        limit = _MAX_VALUE if key.partition("/")[0].endswith(_DOMAINS) else _MAX_FOREIGN
        if len(value) <= limit and len(key) + len(value) <= left:
            kept[key] = value
            left -= len(key) + len(value)
    if len(kept) == len(annotations):
        return pod
    return replace(pod, metadata=replace(pod.metadata, annotations=kept))
