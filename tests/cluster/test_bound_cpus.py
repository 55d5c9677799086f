"""Which CPUs a real kubelet with policy static bound: its PodResources socket says the same as its own file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest

from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.clients.kubelet import BoundCpus, bound_cpus
from koordebpf.kube.sources.cpu_manager import CpuManagerFile, CpuManagerState
from koordebpf.state.pods.facts import PodFacts, pod_facts
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.node import RealNode
from tests.cluster.objects import GIB, PRIORITIES, pod
from tests.cluster.required import require_real_node
from tests.contract.apiserver import until

pytestmark = pytest.mark.kubelet

STATIC = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
WHOLE = {"cpu": "1", "memory": "64Mi"}


@pytest.fixture(scope="module")
def cluster(binaries: Binaries) -> Iterator[ControlPlane]:
    """A cluster of its own: a control plane has one node."""
    with control_plane(binaries.kubernetes) as plane:
        for name, value in PRIORITIES.items():
            priority = {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
            plane.api.create({"apiVersion": "scheduling.k8s.io/v1", **priority})
        yield plane


@pytest.fixture(scope="module")
def binding(cluster: ControlPlane, binaries: Binaries) -> Iterator[RealNode]:
    require_real_node()
    if (os.cpu_count() or 1) < 2:
        pytest.skip("not this kind of machine: of one CPU none can be bound")
    made = RealNode(cluster, binaries, "static", GIB, kubelet=STATIC)
    yield made
    made.close()


def facts(cluster: ControlPlane, one: Object) -> PodFacts:
    found = cluster.api.get(one)
    assert found is not None
    return pod_facts(msgspec.convert(found, Pod, strict=False))


@pytest.mark.slow
def test_the_socket_says_what_the_file_says(cluster: ControlPlane, binding: RealNode) -> None:
    socket = binding.kubelet_folder / "pod-resources/kubelet.sock"
    file = CpuManagerFile(binding.kubelet_folder / "cpu_manager_state")
    said = bound_cpus(socket)
    assert said == BoundCpus(tuple(range(1, os.cpu_count() or 1)))
    cpus = KubeletCpus(socket)
    try:
        cpus.request([], 0)
        until(lambda: cpus.read() == CpuManagerState("static", {}), "kubelet's policy")
        whole = pod("whole", binding.name, priority="koord-prod", qos="LS", requests=WHOLE, limits=WHOLE)
        shared = pod("shared", binding.name, qos="LS", priority="koord-prod")
        bound, _ = cluster.api.create(whole), cluster.api.create(shared)
        until(lambda: facts(cluster, bound).phase == "Running", "the pod runs")
        cpus.request([facts(cluster, bound), facts(cluster, shared)], 0)
        (pinned,) = until(lambda: (found := cpus.read()) and found.pinned.values(), "the CPUs that it got")
        assert len(pinned) == 1
        assert pinned != (0,)
        of_file = file.read()
        assert of_file is not None
        assert cpus.read() == CpuManagerState(of_file.policy, of_file.pinned)
        assert of_file.pinned.keys() == {bound["metadata"]["uid"]}
        cluster.api.delete(bound, gracePeriodSeconds=1)
        cluster.api.wait_gone(bound)
        cpus.request([facts(cluster, shared)], 0)
        until(lambda: (found := cpus.read()) is not None and not found.pinned, "the CPUs are free again")
    finally:
        cpus.close()
