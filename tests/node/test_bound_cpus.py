"""Pods with CPUs and memory of their own, of a kubelet with policy static: suppression leaves them what they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.api import Object
from tests.node.agent import GuestAgent
from tests.node.followed import GuestFollowed
from tests.node.joining import KUBELET_CONFIG
from tests.node.node import GuestNode
from tests.node.slices import FOLDER, cpus_of

# The memory manager wants what is reserved otherwise: systemReserved, and what evictionHard keeps available (50 MiB).
STATIC = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
memoryManagerPolicy: Static
systemReserved:
  memory: 450Mi
reservedMemory:
- numaNode: 0
  limits:
    memory: 500Mi
"""
STATES = "/var/lib/kubelet/cpu_manager_state /var/lib/kubelet/memory_manager_state"
WHOLE = {"cpu": "1", "memory": "64Mi"}


@pytest.fixture
def bound(node: GuestNode, pod: Callable[..., Object]) -> Object:
    """A pod with a CPU of its own, and memory of a NUMA node."""
    node.guest.check(f"cat >>{KUBELET_CONFIG}", given=STATIC.encode())
    node.guest.check(f"systemctl stop kubelet && rm -f {STATES} && systemctl start kubelet")
    return pod("whole", qos="LS", priority="koord-prod", requests=WHOLE, limits=WHOLE)


@pytest.mark.parametrize(("policy", "file"), [("cpuset", "cpuset.cpus"), ("cfsQuota", "cpu.max")])
def test_pods_with_cpus_of_their_own_keep_them(
    node: GuestNode, bound: Object, agent: Callable[..., GuestAgent], policy: str, file: str
) -> None:
    scope = node.container_cgroup(bound)
    (own,) = cpus_of(node.guest.check(f"cat {scope}/cpuset.cpus"))
    nodes = node.guest.check(f"cat {scope}/cpuset.mems").strip()
    assert nodes == "0", "the memory manager gave it its NUMA node"
    before = node.guest.check(f"cat {FOLDER}/{file}")
    with GuestFollowed(node.guest, f"{scope}/cpuset.cpus") as followed:
        # WHEN best-effort pods are held
        node.set_thresholds(cpuSuppressThresholdPercent=60, cpuSuppressPolicy=policy)
        holding = agent("enforce")
        node.until(lambda: node.guest.check(f"cat {FOLDER}/{file}") != before, "best-effort pods are held")
        # THEN none of them runs on that CPU, and the pod keeps it and its memory, also when all is restored
        effective = cpus_of(node.guest.check(f"cat {FOLDER}/cpuset.cpus.effective"))
        if policy == "cpuset":
            assert own not in effective
        holding.stop()
        spans = followed.spans()
    assert [cpus_of(span.value) for span in spans] == [{own}]
    assert node.guest.check(f"cat {scope}/cpuset.mems").strip() == nodes
