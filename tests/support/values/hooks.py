"""Pods for tests of runtime hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.kube.cache.objects import Pod
from koordebpf.state.pods.hook_pods import HookPod, hook_pod


def batch(request: int = 0, limit: int = 0, memory: int = 0) -> dict[str, dict[str, int]]:
    """Return resources with batch-cpu and, where they are not 0, limits of batch-cpu and batch-memory."""
    limits = {"kubernetes.io/batch-cpu": limit, "kubernetes.io/batch-memory": memory}
    requests = {"kubernetes.io/batch-cpu": request, "kubernetes.io/batch-memory": memory}
    return {
        "requests": {name: value for name, value in requests.items() if value},
        "limits": {name: value for name, value in limits.items() if value},
    }


def batch_pod_object(
    qos: str = "BE",
    containers: Mapping[str, Any] | None = None,
    *,
    init: Mapping[str, Any] | None = None,
    sidecars: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    kube_qos: str = "BestEffort",
    uid: str = "uid-1",
    name: str = "web",
) -> Pod:
    """Return a Pod object; containers are name → resources, and each has the id `id-<name>`."""
    names = [*(containers or {}), *(init or {}), *(sidecars or {})]
    return msgspec.convert(
        {
            "metadata": {
                "uid": uid,
                "namespace": "team",
                "name": name,
                "labels": {**({"koordinator.sh/qosClass": qos} if qos else {}), **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": {
                "containers": [{"name": each, "resources": given} for each, given in (containers or {}).items()],
                "initContainers": [
                    *({"name": each, "resources": given} for each, given in (init or {}).items()),
                    *(
                        {"name": each, "resources": given, "restartPolicy": "Always"}
                        for each, given in (sidecars or {}).items()
                    ),
                ],
            },
            "status": {
                "phase": "Running",
                "qosClass": kube_qos,
                "containerStatuses": [{"name": each, "containerID": f"containerd://id-{each}"} for each in names],
            },
        },
        Pod,
    )


def hook_pod_of(qos: str, containers: Mapping[str, Any], **given: Any) -> HookPod:
    """Return such a pod as hooks see it, with the cgroup `kubepods/pod<uid>`."""
    pod = batch_pod_object(qos, containers, **given)
    return hook_pod(pod, pod.status.qosClass, f"kubepods/pod{pod.uid}")
