"""Nodes with pods and reports of all kinds: what two programs that compute batch and mid resources are compared on."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from tests.cluster.api import Api, Object
from tests.cluster.objects import node

_MIB = 1 << 20
_QOS = ("LSE", "LSR", "LS", "BE", "")
_BANDS = ("koord-prod", "koord-mid", "koord-batch", "koord-free", "")
_PREFIX = "node.koordinator.sh"


def _amount(random_: random.Random, cpu: int, mib: int) -> Object:
    return {"cpu": f"{random_.randint(0, cpu)}m", "memory": str(random_.randint(0, mib) * _MIB)}


class ColocatedWorld:
    """`count` Nodes of which the API server alone knows, their pods and what their NodeMetrics say; by `seed`."""

    def __init__(self, api: Api, namespace: str, count: int, seed: int) -> None:
        self.names = [f"w{seed}-{number}" for number in range(count)]
        self._api = api
        self._namespace = namespace
        self._random = random.Random(seed)
        self._pods = {
            name: [self._pod(name, number) for number in range(self._random.randint(0, 6))] for name in self.names
        }
        self._nodes = [self._node(name) for name in self.names]

    def create(self) -> None:
        """Create Nodes and pods."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._api.create, self._nodes))
            list(pool.map(self._create_pod, [pod for pods in self._pods.values() for pod in pods]))

    def report(self, node_metric: Any) -> None:
        """Write the status of each NodeMetric as it is now; `node_metric` returns the object of a Node's name."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self._report(node_metric(name), name), self.names))

    def _node(self, name: str) -> Object:
        random_ = self._random
        made = node(name, random_.randint(2, 64) * 1024 * _MIB)
        capacity = made["status"]["capacity"] | {"cpu": str(random_.randint(1, 64))}
        kept = {"cpu": f"{random_.randint(0, 900)}m", "memory": str(random_.randint(0, 900) * _MIB)}
        made["status"]["capacity"] = capacity
        made["status"]["allocatable"] = capacity | {
            "cpu": f"{int(capacity['cpu']) * 1000 - int(kept['cpu'][:-1])}m",
            "memory": str(int(capacity["memory"]) - int(kept["memory"])),
        }
        annotations, labels = {}, {}
        if random_.random() < 0.3:
            annotations[f"{_PREFIX}/reservation"] = json.dumps({"resources": _amount(random_, 2000, 2000)})
        if random_.random() < 0.2:
            strategy = {"cpuReclaimThresholdPercent": random_.randint(10, 90), "memoryCalculatePolicy": "request"}
            annotations[f"{_PREFIX}/colocation-strategy"] = json.dumps(strategy)
        if random_.random() < 0.2:
            labels[f"{_PREFIX}/memory-reclaim-ratio"] = random_.choice(("0.5", "0.813", "x", "1"))
        made["metadata"] |= {"annotations": annotations, "labels": labels}
        return made

    def _pod(self, node_name: str, number: int) -> Object:
        random_ = self._random
        band, qos = random_.choice(_BANDS), random_.choice(_QOS)
        labels = {"koordinator.sh/priority-class": band, "koordinator.sh/qosClass": qos}
        wanted = _amount(random_, 4000, 4000)
        container = {"name": "c", "image": "i", "resources": {"requests": wanted} if random_.random() < 0.8 else {}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{node_name}-{number}",
                "namespace": self._namespace,
                "labels": {key: value for key, value in labels.items() if value},
            },
            "spec": {"nodeName": node_name, "containers": [container], "terminationGracePeriodSeconds": 0},
            "status": {"phase": random_.choice(("Running", "Running", "Running", "Pending", "Succeeded", "Failed"))},
        }

    def _create_pod(self, pod: Object) -> None:
        made = self._api.create({key: value for key, value in pod.items() if key != "status"})
        self._api.patch(made, {"status": pod["status"]}, "status")

    def _report(self, metric: Object, name: str) -> None:
        random_ = random.Random(name)
        reported = [pod for pod in self._pods[name] if random_.random() < 0.8]
        pods = [self._use(pod["metadata"]["name"], random_, pod["metadata"]["labels"]) for pod in reported]
        if random_.random() < 0.3:
            pods.append(self._use("gone", random_, {"koordinator.sh/priority-class": random_.choice(_BANDS)}))
        applications = [
            {"name": "a", "usage": {"resources": _amount(random_, 900, 900)}, "priority": band, "qos": qos}
            for band, qos in ((random_.choice(_BANDS), random_.choice(_QOS)),)
            if random_.random() < 0.4
        ]
        status = {
            "updateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "nodeMetric": {
                "nodeUsage": {"resources": _amount(random_, 9000, 9000)},
                "systemUsage": {"resources": _amount(random_, 900, 900)},
            },
            "podsMetric": pods,
            "hostApplicationMetric": applications,
        }
        if random_.random() < 0.7:
            status["prodReclaimableMetric"] = {"resource": {"resources": _amount(random_, 5000, 5000)}}
        self._api.patch(metric, {"status": status}, "status")

    def _use(self, name: str, random_: random.Random, labels: Object) -> Object:
        return {
            "name": name,
            "namespace": self._namespace,
            "podUsage": {"resources": _amount(random_, 5000, 5000)},
            "priority": labels.get("koordinator.sh/priority-class", ""),
            "qos": labels.get("koordinator.sh/qosClass", ""),
        }
