"""Memory QoS in a running agent: what pods and directories get, and that all of it is restored."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.memory_qos_node import HIGH, LOW, LS, REQUEST, SOFT, MemoryQosNode
from tests.host.test_runtime_hooks import explained
from tests.support.nodes import NodeCgroup

pytestmark = pytest.mark.slow


@pytest.fixture
def qos(node: NodeCgroup) -> MemoryQosNode:
    return MemoryQosNode(node)


def wait(qos: MemoryQosNode, agent: LiveAgent) -> None:
    until(qos.is_protected, lambda: f"protection, but: {qos.texts()}\n{agent.log}")


def test_pods_and_directories_are_protected_until_the_agent_stops(qos: MemoryQosNode, tmp_path: Path) -> None:
    before = qos.texts()
    with LiveAgent(tmp_path, *qos.arguments(tmp_path), "--enforce") as agent:
        wait(qos, agent)
        changes = until(lambda: [line["change"] for line in agent.lines() if "change" in line], "lines of the audit")
        assert {each["owner"] for each in changes} == {"memoryQos"}
        assert agent.stop() == 0
    assert qos.texts() == before


def test_a_dry_run_writes_nothing(qos: MemoryQosNode, tmp_path: Path) -> None:
    before = qos.texts()
    with LiveAgent(tmp_path, *qos.arguments(tmp_path)) as agent:
        agent.said("(dry run)")
        page = explained(agent, "ls").stdout
        assert f"CgroupReconcile wants {REQUEST // 2}" in " ".join(page.split())
        assert qos.texts() == before
        assert agent.stop() == 0


def test_without_soft_limits_a_node_with_cgroup_v1_is_left_alone(qos: MemoryQosNode, tmp_path: Path) -> None:
    if qos.version == 2:
        pytest.skip(f"{OTHER_MACHINE}cgroup v2 has memory.low, and no soft limits")
    before = qos.texts()
    with LiveAgent(tmp_path, *qos.arguments(tmp_path, soft=False), "--enforce") as agent:
        agent.said("cgroup v1 has no memory.min")
        assert qos.texts() == before
        assert agent.stop() == 0


def test_a_class_that_is_switched_off_and_a_request_that_changes_are_followed(
    qos: MemoryQosNode, tmp_path: Path
) -> None:
    before = qos.texts()
    file = SOFT if qos.version == 1 else LOW
    with LiveAgent(tmp_path, *qos.arguments(tmp_path), "--enforce") as agent:
        wait(qos, agent)
        qos.node.pods[0]["spec"]["containers"][0]["resources"]["requests"]["memory"] = 32 * MIB
        qos.write(tmp_path)
        pod = qos.node.pod_paths["ls"]
        until(lambda: qos.value(pod, file) == 16 * MIB, lambda: f"half of it, but: {qos.texts()}\n{agent.log}")
        qos.write(tmp_path, ls={**LS, "enable": False})
        until(lambda: qos.texts() == before, lambda: f"what it was, but: {qos.texts()}\n{agent.log}")
        assert agent.stop() == 0


def test_a_killed_agent_leaves_protection_that_the_next_one_restores(qos: MemoryQosNode, tmp_path: Path) -> None:
    before = qos.texts()
    with LiveAgent(tmp_path, *qos.arguments(tmp_path), "--enforce") as agent:
        wait(qos, agent)
        agent.stop(signal.SIGKILL)
    assert qos.is_protected()
    with LiveAgent(tmp_path, *qos.arguments(tmp_path, gate=False), "--enforce") as agent:
        until(lambda: qos.texts() == before, "what it was before")
        assert agent.stop() == 0


def test_what_another_process_writes_is_set_right(qos: MemoryQosNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *qos.arguments(tmp_path), "--enforce") as agent:
        wait(qos, agent)
        qos.file(qos.node.pod_paths["ls"], SOFT if qos.version == 1 else LOW).write_text(str(8 * MIB))
        until(qos.is_protected, "protection again", 60)
        assert agent.stop() == 0


def test_an_annotation_that_cannot_be_read_is_named_and_hurts_no_other_pod(qos: MemoryQosNode, tmp_path: Path) -> None:
    qos.annotate("be", '{"minLimitPercent": 1000}')
    with LiveAgent(tmp_path, *qos.arguments(tmp_path), "--enforce") as agent:
        agent.said("pod default/be: annotation koordinator.sh/memoryQOS")
        wait(qos, agent)
        # WHEN the other one asks for none
        qos.annotate("ls", {"policy": "none"})
        qos.write(tmp_path)
        pod = qos.node.pod_paths["ls"]
        until(lambda: qos.value(pod, SOFT if qos.version == 1 else LOW) == 0, lambda: f"none, but {agent.log}")
        assert agent.stop() == 0


def test_pod_explain_says_where_each_value_is_from(qos: MemoryQosNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *qos.arguments(tmp_path), "--enforce") as agent:
        wait(qos, agent)
        page = " ".join(explained(agent, "default/ls").stdout.split())
        assert f"{REQUEST // 2} CgroupReconcile, before: " in page
        found = json.loads(explained(agent, "--json", "ls").stdout)
        sources = {each["file"]: each.get("source") for each in found["cgroups"][0]["values"]}
        if qos.version == 1:
            assert "softLimits" in sources["memory.soft_limit_in_bytes"]
        else:
            assert "lsClass.memoryQOS.lowLimitPercent" in sources["memory.low"]
            effective = {each["file"]: each.get("effective") for each in found["cgroups"][0]["values"]}
            assert (effective["memory.min"], effective["memory.low"]) == (REQUEST // 4, REQUEST // 2)
        assert HIGH.value not in {each["file"] for each in found["cgroups"][0]["values"] if each.get("source")}
        assert agent.stop() == 0


def test_a_resize_that_the_kubelet_refused_protects_no_more(qos: MemoryQosNode, tmp_path: Path) -> None:
    pod = qos.node.pods[0]
    (container,) = pod["spec"]["containers"]
    (status,) = pod["status"]["containerStatuses"]
    status |= {"resources": container["resources"], "allocatedResources": container["resources"]["requests"]}
    container["resources"] = {"requests": {"memory": "64Gi"}, "limits": {"memory": "64Gi"}}
    pod["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    with LiveAgent(tmp_path, *qos.arguments(tmp_path), "--enforce") as agent:
        wait(qos, agent)
        assert agent.stop() == 0
