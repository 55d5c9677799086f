"""A pod that asks for a long time to end, and does not: what the Eviction says, and who is dealt with first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import gives, until
from tests.host.live_cluster import EVICTED
from tests.host.test_agent_api import Story
from tests.support.patience import patience


@pytest.fixture
def story(hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[Story]:
    story = Story(hierarchy, tmp_path)
    yield story
    story.close()


def has_grace(story: Story, name: str, seconds: int) -> None:
    pod = next(pod for pod in story.node.pods if pod["metadata"]["name"] == name)
    pod["spec"]["terminationGracePeriodSeconds"] = seconds


@pytest.mark.slow
def test_a_grace_period_of_a_day_is_cut(story: Story) -> None:
    has_grace(story, "hog", 86400)
    cluster = story.cluster()
    agent = story.agent(cluster.server.url).becomes_ready()
    hog, _ = story.grow()
    line = agent.has_plan()
    assert hog.process.wait(patience(10)) != 0
    ((name, body, _),) = cluster.evictions
    assert (name, body["deleteOptions"]["gracePeriodSeconds"]) == ("hog", 30)
    assert line["outcomes"][0]["detail"].endswith("with a grace period of 30 s in place of its own")


@pytest.mark.story
def test_who_was_evicted_and_does_not_end_is_killed_before_another_pod_is_evicted(story: Story) -> None:
    # GIVEN a pod whose processes pass over SIGTERM, and a kubelet that does no more than to send that
    has_grace(story, "hog", 2)
    cluster = story.cluster()
    cluster.answers["hog"].append(gives(201, EVICTED))
    agent = story.agent(cluster.server.url, "--kill-after-s", 3).becomes_ready()
    hog, other = story.grow()
    assert hog.process.wait(patience(20)) != 0
    assert other.process.poll() is None
    assert cluster.asked() == ["hog"]
    said = agent.said("killing default/hog, which was evicted")
    assert "no other pod is evicted before that" in said
    until(lambda: len(agent.plans()) == 2, "both plans")
    first, second = agent.plans()
    assert [each["executor"] for each in (*first["outcomes"], *second["outcomes"])] == ["api", "cgroup"]
    assert second["decided_ns"] - first["decided_ns"] >= 3_000_000_000
