"""The same pods for a cluster: the same scripts, in containers that see the checkout of their node. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from vagrant.scenarios.scenario import Pod, Scenario, script

IMAGE = "debian:trixie-slim"  # its C library is no older than the one that the node linked the loads with
_CHECKOUT = Path(__file__).parents[2]
_LS_PRIORITY = 9500


def manifest(name: str, scenario: Scenario) -> str:
    """Return what `kubectl apply` takes: a PriorityClass for each priority, and the pods."""
    priorities = sorted({_priority(pod) for pod in scenario.pods.values()})
    objects = [*map(_priority_class, priorities), *(_pod(name, *each) for each in scenario.pods.items())]
    return yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True)


def _priority(pod: Pod) -> int:
    return _LS_PRIORITY if pod.qos == "LS" else pod.priority


def _priority_class(priority: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"scenario-{priority}"},
        "value": priority,
        # Victims are koordebpf's choice here, not the scheduler's.
        "preemptionPolicy": "Never",
    }


def _pod(name: str, pod_name: str, pod: Pod) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": pod.qos, "scenario": name}
    resources: dict[str, Any] = {}
    if pod.qos == "LS":
        resources = {"requests": {"memory": "64Mi"}}
    if pod.batch_percent is not None:
        labels["koordinator.sh/eviction-enabled"] = "true"
        batch = {"kubernetes.io/batch-memory": "256Mi"}
        resources = {"requests": batch, "limits": batch}
    if pod.request_percent is not None:
        resources = {"requests": {"memory": "256Mi"}}
    if pod.cpu_millicpu is not None:
        cpu = {"cpu": f"{pod.cpu_millicpu}m"}
        resources = {"requests": cpu, "limits": cpu}
    if pod.limit_percent is not None:
        resources = {"requests": {"memory": "0"}, "limits": {"memory": "64Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_name, "labels": labels},
        "spec": {
            "priorityClassName": f"scenario-{_priority(pod)}",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "c0",
                    "image": IMAGE,
                    "command": [str(script(name, pod.runs))],
                    "resources": resources,
                    "volumeMounts": [{"name": "checkout", "mountPath": str(_CHECKOUT), "readOnly": True}],
                }
            ],
            "volumes": [{"name": "checkout", "hostPath": {"path": str(_CHECKOUT)}}],
        },
    }
