"""Batch pods that start at once on a node whose runtime asks the agent by NRI, and what each finds in its cgroup."""

from __future__ import annotations

import json

from koordebpf.units import MIB
from tests.cluster.api import Object
from tests.cluster.objects import pod as pod_object
from tests.node.agent import GuestAgent
from tests.node.node import GuestNode

_COUNT = 10
_CONFIG = "/etc/koordebpf/nri.yaml"
_SETTINGS = b"""\
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  BatchResource: true
nri:
  enabled: true
"""
_AMOUNTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": str(64 * MIB)}
_SPEC = json.dumps({"containers": {"load": {"requests": _AMOUNTS, "limits": _AMOUNTS}}})
# What it was started with, before anything of it can have been changed. One write, so that a log has all or nothing.
_SHOW = (
    "cd /sys/fs/cgroup && busybox echo $(busybox cat cpu.weight) $(busybox cat cpu.max) $(busybox cat memory.max);"
    " exec /bin/busybox sleep 100000"
)
_LIMITED = f"20 50000 100000 {64 * MIB}"  # cpu.shares 512 are the weight 20
_START_S = 300
# An emulated plugin needs more than the 2 s after which containerd counts it as gone, and starts containers without it.
_PATIENT = (
    "grep -q plugin_request_timeout /etc/containerd/config.toml || {"
    """ sed -i 's/^  disable = false$/&\\n  plugin_request_timeout = "60s"/' /etc/containerd/config.toml &&"""
    " systemctl restart containerd; }"
)


def expect_all_start_limited(node: GuestNode) -> str:
    """Create ten batch pods at once, each of which has its limits at its first instruction; return how many had.

    The agent runs meanwhile, and afterwards nothing of it or of the pods is left.
    """
    node.guest.write(_CONFIG, _SETTINGS)
    if node.guest.machine.runtime == "containerd":
        node.guest.check(_PATIENT)
    agent = node.agent("--enforce", "--config", _CONFIG)
    try:
        agent.wait_for_log("NRI: registered with")
        made = [_batch_pod(node, f"nri-{number}") for number in range(_COUNT)]
        seen: dict[str, str] = {}

        def all_have_started() -> bool:
            seen.update({each["metadata"]["name"]: _printed(node, each) for each in made})
            return all(seen.values())

        node.until(all_have_started, "all pods have started", _START_S)
        assert seen == {each["metadata"]["name"]: _LIMITED for each in made}, seen
        _expect_adjusted(agent)
    finally:
        agent.stop()
    for each in made:
        node.api.delete(each, gracePeriodSeconds=0)
    node.until(lambda: not any(node.pod(each["metadata"]["name"]) for each in made), "the pods are gone", _START_S)
    return f"{_COUNT} of {_COUNT} pods"


def _batch_pod(node: GuestNode, name: str) -> Object:
    annotations = {"node.koordinator.sh/extended-resource-spec": _SPEC}
    return node.api.create(pod_object(name, node.name, "/bin/sh", "-c", _SHOW, annotations=annotations))


def _printed(node: GuestNode, pod: Object) -> str:
    """Return what a pod's container has printed; empty: nothing yet."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    log = node.guest.run(f"cat /var/log/pods/default_{name}_{uid}/load/*.log 2>/dev/null").text.strip()
    return log.split(" ", 3)[3] if log else ""


def _expect_adjusted(agent: GuestAgent) -> None:
    assert agent.metric("koordebpf_nri_adjusted_containers_total") == _COUNT
    assert agent.metric("koordebpf_nri_registrations_total") == 1
    assert agent.metric("koordebpf_nri_errors_total") == 0
