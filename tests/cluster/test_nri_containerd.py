"""A real containerd with NRI: what pods find in their cgroups when their first instruction runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.units import MIB
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries, CannotHave, say_line
from tests.cluster.control_plane import ControlPlane
from tests.cluster.newer_containerd import newer_containerd
from tests.cluster.newest_containerd import newest_containerd
from tests.cluster.node import RealNode
from tests.cluster.objects import pod
from tests.cluster.required import require_real_node
from tests.cluster.story import NODE_BYTES, Story
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent

pytestmark = [pytest.mark.kubelet, pytest.mark.slow]

AMOUNTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": str(64 * MIB)}
MANY = {"kubernetes.io/batch-cpu": "100k", "kubernetes.io/batch-memory": "100Gi"}
# What it was started with, before anything of it can have been changed.
SHOW = (
    "busybox cat /sys/fs/cgroup/cpu/cpu.shares /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
    " /sys/fs/cgroup/memory/memory.limit_in_bytes; exec sleep 600"
)
LIMITED = ["512", "50000", str(64 * MIB)]
CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  BatchResource: true
nri:
  enabled: true
  backoff: 50ms
  socket: {}
"""
RUNTIMES = {"1.7": newer_containerd, "2.2": newest_containerd}
PODS = {"1.7": 20, "2.2": 100}  # at once


@pytest.fixture(scope="module", params=RUNTIMES)
def nri_node(cluster: ControlPlane, binaries: Binaries, request: pytest.FixtureRequest) -> Iterator[RealNode]:
    """A node whose containerd has NRI."""
    require_real_node()
    try:
        folder = RUNTIMES[request.param](say_line)
    except CannotHave as error:
        pytest.skip(f"no containerd with NRI: {error}")
    made = RealNode(cluster, binaries, f"nri-{request.param.replace('.', '-')}", NODE_BYTES, containerd=folder)
    version = made.runtime_version()
    assert version.startswith(f"containerd://{request.param}."), version
    yield made
    made.close()


@pytest.fixture
def nri(cluster: ControlPlane, nri_node: RealNode, namespace: str, tmp_path: Path) -> Iterator[Story]:
    story = Story(cluster, nri_node, namespace, tmp_path)
    # The kubelet refuses a pod that requests more than its Node has.
    story.api.patch(nri_node.object, {"status": {"capacity": MANY, "allocatable": MANY}}, "status")
    story.until(
        lambda: MANY.items() <= (story.api.get(nri_node.object) or {})["status"]["allocatable"].items(),
        "batch resources",
    )
    yield story
    story.close()


def started(story: Story, folder: Path) -> LiveAgent:
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(story.node.nri_socket))
    agent = story.agent("--config", config)
    agent.said("NRI: registered with containerd")
    return agent


def batch_pod(story: Story, name: str) -> Object:
    spec = {"containers": {"load": {"requests": AMOUNTS, "limits": AMOUNTS}}}
    annotations = {"node.koordinator.sh/extended-resource-spec": json.dumps(spec)}
    command = ("/bin/sh", "-c", SHOW)
    has = {"annotations": annotations, "requests": AMOUNTS, "limits": AMOUNTS}
    return story.api.create(pod(name, story.node.name, *command, namespace=story.namespace, **has))


def shown(story: Story, of: Object) -> list[str]:
    """Return what the pod's container has printed."""
    return [line.split(" ", 3)[3] for line in story.node.container_log(of).splitlines()]


def wait_for_values(story: Story, of: Object) -> list[str]:
    found: list[str] = story.until(
        lambda: found if len(found := shown(story, of)) == 3 else None, f"{of['metadata']['name']}: {shown(story, of)}"
    )
    return found


def test_a_batch_pod_is_limited_when_its_first_instruction_runs(nri: Story, tmp_path: Path) -> None:
    without = batch_pod(nri, "without")
    assert wait_for_values(nri, without)[:2] == ["2", "-1"]  # what kubelet gives a pod of class BestEffort
    agent = started(nri, tmp_path)
    limited = batch_pod(nri, "limited")
    assert wait_for_values(nri, limited) == LIMITED
    assert agent.metric("koordebpf_nri_adjusted_containers_total") == 1
    # The pod's own level is the reconciler's, and so is the pod that was there before.
    for each in (without, limited):
        cgroup = nri.node.pod_cgroup(each)
        assert cgroup is not None
        limit = cgroup / "memory.limit_in_bytes"
        nri.until(lambda limit=limit: int(limit.read_text()) == 64 * MIB, "the limit of the pod's own level")
    assert agent.stop() == 0
    remove(nri, without, limited)


def test_an_agent_that_is_killed_while_a_pod_starts_stops_no_pod(nri: Story, tmp_path: Path) -> None:
    agent = started(nri, tmp_path)
    first = batch_pod(nri, "first")
    nri.until(lambda: agent.metric("koordebpf_nri_adjusted_containers_total") == 1, "the call of CreateContainer")
    agent.stop(signal.SIGKILL)  # the container is created, or started meanwhile
    assert wait_for_values(nri, first) == LIMITED
    alone = batch_pod(nri, "alone")
    assert len(wait_for_values(nri, alone)) == 3
    agent = started(nri, tmp_path)
    again = batch_pod(nri, "again")
    assert wait_for_values(nri, again) == LIMITED
    assert agent.stop() == 0
    remove(nri, first, alone, again)


def test_many_pods_at_once_all_start_limited(nri: Story, tmp_path: Path) -> None:
    count = PODS[nri.node.runtime_version().removeprefix("containerd://")[:3]]
    agent = started(nri, tmp_path)
    made = [batch_pod(nri, f"pod-{number}") for number in range(count)]
    until(lambda: all(len(shown(nri, each)) == 3 for each in made), lambda: f"{count} pods\n{agent.log[-2000:]}", 300)
    assert [shown(nri, each) for each in made] == [LIMITED] * count
    assert agent.metric("koordebpf_nri_adjusted_containers_total") == count
    calls = agent.metric('koordebpf_nri_call_seconds_count{method="CreateContainer",result="succeeded"}')
    quick = agent.metric('koordebpf_nri_call_seconds_bucket{le="0.005",method="CreateContainer",result="succeeded"}')
    print(f"{quick:g} of {calls:g} calls within 5 ms")
    assert calls == count
    assert agent.stop() == 0
    remove(nri, *made)


def remove(story: Story, *pods: Any) -> None:
    for each in pods:
        story.api.delete(each, gracePeriodSeconds=0)
    until(lambda: not any(story.node.pod_cgroup(each) for each in pods), "the pods' cgroups are gone", 120)
