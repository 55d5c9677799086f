"""A controller with batch and mid resources whose looks a test takes itself; and the objects it reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from koordebpf.controller.batch.facts import READERS
from koordebpf.controller.batch.part import BatchResources
from koordebpf.controller.batch.publish import Publisher
from koordebpf.controller.batch.start import MANAGER_LEASE, MANAGER_NAMESPACE, KoordManager
from koordebpf.kube.clients.lease import LeaseClient
from koordebpf.kube.clients.nodeslos import ControllerSource
from koordebpf.kube.colocation.nodes import decode_colocation_node
from koordebpf.kube.colocation.source import ColocationSource
from koordebpf.kube.colocation.writes import ColocationWriter
from koordebpf.kube.http.transport import open_cluster
from tests.contract.apiserver import until
from tests.contract.controller_rig import PACE
from tests.contract.objectstore import NODES, Store, config_map

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"
GIB = 1024**3


class BatchRig:
    """`clock_ns` is the publisher's; nothing waits for a second to pass."""

    def __init__(self, kubeconfig: Path, *, adopt: bool = False, dry_run: bool = False) -> None:
        self.clock_ns = 10**12
        self.leads = True
        self.nodes = ControllerSource(open_cluster(kubeconfig), PACE, decode_colocation_node)
        self.source = ColocationSource(open_cluster(kubeconfig), READERS, PACE)
        self.transport = open_cluster(kubeconfig)
        writer = None if dry_run else ColocationWriter(self.transport)
        self.publisher = Publisher(writer, adopts=adopt, now_ns=lambda: self.clock_ns)
        manager = KoordManager(LeaseClient(self.transport, MANAGER_NAMESPACE, MANAGER_LEASE))
        self.batch = BatchResources(self.source, self.publisher, lambda _: manager.sentence(self.clock_ns))
        self.woken = threading.Event()
        self.nodes.start(self.woken.set)
        self.source.start()

    def look(self) -> tuple[str, ...]:
        self.clock_ns += 10**8
        self.batch.looked = type(self.batch.looked)(0)
        return self.batch.run_due(self.nodes.state(), lambda: self.leads).problems

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return until(lambda: (self.look(), condition())[1], what)

    def close(self) -> None:
        self.nodes.close()
        self.source.close()
        self.transport.close()


def colocation(**fields: Any) -> dict[str, Any]:
    return config_map(colocation_config={"enable": True, **fields})


def big_node(name: str, **more: Any) -> dict[str, Any]:
    """Of 100 cores and 400 GiB; kubelet keeps nothing."""
    amounts = {"cpu": "100", "memory": "400Gi"}
    meta = {"name": name, "labels": more.get("labels", {}), "annotations": more.get("annotations", {})}
    if "managed" in more:
        meta["managedFields"] = more["managed"]
    status = {"capacity": {**amounts, **more.get("has", {})}, "allocatable": {**amounts, **more.get("has", {})}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}


def pod(name: str, node: str, cpu: str, memory: str, **more: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "d", "labels": more.get("labels", {})},
        "spec": {"nodeName": node, "priority": 9000, "containers": [{"name": "c", "resources": resources}]},
        "status": {"phase": more.get("phase", "Running"), "qosClass": "Burstable"},
    }


def report(name: str, system: tuple[str, str], *pods: tuple[str, str, str], age_s: float = 10, **more: Any) -> Any:
    def resources(cpu: str, memory: str) -> dict[str, Any]:
        return {"resources": {"cpu": cpu, "memory": memory}}

    at = datetime.now(UTC) - timedelta(seconds=age_s)
    status = {
        "updateTime": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "nodeMetric": {"systemUsage": resources(*system), "nodeUsage": resources(*more.get("node", ("0", "0")))},
        "podsMetric": [
            {"namespace": "d", "name": pod, "podUsage": resources(cpu, memory), "priority": "koord-prod", "qos": "LS"}
            for pod, cpu, memory in pods
        ],
        "prodReclaimableMetric": {"resource": resources(*more.get("reclaimable", ("0", "0")))},
    }
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": name},
        "status": status,
    }


def allocatable(store: Store, name: str) -> dict[str, int]:
    """Return the extended resources of a Node, which has the same of each in its capacity."""
    status = store.objects[NODES][name]["status"]
    found = {key: value for key, value in status["allocatable"].items() if "/" in key}
    assert found == {key: value for key, value in status["capacity"].items() if "/" in key}
    return {key: int(value) for key, value in found.items()}
