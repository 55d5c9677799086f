"""PodDisruptionBudgets that the agent reads, and evictions that do not help, on real cgroups with a real hog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import Exchange, until
from tests.host.live_cluster import EVICTED, LiveCluster
from tests.host.test_agent_api import Story
from tests.support.loads.workloads import Hog
from tests.support.patience import patience


@pytest.fixture
def story(hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[Story]:
    story = Story(hierarchy, tmp_path)
    yield story
    story.close()


def budget(allowed: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "spark", "namespace": "default", "uid": "pdb-spark", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "spark"}}},
        "status": {
            "observedGeneration": 1,
            "disruptionsAllowed": allowed,
            "currentHealthy": allowed,
            "desiredHealthy": 1,
        },
    }


def guard(cluster: LiveCluster, *names: str, allowed: int) -> None:
    """Let a PodDisruptionBudget guard these pods."""
    for name in names:
        pod = cluster.pod(name)
        pod["metadata"].setdefault("labels", {})["app"] = "spark"
        cluster.pods.put("MODIFIED", pod)
    cluster.pdbs.put("ADDED", budget(allowed))


@pytest.mark.slow
def test_who_is_blocked_is_not_even_asked_for_and_the_next_one_is_evicted(story: Story) -> None:
    cluster = story.cluster()
    guard(cluster, "hog", allowed=0)
    agent = story.agent(cluster.server.url).becomes_ready()
    hog, other = story.grow()
    line = agent.has_plan()
    assert cluster.asked() == ["other"]
    assert other.process.wait(patience(10)) != 0
    assert hog.process.poll() is None
    (feature,) = line["features"]
    assert [(each["name"], each["disruption"]) for each in feature["ranking"]] == [
        ("hog", "blocked by default/spark"),
        ("other", "allowed"),
    ]
    assert [(each["name"], each["code"]) for each in feature["excluded"]] == [("hog", "pdb")]
    # WHEN the budget allows one, the next shortage takes the pod that is first in the order
    cluster.pdbs.put("MODIFIED", budget(1))
    cluster.set_threshold(40)
    until(lambda: cluster.asked() == ["other", "hog"], "the hog's eviction")
    assert hog.process.wait(patience(10)) != 0
    assert agent.stop() == 0


@pytest.mark.slow
def test_where_no_other_pod_is_enough_the_server_is_asked_all_the_same(story: Story) -> None:
    cluster = story.cluster()
    guard(cluster, "hog", "other", allowed=0)
    agent = story.agent(cluster.server.url).becomes_ready()
    hog, other = story.grow()
    until(lambda: cluster.asked(), "an eviction")
    assert cluster.asked()[0] == "hog"
    assert hog.process.wait(patience(10)) != 0
    assert other.process.poll() is None
    assert agent.stop() == 0


CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
guards:
  uselessAfter: 1
"""


@pytest.mark.slow
def test_an_eviction_that_did_not_help_is_the_last_one_for_a_while(story: Story, tmp_path: Path) -> None:
    # GIVEN a pod that takes what the victim frees: `hog` is evicted with 150 MiB while `web` takes 100
    cluster = story.cluster(threshold_percent=50)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    agent = story.agent(cluster.server.url, "--config", config).becomes_ready()
    web = next(each for each in story.node.pod_paths["web"].iterdir() if each.is_dir())

    def evicts_in_vain(exchange: Exchange) -> None:
        taker = Hog(web, 100, hold_s=120)
        story.hogs.append(taker)
        taker.wait_for("done")
        cluster.kill("hog")
        exchange.answer(201, EVICTED)

    cluster.answers["hog"].append(evicts_in_vain)
    other = Hog(story.other_path, 60, hold_s=120)
    story.hogs.append(other)
    other.wait_for("done")
    story.hogs.append(Hog(story.hog_path, 150, hold_s=120))
    line = agent.has_plan()
    assert [outcome["result"] for outcome in line["outcomes"]] == ["done"]
    agent.refuses("the last eviction did not bring the node's use down by half of what was promised")
    # WHEN the node is short again, `other` stays and the audit line says why
    cluster.set_threshold(30)
    held = agent.has_plan(2)
    assert [outcome["result"] for outcome in held["outcomes"]] == ["held"]
    assert "did not bring the node's use down" in held["outcomes"][0]["detail"]
    assert cluster.asked() == ["hog"]
    assert other.process.poll() is None
    assert agent.stop() == 0
