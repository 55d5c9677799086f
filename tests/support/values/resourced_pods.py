"""Pods for Kubernetes' own functions to count: resized, with resources of their own level, sidecars and overhead."""

from __future__ import annotations

from random import Random
from typing import Any

Written = dict[str, Any]
_MEMORY = ("0", "1", "64Mi", "100M", "512Mi", "1Gi", "1536Mi", "3G", "8Gi", "64Gi")
_CPU = ("0", "1m", "100m", "250m", "1", "1500m", "2", "4", "64")
_OTHER = {
    "hugepages-2Mi": ("2Mi", "4Mi", "64Mi"),
    "kubernetes.io/batch-cpu": ("500", "2k"),
    "nvidia.com/gpu": ("1", "2"),
}
_PENDING = ("Deferred", "Infeasible")


def resourced_pods(seed: int, count: int) -> list[Written]:
    """Return Pod objects. The same seed gives the same ones."""
    rng = Random(seed)
    return [_pod(rng, at) for at in range(count)]


def _pod(rng: Random, at: int) -> Written:
    main = [_container(rng, f"c{each}") for each in range(rng.randint(1, 3))]
    init = [_container(rng, f"i{each}") for each in range(rng.choice((0, 0, 1, 2, 3)))]
    for each in init:
        if rng.random() < 0.5:
            each["restartPolicy"] = "Always"
    spec: Written = {"containers": main}
    if init:
        spec["initContainers"] = init
    if rng.random() < 0.3:
        spec["overhead"] = {"cpu": rng.choice(_CPU), "memory": rng.choice(_MEMORY)}
    if rng.random() < 0.5:
        spec["resources"] = _resources(rng, is_level=True)
    pod = {"metadata": {"name": f"p{at}", "namespace": "n", "uid": f"u{at}"}, "spec": spec, "status": {}}
    if rng.random() < 0.5:
        pod["status"] = _status(rng, spec, main, init)
    return pod


def _container(rng: Random, name: str) -> Written:
    return {"name": name, "resources": _resources(rng, is_level=False)}


def _resources(rng: Random, *, is_level: bool) -> Written:
    kind = rng.choice(("none", "empty", "requests", "limits", "both", "both", "equal", "equal"))
    if kind in ("none", "empty"):
        return {} if kind == "none" else {"requests": {}, "limits": {}}
    if kind == "equal":
        both = _amounts(rng) | _others(rng, is_level=is_level)
        return {"requests": both, "limits": both}
    if kind == "both":
        others = _others(rng, is_level=is_level)
        return {"requests": _amounts(rng) | others, "limits": _amounts(rng) | others}
    return {kind: _amounts(rng)}


def _amounts(rng: Random) -> Written:
    found: Written = {}
    if rng.random() < 0.8:
        found["memory"] = rng.choice(_MEMORY)
    if rng.random() < 0.8:
        found["cpu"] = rng.choice(_CPU)
    return found


# Requests and limits of these are equal, or the API server refuses the pod.
def _others(rng: Random, *, is_level: bool) -> Written:
    names = [name for name in _OTHER if name.startswith("hugepages") or not is_level]
    return {name: rng.choice(_OTHER[name]) for name in names if rng.random() < 0.15}


# The API server has been there before a kubelet reports anything: a limit without a request is both.
def _status(rng: Random, spec: Written, main: list[Written], init: list[Written]) -> Written:
    for each in (*main, *init):
        resources = each["resources"]
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    level = spec.get("resources")
    if level:
        for each in (*main, *init):
            for written in each["resources"].values():
                written.pop("hugepages-2Mi", None)  # the API server would have written them at the pod's level
    if level and level.get("limits"):
        level["requests"] = {**level["limits"], **level.get("requests", {})}
        for each in (*main, *init):
            for name in each["resources"].get("requests", {}):
                if name in ("cpu", "memory"):
                    level["requests"].setdefault(name, rng.choice(_CPU if name == "cpu" else _MEMORY))
    status: Written = {
        "containerStatuses": [_reported(rng, each) for each in main if rng.random() < 0.9],
        "initContainerStatuses": [_reported(rng, each) for each in init if rng.random() < 0.9],
    }
    kind = rng.random()
    if kind < 0.6:
        pending = {"type": "PodResizePending", "status": "True", "reason": rng.choice(_PENDING)}
        status["conditions"] = [pending if kind < 0.4 else {"type": "PodResizeInProgress", "status": "True"}]
    if level is not None and rng.random() < 0.7:
        status |= {key: each for key, each in _reported(rng, {"name": "", "resources": level}).items() if key != "name"}
    return status


def _reported(rng: Random, of: Written) -> Written:
    found: Written = {"name": of["name"]}
    if rng.random() < 0.9:
        other = {"requests": _amounts(rng), "limits": _amounts(rng)}
        found["resources"] = of["resources"] if rng.random() < 0.4 else other
    if rng.random() < 0.7:
        requests = of["resources"].get("requests", {})
        found["allocatedResources"] = requests if rng.random() < 0.4 else _amounts(rng)
    return found
