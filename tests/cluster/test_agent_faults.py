"""The whole agent on a real node, where the API server says no, goes away, or comes back."""

from __future__ import annotations

import itertools
import signal
import time
from datetime import datetime, timedelta

import pytest

from tests.cluster.accounts import account_that_lacks
from tests.cluster.api import Object
from tests.cluster.objects import budget, reasons
from tests.cluster.story import Story

pytestmark = pytest.mark.kubelet


def add_two(story: Story) -> None:
    """Add `low`, which is evicted before `high`; either is enough."""
    story.hold("low", 400)
    story.hold("high", 400, priority="koord-batch-high")


def cross(story: Story) -> None:
    used = story.used_percent()
    story.threshold(memoryEvictThresholdPercent=used - 2, memoryEvictLowerPercent=used - 6)


def protect(story: Story, app: str) -> dict[str, object]:
    made = story.api.create(budget(app, app, 1, story.namespace))

    def is_counted() -> bool:
        return (story.api.get(made) or {}).get("status", {}).get("expectedPods") == 1

    story.until(is_counted, "the budget is counted")
    return made


@pytest.mark.slow
def test_a_disruption_budget_sends_the_next_one_and_lets_go_later(story: Story) -> None:
    add_two(story)
    agent = story.agent()
    protect(story, "low")
    kept = protect(story, "high")
    cross(story)
    agent.said("refused: ")
    story.until(lambda: len(story.events("low")) and len(story.events("high")), "both are refused")
    story.still_run("low", "high")
    story.api.delete(kept)
    story.is_gone("high")
    story.still_run("low")
    story.until(lambda: reasons(story.events("high"))[-1] == ("high", "evictPodSuccess"), "the last Event")
    (refusal, *_) = story.events("low")
    assert refusal["reason"] == "evictPodFail"
    assert "disruption budget" in refusal["message"]


@pytest.mark.slow
def test_without_the_verb_it_says_so_and_asks_less_and_less_often(story: Story) -> None:
    add_two(story)
    agent = story.agent(kubeconfig=account_that_lacks(story.cluster, story.namespace, "pods/eviction"))
    cross(story)
    agent.said("needs RBAC verb create on pods/eviction")

    def received(name: str) -> list[datetime]:
        asked = [each for each in evictions(story, 403) if each["objectRef"]["name"] == name]
        return [datetime.fromisoformat(each["requestReceivedTimestamp"]) for each in asked]

    # A round is due each 100 ms, and each finds both there.
    for name in ("low", "high"):
        story.until(lambda name=name: len(received(name)) >= 2, f"{name} is asked for again")
        assert all(later - earlier >= timedelta(seconds=5) for earlier, later in itertools.pairwise(received(name)))
    story.still_run("low", "high")


@pytest.mark.slow
def test_a_server_that_dies_with_the_eviction_in_its_hands_is_asked_again(story: Story) -> None:
    story.hold("web", 300, qos="LS", priority="koord-prod", requests={"memory": "300Mi"})
    agent = story.agent()
    low = story.add("low", 1500, rate_mib_s=60)
    low.wait_for("running")
    # About 3 s ahead: 60 MiB are 2 % of the node.
    used = story.used_percent()
    story.threshold(memoryEvictThresholdPercent=used + 6, memoryEvictLowerPercent=used + 2)
    time.sleep(0.5)  # the agent has heard of it
    story.cluster.stop_api_server(signal.SIGSTOP)
    agent.said(f"evicting {story.namespace}/low")
    time.sleep(0.3)  # the request is with a server that answers no client
    story.cluster.stop_api_server()
    story.cluster.start_api_server()
    story.is_gone("low")
    story.still_run("web")

    def done() -> int:
        return [outcome["result"] for line in agent.plans() for outcome in line["outcomes"]].count("done")

    story.until(done, "the audit line")
    assert done() == 1
    assert len(evictions(story, 201)) == 1
    story.until(lambda: ("low", "evictPodSuccess") in reasons(story.events("low")), "the Event")


def evictions(story: Story, code: int) -> list[Object]:
    """Return the evictions in this namespace that the API server has answered with `code`."""
    asked = [each for each in story.cluster.requests() if each["objectRef"].get("subresource") == "eviction"]
    mine = [each for each in asked if each["objectRef"]["namespace"] == story.namespace]
    return [each for each in mine if each["responseStatus"]["code"] == code]
