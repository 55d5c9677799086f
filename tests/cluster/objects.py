"""What a cluster of the tests holds: the objects of deploy/, priorities, nodes, pods, budgets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Api, Object, Refused
from tests.cluster.binaries import IMAGE
from tests.cluster.processes import wait_for

BASE = Path(__file__).parents[2] / "deploy" / "base"
BOOTSTRAP = BASE.parent / "bootstrap"
NAMESPACE = "koordebpf-system"
AGENT = "koordebpf-agent"
# Events on what was done to a pod: a warning that it is evicted soon may come before.
DONE_EVENTS = "source=koordebpf,reason!=EvictionSoon"
# Priorities come from classes: the API server lets no pod name a number. Koordinator's koord-batch is 5000 to 5999.
PRIORITIES = {"koord-prod": 9500, "koord-batch-high": 5500, "koord-batch": 5000}
GIB = 1 << 30
_NOT_SERVED_YET = (404, 429, 503)  # of a CRD that was accepted: its path, then its storage


def deployed(name: str) -> list[Object]:
    """Return the objects of one file of deploy/base."""
    return documents(BASE / name)


def documents(file: Path) -> list[Object]:
    """Return the objects of a YAML file."""
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


@contextlib.contextmanager
def applied(api: Api, file: Path) -> Iterator[None]:
    """Create the objects of a YAML file; afterwards delete them."""
    objects = documents(file)
    api.create(*objects)
    try:
        yield
    finally:
        for each in objects:
            api.delete(each)


@contextlib.contextmanager
def defined_by(api: Api, definition: Object) -> Iterator[None]:
    """Serve the objects of a CustomResourceDefinition; afterwards they are gone."""
    spec = definition["spec"]
    plural = spec["names"]["plural"]
    made = api.create(definition)
    try:
        wait_for(lambda: _serves(api, f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{plural}"), plural, ())
        yield
    finally:
        api.delete(made)
        api.wait_gone(made)


def install(api: Api) -> None:
    """Create what an administrator applies before the agents: namespaces, CRD, accounts with their rights, classes."""
    for name in ("namespace.yaml", "nodeslo-crd.yaml"):
        api.create(*documents(BOOTSTRAP / name))
    for name in ("namespace.yaml", "serviceaccount.yaml", "rbac.yaml"):
        api.create(*deployed(name))
    for name, value in PRIORITIES.items():
        priority = {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        api.create({"apiVersion": "scheduling.k8s.io/v1", **priority})
    wait_for(lambda: is_served(api, "NodeSLO"), "no NodeSLO is served", ())


def is_served(api: Api, kind: str) -> bool:
    """Tell whether objects of a CRD of Koordinator's can be listed yet."""
    return _serves(api, f"/apis/slo.koordinator.sh/v1alpha1/{kind.lower()}s")


def _serves(api: Api, path: str) -> bool:
    try:
        return "items" in api.call("GET", path)
    except Refused as error:
        if error.status in _NOT_SERVED_YET:
            return False
        raise


def node(name: str, memory_bytes: int = 3 * GIB) -> Object:
    """Return a Node that is only an object."""
    memory = str(memory_bytes)
    resources = {"cpu": "2", "memory": memory, "pods": "110"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def pod(
    name: str,
    node_name: str,
    *command: object,
    namespace: str = "default",
    qos: str = "BE",
    priority: str = "koord-batch",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    grace_s: int = 2,
) -> Object:
    """Return a pod bound to a node, whose one container runs `command` of the image; without one it sleeps."""
    container: Object = {"name": "load", "image": IMAGE, "imagePullPolicy": "Never"}
    if command:
        container["command"] = [str(part) for part in command]
    if requests or limits:
        container["resources"] = {"requests": dict(requests or {}), "limits": dict(limits or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": name, "koordinator.sh/qosClass": qos, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": node_name,
            "priorityClassName": priority,
            "containers": [container],
            # No network is needed, and none is set up.
            "hostNetwork": True,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s,
        },
    }


def nodeslo(node_name: str, **threshold: Any) -> Object:
    """Return a NodeSLO with `resourceUsedThresholdWithBE` switched on."""
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": node_name},
        "spec": {"resourceUsedThresholdWithBE": {"enable": True, **threshold}},
    }


def budget(name: str, app: str, min_available: int, namespace: str = "default") -> Object:
    """Return a PodDisruptionBudget over the pods of an app."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
    }


def running(started: Object, container_id: str = "") -> Object:
    """Return the status that a kubelet gives a pod of one container whose processes run."""
    state = {"running": {"startedAt": started["metadata"]["creationTimestamp"]}}
    container = {"name": "load", "ready": True, "restartCount": 0, "image": IMAGE, "imageID": "", "state": state}
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{**container, "containerID": f"containerd://{container_id}"}],
    }


def reasons(events: Sequence[Object]) -> list[tuple[str, str]]:
    """Return pod and reason of each Event, in their order."""
    return [(event["involvedObject"]["name"], event["reason"]) for event in events]
