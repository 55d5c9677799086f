"""A PodDisruptionBudget in a namespace where the operator does not honour it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import gives, status, until
from tests.host.live_cluster import busy
from tests.host.test_agent_api import Story
from tests.support.patience import patience

CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
source: {type: api}
executor: {killAfter: 10m}
eviction: {exemptions: {budgets: [%s]}}
"""


@pytest.fixture
def story(hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[Story]:
    story = Story(hierarchy, tmp_path)
    yield story
    story.close()


@pytest.mark.slow
@pytest.mark.parametrize(("honoured_in", "killed"), [("prod-*", "hog"), ("defaul?", "other")])
def test_who_is_refused_for_it_is_killed_at_once(story: Story, honoured_in: str, killed: str) -> None:
    config = story.folder / "config.yaml"
    config.write_text(CONFIG % honoured_in)
    cluster = story.cluster()
    cluster.answers["hog"].extend([busy(600)] * 3)
    agent = story.agent(cluster.server.url, "--config", config).becomes_ready()
    ended = dict(zip(("hog", "other"), story.grow(), strict=True))
    assert ended.pop(killed).process.wait(patience(20)) != 0
    (lives,) = ended.values()
    assert lives.process.poll() is None
    assert cluster.asked()[0] == "hog"
    assert len(cluster.evictions) == (1 if killed == "hog" else 2)
    until(lambda: len(agent.plans()) == 2, "both plans")
    _, second = agent.plans()
    (outcome,) = second["outcomes"]
    assert outcome["executor"] == ("cgroup" if killed == "hog" else "api")
    if killed == "hog":
        assert outcome["detail"].startswith("last resort, ")


BY_LABEL = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
source: {type: api}
executor: {killAfter: 10m}
eviction: {exemptions: {budgets: [{matchLabels: {tier: gold}}]}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "killed"), [("gold", "other"), ("tin", "hog"), (None, "other")])
def test_whose_budget_counts_is_said_by_a_label_of_the_namespace(story: Story, tier: str | None, killed: str) -> None:
    config = story.folder / "config.yaml"
    config.write_text(BY_LABEL)
    cluster = story.cluster()
    if tier is None:  # the agent has no permission to read it
        cluster.server.on("/api/v1/namespaces", gives(403, status(403, "Forbidden", "namespaces is forbidden")))
    else:
        labels = {"tier": tier, "more": "x"}
        cluster.namespaces.put("ADDED", {"metadata": {"name": "default", "uid": "uid-default", "labels": labels}})
    cluster.answers["hog"].extend([busy(600)] * 3)
    agent = story.agent(cluster.server.url, "--config", config).becomes_ready()
    until(lambda: "/api/v1/namespaces" in [each.path for each in cluster.server.requests], "a look at the namespaces")
    ended = dict(zip(("hog", "other"), story.grow(), strict=True))
    assert ended[killed].process.wait(patience(20)) != 0
    until(lambda: len(agent.plans()) == 2, "both plans")
    assert [plan["undecided_namespaces"] for plan in agent.plans()] == [["default"] if tier is None else []] * 2
    (outcome,) = agent.plans()[1]["outcomes"]
    assert outcome["executor"] == ("cgroup" if killed == "hog" else "api")
