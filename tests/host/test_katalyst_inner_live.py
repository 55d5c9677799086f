"""Plugins inside the agent, switched on as the documentation says and no further: each evicts the one pod over.

Those of the machine's memory, of zones and NICs, of NUMA nodes and of disks have modules of their own beside this one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.state.pods.requests import RECLAIMED_CPU
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import LiveCluster, busy, kubeconfig
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

QOS = "katalyst.kubewharf.io/qos_level"
NODE_MIB, FREE_MIB = 400, 100


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node:
        yield node


def add_pod(node: NodeCgroup, name: str, level: str, requests: dict[str, str], **metadata: Any) -> Path:
    (directory,) = node.add_pod(name, be=level == "reclaimed_cores", annotations={QOS: level}, **metadata)
    node.pods[-1]["spec"]["containers"][0]["resources"] = {"requests": requests}
    return directory


def config(folder: Path, inner: dict[str, Any], **katalyst: Any) -> Path:
    path = folder / "config.yaml"
    document = {
        "apiVersion": "koordebpf.io/v1alpha1",
        "kind": "AgentConfiguration",
        "featureGates": {"BEMemoryEvict": False, "KatalystEviction": True},
        "eviction": {"katalyst": {"inner": inner, **katalyst}},
    }
    path.write_text(json.dumps(document))
    return path


@contextlib.contextmanager
def agent_of(
    folder: Path, node: NodeCgroup, path: Path, *more: str | Path, cluster: LiveCluster | None = None
) -> Iterator[LiveAgent]:
    """An enforcing agent: with executor api where there is a cluster, else by cgroup."""
    if cluster is None:
        source: list[str | Path] = ["--pods", node.write_manifest(folder / "pods.json")]
    else:
        source = ["--source", "api", "--executor", "api", "--node-name", "n1"]
        source += ["--kubeconfig", kubeconfig(folder / "kubeconfig", cluster.server.url)]
    with LiveAgent(folder, "--config", path, *source, *more, "--node-cgroup", node.path, "--enforce") as agent:
        agent.becomes_ready()
        yield agent
        assert agent.stop() == 0


@contextlib.contextmanager
def cluster_of(node: NodeCgroup, executor: str) -> Iterator[LiveCluster | None]:
    if executor != "api":
        yield None
        return
    cluster = LiveCluster(node)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["cgroup", "api"])
def test_the_pod_with_more_resident_memory_than_it_requests_is_evicted(
    node: NodeCgroup, tmp_path: Path, executor: str
) -> None:
    over = add_pod(node, "over", "shared_cores", {"memory": "10Mi"})
    under = add_pod(node, "under", "shared_cores", {"memory": "100Mi"})
    path = config(tmp_path, {"rssOveruse": {"isOn": True}, "systemMemory": {"isOn": False}})
    with cluster_of(node, executor) as cluster, agent_of(tmp_path, node, path, cluster=cluster) as agent:
        holders = [Holder(over, "anon", 60), Holder(under, "anon", 60)]
        try:
            line = agent.has_plan()
            assert holders[0].process.wait(patience(15)) != 0
            assert holders[1].process.poll() is None
            assert "plugin rss-overuse-eviction-plugin asks for it: it has " in line["sentence"]
            assert [each["name"] for each in line["outcomes"]] == ["over"]
            assert "[+]plugin rss-overuse-eviction-plugin" in agent.get("/readyz?verbose")[1]
        finally:
            for each in holders:
                each.stop()


@pytest.mark.slow
def test_the_reclaimed_pod_that_requests_the_most_is_evicted_where_the_node_gives_less(
    node: NodeCgroup, tmp_path: Path
) -> None:
    most = add_pod(node, "most", "reclaimed_cores", {RECLAIMED_CPU: "4000"})
    less = add_pod(node, "less", "reclaimed_cores", {RECLAIMED_CPU: "3000"})
    cnr = tmp_path / "cnr.json"
    meta = {"apiVersion": "node.katalyst.kubewharf.io/v1alpha1", "kind": "CustomNodeResource"}
    status = {"resources": {"allocatable": {RECLAIMED_CPU: "1000"}}}
    cnr.write_text(json.dumps(meta | {"metadata": {"name": "node"}, "status": status}))
    holders = [Holder(most, "anon", 10), Holder(less, "anon", 30)]
    try:
        with agent_of(tmp_path, node, config(tmp_path, {}), "--pods", cnr) as agent:
            line = agent.has_plan()
            assert holders[0].process.wait(patience(15)) != 0
            assert holders[1].process.poll() is None
            assert f"met threshold in scope {RECLAIMED_CPU}, target 5000, observed 7000" in line["sentence"]
            assert [each["name"] for each in line["outcomes"]] == ["most"]
    finally:
        for each in holders:
            each.stop()


@pytest.mark.slow
def test_a_reclaimed_pod_is_evicted_where_the_others_wait_for_memory(
    node: NodeCgroup, tmp_path: Path, hierarchy: MemoryHierarchy
) -> None:
    if hierarchy.version == 1:
        pytest.skip(f"{OTHER_MACHINE}cgroup v1 has no memory.pressure")
    pressed = [add_pod(node, f"online-{number}", "shared_cores", {"memory": "40Mi"}) for number in range(3)]
    calm = add_pod(node, "calm", "reclaimed_cores", {})
    for each in pressed:
        (each / "memory.high").write_text(str(8 * MIB))
    # Each charge above memory.high sleeps, and that is a stall: mm/memcontrol.c, __mem_cgroup_handle_over_high().
    holders = [
        Holder(calm, "anon", 30, "--hold", "600"),
        *(Holder(each, "anon", 40, "--hold", "600", waits=False) for each in pressed),
    ]
    try:
        with agent_of(tmp_path, node, config(tmp_path, {})) as agent:
            until(lambda: bool(agent.plans()), "after 15 s of pressure", 60)
            line = agent.has_plan()
            assert holders[0].process.wait(patience(15)) != 0
            assert [each["name"] for each in line["outcomes"]] == ["calm"]
            assert "plugin system-memory-pressure-eviction-plugin" in line["sentence"]
            assert "target 15, observed " in line["sentence"]
            assert all(each.process.poll() is None for each in holders[1:])
    finally:
        for each in holders:
            each.stop()


SHORT = {"systemMemory": {"freeMinimum": f"{FREE_MIB}Mi"}}


@pytest.mark.slow
def test_a_pod_that_is_being_deleted_keeps_no_other_from_going(node: NodeCgroup, tmp_path: Path) -> None:
    leaving = {"deletionTimestamp": "2030-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3600}
    stuck = add_pod(node, "stuck", "reclaimed_cores", {}, **leaving)
    small = add_pod(node, "small", "reclaimed_cores", {})
    # What it releases is not enough: 60 MiB are missing.
    holders = [Holder(stuck, "anon", 50), Holder(small, "anon", 40), Holder(online(node), "anon", 270)]
    try:
        with agent_of(tmp_path, node, config(tmp_path, SHORT)) as agent:
            line = agent.has_plan()
            assert holders[1].process.wait(patience(15)) != 0
            assert [each["name"] for each in line["outcomes"]] == ["small"]
            assert holders[0].process.poll() is None
            refused = 'plugin="system-memory-pressure-eviction-plugin",reason="terminating"'
            until(lambda: agent.metric(f"koordebpf_katalyst_refused_pods_total{{{refused}}}"), "it is counted")
    finally:
        for each in holders:
            each.stop()


@pytest.mark.slow
def test_a_pod_whose_budget_refuses_keeps_no_other_from_going(node: NodeCgroup, tmp_path: Path) -> None:
    big = add_pod(node, "big", "reclaimed_cores", {})
    small = add_pod(node, "small", "reclaimed_cores", {})
    cluster = LiveCluster(node)
    cluster.answers["big"].extend([busy(600)] * 3)
    holders = [Holder(big, "anon", 60), Holder(small, "anon", 40), Holder(online(node), "anon", 270)]
    try:
        with agent_of(tmp_path, node, config(tmp_path, SHORT), cluster=cluster) as agent:
            # The next round's: the cool-down of 35 s is not spent on a pod that was refused.
            until(lambda: cluster.asked() == ["big", "small"], lambda: f"both in turn, but {cluster.asked()}", 20)
            assert holders[1].process.wait(patience(15)) != 0
            assert holders[0].process.poll() is None
            assert agent.process.poll() is None
    finally:
        for each in holders:
            each.stop()
        cluster.close()


def online(node: NodeCgroup) -> Path:
    return add_pod(node, "online", "shared_cores", {})
