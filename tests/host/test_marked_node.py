"""The mark on the Node, end to end: a real hog is evicted, the Node says so, and every way to end takes it away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.clients.taints import CONDITION_TYPE
from tests.contract.apiserver import gives, until
from tests.contract.node_store import OTHERS, OURS, READY, NodeStore
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import EVICTED, LiveCluster
from tests.host.test_agent_api import Story
from tests.support.patience import patience


@pytest.fixture
def story(hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[Story]:
    story = Story(hierarchy, tmp_path)
    yield story
    story.close()


@pytest.fixture
def cluster(story: Story) -> LiveCluster:
    return story.cluster()


@pytest.fixture
def node(cluster: LiveCluster) -> NodeStore:
    return NodeStore(cluster.server)


def marking_agent(story: Story, cluster: LiveCluster, mark: str, calm: str, *, enforce: bool = True) -> LiveAgent:
    config = story.folder / "config.yaml"
    config.write_text(
        f"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
nodeMark: {{type: {mark}, calm: {calm}}}
"""
    )
    return story.agent(cluster.server.url, "--config", config, enforce=enforce).becomes_ready()


@pytest.mark.slow
def test_the_taint_comes_with_the_eviction_and_is_removed_when_it_was_calm(
    story: Story, cluster: LiveCluster, node: NodeStore
) -> None:
    agent = marking_agent(story, cluster, "taint", "1s")
    assert node.patches == []
    story.grow()
    agent.said("node n1 is marked by a taint")
    until(cluster.asked, "the eviction, which takes a way of its own")
    agent.said("node n1 is without its taint")
    assert cluster.asked() == ["hog"]
    assert [change["spec"]["taints"] for change in node.patches] == [[*OTHERS, OURS], OTHERS]
    assert agent.stop() == 0
    assert len(node.patches) == 2


@pytest.mark.slow
def test_the_condition_stays_as_long_as_memory_is_awaited(story: Story, cluster: LiveCluster, node: NodeStore) -> None:
    cluster.answers["hog"].append(gives(201, EVICTED))  # and its processes run for a while
    agent = marking_agent(story, cluster, "condition", "0s")
    story.grow()
    agent.said("node n1 is marked by a condition")
    ticks = agent.metric("koordebpf_ticks_total") + 30
    until(lambda: agent.metric("koordebpf_ticks_total") >= ticks, "ticks")
    assert [condition["type"] for condition in node.conditions] == ["Ready", CONDITION_TYPE]
    cluster.kill("hog")
    agent.said("node n1 is without its condition")
    assert node.conditions == [READY]
    assert node.taints == OTHERS


def test_an_agent_that_ends_takes_it_away(story: Story, cluster: LiveCluster, node: NodeStore) -> None:
    agent = marking_agent(story, cluster, "taint", "1h")
    story.grow()
    agent.said("node n1 is marked by a taint")
    assert OURS in node.taints
    assert agent.stop() == 0
    assert node.taints == OTHERS


@pytest.mark.slow
def test_the_next_agent_removes_a_killed_ones_mark(story: Story, cluster: LiveCluster, node: NodeStore) -> None:
    agent = marking_agent(story, cluster, "taint", "1h")
    story.grow()
    agent.said("node n1 is marked by a taint")
    agent.has_plan()  # the memory is back: the next agent has no pod to evict, and nothing to mark
    agent.process.send_signal(signal.SIGKILL)
    agent.process.wait()
    assert OURS in node.taints
    marking_agent(story, cluster, "condition", "1h").said("node n1 is without the mark that was left on it")
    assert node.taints == OTHERS
    assert node.conditions == [READY]


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["taint", "nothing"])
def test_a_dry_run_and_one_without_marks_never_touch_the_node(
    mark: str, story: Story, cluster: LiveCluster, node: NodeStore
) -> None:
    agent = marking_agent(story, cluster, mark, "1s", enforce=mark == "nothing")
    story.grow()
    agent.has_plan()
    assert agent.stop() == 0
    assert not [request for request in cluster.server.requests if request.path.startswith("/api/v1/nodes/")]


@pytest.mark.slow
def test_an_api_server_that_hangs_delays_no_eviction(story: Story, cluster: LiveCluster, node: NodeStore) -> None:
    cluster.server.on("/api/v1/nodes/n1", lambda exchange: exchange.hold())
    agent = marking_agent(story, cluster, "taint", "1s")
    hog, _ = story.grow()
    agent.has_plan()
    assert hog.process.wait(patience(10)) != 0
    assert cluster.asked() == ["hog"]
    assert agent.stop() == 0
    agent.said("node n1 may keep a taint until an agent starts there")


@pytest.mark.slow
def test_a_missing_right_is_named_once_and_evictions_continue(
    story: Story, cluster: LiveCluster, node: NodeStore
) -> None:
    del node.node["spec"]["taints"]
    cluster.server.on("/api/v1/nodes/n1", gives(403, {"kind": "Status", "code": 403, "message": "no"}))
    agent = marking_agent(story, cluster, "taint", "1s")
    story.grow()
    agent.has_plan()
    assert cluster.asked() == ["hog"]
    agent.said("allow get on nodes")
    assert agent.log.count("allow get on nodes") == 1
    assert agent.stop() == 0
