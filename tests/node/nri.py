"""Batch pods of a guest, and what their containers found in their cgroups when their first instruction ran."""

from __future__ import annotations

import json

from koordebpf.units import MIB
from tests.cluster.api import Object
from tests.cluster.objects import pod
from tests.node.node import GuestNode

_AMOUNTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": str(64 * MIB)}
_SPEC = {"containers": {"load": {"requests": _AMOUNTS, "limits": _AMOUNTS}}}
_ANNOTATIONS = {"node.koordinator.sh/extended-resource-spec": json.dumps(_SPEC)}
_SHOW = "cd /sys/fs/cgroup; busybox cat cpu.weight cpu.max memory.max; exec sleep 100000"
# cpu.weight of 512 shares, as runc and crun convert them.
LIMITED = ["20", "50000 100000", str(64 * MIB)]
# What a kubelet gives a pod of class BestEffort.
UNLIMITED = ["1", "max 100000", "max"]
_LINES = len(LIMITED)
_STARTED_S = 120


def batch_pods(node: GuestNode, name: str, count: int = 1) -> list[Object]:
    """Create batch pods at once; return them."""
    command = ("/bin/sh", "-c", _SHOW)
    names = [f"{name}-{number}" for number in range(count)]
    return [node.api.create(pod(each, node.name, *command, annotations=_ANNOTATIONS)) for each in names]


def found(node: GuestNode, pods: list[Object]) -> list[list[str]]:
    """Wait until each has run; return what each has found: weight, quota and memory limit."""
    node.until(lambda: all(len(_shown(node, each)) == _LINES for each in pods), "every pod has run", _STARTED_S)
    return [_shown(node, each) for each in pods]


def remove(node: GuestNode, pods: list[Object]) -> None:
    """Delete pods; return when their slices are gone."""
    for each in pods:
        node.api.delete(each, gracePeriodSeconds=0)
    uids = " ".join(str(each["metadata"]["uid"]).replace("-", "_") for each in pods)
    left = f"for uid in {uids}; do ls -d /sys/fs/cgroup/kubepods.slice/*/*$uid.slice 2>/dev/null; done; true"
    node.until(lambda: not node.guest.check(left).strip(), "the pods' slices are gone", _STARTED_S)


def _shown(node: GuestNode, of: Object) -> list[str]:
    meta = of["metadata"]
    folder = f"/var/log/pods/{meta['namespace']}_{meta['name']}_{meta['uid']}/load"
    return [line.split(" ", 3)[3] for line in node.guest.run(f"cat {folder}/*.log 2>/dev/null").text.splitlines()]
