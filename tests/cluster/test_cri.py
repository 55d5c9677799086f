"""Eviction through the real container runtime: containerd's socket, as the kubelet uses it."""

from __future__ import annotations

import pytest

from koordebpf.kube.clients.cri import Cri, PodContainers
from tests.cluster.story import Story
from tests.support.patience import patience

pytestmark = pytest.mark.kubelet


@pytest.mark.slow
def test_the_containers_of_a_victim_are_stopped_and_its_object_stays(story: Story) -> None:
    story.hold("low", 350)
    story.hold("high", 700, priority="koord-batch-high")
    agent = story.agent("--executor", "cri", "--cri-socket", story.node.socket)
    used = story.used_percent()
    story.threshold(memoryEvictThresholdPercent=used - 2, memoryEvictLowerPercent=used - 6)
    line = story.evicted("low")
    (outcome,) = line["outcomes"]
    assert outcome["executor"] == "cri"
    assert outcome["detail"].startswith("stopped load within ")

    def state() -> dict[str, object] | None:
        found = story.api.get(story.pods["low"].pod) or {}
        statuses = found.get("status", {}).get("containerStatuses", [{}])
        return statuses[0].get("state", {}).get("terminated") or statuses[0].get("lastState", {}).get("terminated")

    terminated = story.until(state, "the kubelet saw it end")
    assert terminated["exitCode"] == 137
    story.still_run("high")
    assert (story.api.get(story.pods["low"].pod) or {})["metadata"].get("deletionTimestamp") is None
    agent.said("back below the threshold")


@pytest.mark.slow
def test_the_first_stop_of_an_agent_and_a_later_one(story: Story) -> None:
    story.hold("first", 300)
    story.hold("later", 300, priority="koord-batch-high")
    agent = story.agent("--executor", "cri", "--cri-socket", story.node.socket)
    took_ms = []
    for number, name in enumerate(("first", "later"), start=1):
        used = story.used_percent()
        story.threshold(memoryEvictThresholdPercent=used - 2, memoryEvictLowerPercent=used - 4)
        took_ms.append(story.evicted(name, number)["latencies"]["decided_to_sent_ns"] / 1e6)
        story.threshold(memoryEvictThresholdPercent=95)
        agent.said("back below the threshold")
        story.api.delete(story.pods[name].pod, gracePeriodSeconds=0)
        story.pods[name].wait_for("removed")
    print(f"decided to StopContainer: first {took_ms[0]:.1f} ms, later {took_ms[1]:.1f} ms")
    assert took_ms[0] < patience(100)


def test_what_runs_is_what_the_runtime_says(story: Story) -> None:
    follower = story.hold("two", 50)
    uid = str((story.api.get(follower.pod) or {})["metadata"]["uid"])
    cri = Cri(story.node.socket)
    try:
        assert cri.version().startswith("containerd ")
        (container,) = cri.containers(uid, 5).running
        assert cri.containers("00000000-0000-0000-0000-000000000000", 5) == PodContainers((), frozenset())
        (result,) = cri.stop([container], grace_s=0, timeout_s=10)
        assert result.problem is None
        running = cri.containers(uid, 5).running
        assert container.id not in [each.id for each in running]
        (again,) = cri.stop([container], grace_s=0, timeout_s=10)
        assert again.problem is None  # it is stopped already
    finally:
        cri.close()
