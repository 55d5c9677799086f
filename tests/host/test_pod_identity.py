"""A tenant's pod that claims to be another one: no other pod is measured, ranked or killed as it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

HASH, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
NODE_OWNER = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-of-node-1", "controller": True}


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


def uid_of(node: NodeCgroup, name: str) -> str:
    return node.pod_paths[name].name.removeprefix("pod")


def manifest_of(node: NodeCgroup, name: str) -> dict[str, Any]:
    return next(each for each in node.pods if each["metadata"]["name"] == name)


def claim(node: NodeCgroup, name: str, uid: str, *, forged: bool) -> None:
    """Let a pod say that its cgroup bears this uid; forged: with all that a tenant can write of a mirror pod."""
    pod = manifest_of(node, name)
    node.pods.remove(pod)
    node.pods.append(pod)  # the last entry of the list wins
    pod["metadata"]["annotations"] = {HASH: uid}
    if forged:
        pod["metadata"] |= {"annotations": {HASH: uid, MIRROR: uid}, "ownerReferences": [NODE_OWNER]}
        pod["spec"]["nodeName"] = "node-1"


@pytest.mark.story
@pytest.mark.parametrize(
    "forged",
    [pytest.param(False, id="annotated", marks=pytest.mark.slow), pytest.param(True, id="forged mirror pod")],
)
def test_a_pod_that_claims_another_ones_uid_does_not_have_it_killed(
    node: NodeCgroup, tmp_path: Path, forged: bool
) -> None:
    node.add_pod("evil", be=True, priority=5000)
    (web,) = node.add_pod("web", be=False)  # later, so that its cgroup is the younger one
    claim(node, "evil", uid_of(node, "web"), forged=forged)
    manifest = node.write_manifest(tmp_path / "pods.json", 55, 50)
    served = Hog(web, 160, hold_s=120)
    try:
        served.wait_for("done")
        with LiveAgent(
            tmp_path, "--pods", manifest, "--node-cgroup", node.path, "--enforce", "--executor", "cgroup"
        ) as agent:
            agent.started()
            agent.said("no candidate")
            ticks = agent.metric("koordebpf_ticks_total") + 10  # several rounds more
            until(lambda: agent.metric("koordebpf_ticks_total") >= ticks, "ticks")
            assert served.process.poll() is None, agent.log
            assert "evicting" not in agent.log
            assert HASH in agent.log  # and the node's operator is warned
            assert agent.stop() == 0
    finally:
        served.stop()


def test_a_pod_that_claims_a_hogs_uid_does_not_hide_it(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", be=True, priority=5000)
    node.add_pod("mask", be=False)
    claim(node, "mask", uid_of(node, "hog"), forged=True)
    manifest = node.write_manifest(tmp_path / "pods.json", 55, 50)
    hog = Hog(container, 160, hold_s=120)
    try:
        with LiveAgent(
            tmp_path, "--pods", manifest, "--node-cgroup", node.path, "--enforce", "--executor", "cgroup"
        ) as agent:
            agent.said("default/hog")
            assert hog.process.wait(patience(20)) == -9
            assert [each["name"] for each in agent.has_plan()["outcomes"]] == ["hog"]
            assert agent.stop() == 0
    finally:
        hog.stop()
