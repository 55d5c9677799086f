"""Pods that were resized in place, as the kubelet reports them, and pods with resources of their own level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.kube.cache.objects import Pod


def resized(pod: Pod, asked: Mapping[str, Any], reason: str = "Infeasible") -> Pod:
    """Return a pod whose owner asked for other resources of its containers; what it had is allocated and actual.

    `reason`: what the kubelet says of it; "": nothing yet.
    """
    written = msgspec.to_builtins(pod)
    ids = {each["name"]: each.get("containerID", "") for each in written["status"].get("containerStatuses") or ()}
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    written["status"]["conditions"] = [pending] if reason else []
    written["status"]["containerStatuses"] = [
        {
            "name": each["name"],
            "containerID": ids.get(each["name"], ""),
            "allocatedResources": each["resources"]["requests"],
            "resources": each["resources"],
        }
        for each in written["spec"]["containers"]
    ]
    for each in written["spec"]["containers"]:
        each["resources"] = asked
    return msgspec.convert(written, Pod)


def whole(pod: Pod, resources: Mapping[str, Any], *, beside_containers: bool = False) -> Pod:
    """Return a pod with these resources at its own level (spec.resources), in place of those of its containers."""
    written = msgspec.to_builtins(pod)
    written["spec"]["resources"] = resources
    for each in () if beside_containers else written["spec"]["containers"]:
        each["resources"] = {}
    return msgspec.convert(written, Pod)


def whole_resized(pod: Pod, asked: Mapping[str, Any], reason: str = "Infeasible") -> Pod:
    """Return such a pod whose owner asked for other resources of its own level; what it had is allocated and actual.

    `reason`: what the kubelet says of it; "": nothing yet.
    """
    written = msgspec.to_builtins(pod)
    had = written["spec"]["resources"]
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    written["status"]["conditions"] = [pending] if reason else []
    written["status"] |= {"resources": had, "allocatedResources": had["requests"]}
    written["spec"]["resources"] = asked
    return msgspec.convert(written, Pod)
