"""Pods and nodes for tests of memory QoS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.slo.spec import parse_spec
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.state.pods.facts import pod_facts
from koordebpf.strategies.memory_qos.values import MemoryPod, MemoryQosRules, memory_pod
from tests.support.values.hooks import batch_pod_object

GIB, MIB = 1 << 30, 1 << 20
V2 = frozenset({
    CgroupFile.MEMORY_LIMIT, CgroupFile.MEMORY_MIN, CgroupFile.MEMORY_LOW, CgroupFile.MEMORY_HIGH,
    CgroupFile.MEMORY_OOM_GROUP,
})  # fmt: skip
ANOLIS = frozenset(each for each in CgroupFile if each.controller == "memory") - {CgroupFile.MEMORY_SOFT_LIMIT}
V1 = frozenset({CgroupFile.MEMORY_LIMIT, CgroupFile.MEMORY_SOFT_LIMIT})


def memory_qos(**classes: Mapping[str, object]) -> ResourceQOSStrategy:
    """Return what a NodeSLO says of each class, `ls={"minLimitPercent": 50}`, enabled unless it says otherwise."""
    strategy = {f"{name}Class": {"memoryQOS": {"enable": True, **given}} for name, given in classes.items()}
    spec, problems = parse_spec(json.dumps({"spec": {"resourceQOSStrategy": strategy}}).encode())
    assert not problems
    return spec.resourceQOSStrategy


def rules_of(files: frozenset[CgroupFile] = V2, **classes: Mapping[str, object]) -> MemoryQosRules:
    """Return the rules of a node with 16 GiB allocatable."""
    return MemoryQosRules(memory_qos(**classes), files, 16 * GIB)


def memory(request: int | str = 0, limit: int | str = 0, resource: str = "memory") -> dict[str, dict[str, Any]]:
    """Return a container's resources; 0: not written."""
    return {
        "requests": {resource: request} if request else {},
        "limits": {resource: limit} if limit else {},
    }


def memory_pod_of(qos: str, containers: Mapping[str, Any], own: object = None, **given: Any) -> MemoryPod:
    """Return a pod as memory QoS sees it; `own` is its annotation, as text or to be written as JSON."""
    given.setdefault("kube_qos", {"BE": "BestEffort"}.get(qos, "Burstable"))
    if own is not None:
        given["annotations"] = {"koordinator.sh/memoryQOS": own if isinstance(own, str) else json.dumps(own)}
    return memory_pod(pod_facts(batch_pod_object(qos, containers, **given)))
