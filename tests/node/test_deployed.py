"""deploy/ on a node of cgroup v2 and systemd's slices: one story, in the order of these tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.deployment import Deployment
from tests.cluster.objects import NAMESPACE, reasons
from tests.node.node import SLOWER, GuestNode, is_running, was_never_restarted
from tests.node.state import idle_hog

ABOVE_PERCENT = 15  # of the node's memory above what it uses at rest
HOG_MIB, RATE_MIB_S = 1000, 60
AMPLE = {"memoryEvictThresholdPercent": 95, "memoryEvictLowerPercent": 90}
ROLL_OUT_S = 120


class Story:
    """The deployment and its node."""

    def __init__(self, node: GuestNode, deployment: Deployment) -> None:
        self.node, self.deployment = node, deployment

    def fill(self, name: str) -> Object:
        """Let a hog take the node over a threshold that it alone crosses; return its pod."""
        threshold = self.node.used_percent() + ABOVE_PERCENT
        self.deployment.configure(memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=threshold - 2)
        pod = self.node.pod(name)
        assert pod is not None
        self.node.prepare_hog(name, HOG_MIB, RATE_MIB_S)
        self.node.wake_hog(name)
        return pod

    def outcomes(self, agent: str, result: str) -> list[Mapping[str, Any]]:
        """Wait for a plan whose victims came to this; return what came of each."""

        def found() -> list[Mapping[str, Any]]:
            lines = [line["outcomes"] for line in self.deployment.logs(agent) if line.get("outcomes")]
            return next((each for each in lines if each[0]["result"] == result), [])

        self.node.until(found, f"a victim that is {result}", ROLL_OUT_S)
        return found()

    def others_live(self) -> bool:
        """Tell whether the pods that are to live do, and were never started again."""
        pods = [self.node.pod(name) for name in ("web", "batch")]
        return all(pod and is_running(pod) and was_never_restarted(pod) for pod in pods)


@pytest.fixture(scope="module")
def story(
    shared_node: GuestNode, binaries: Binaries, agent_image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    shared_node.import_image(agent_image)
    folder = tmp_path_factory.mktemp("deployment")
    deployment = Deployment(shared_node.cluster, binaries, shared_node.name, folder, slower=SLOWER)
    try:
        users = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        shared_node.api.patch(users, {"metadata": {"labels": {"koordebpf.io/eviction": "own-node"}}})
        yield Story(shared_node, deployment)
    finally:
        deployment.close()


def test_the_agent_watches_and_every_signal_works(story: Story) -> None:
    # What the saved state has of deploy/ was created by the tests.
    story.deployment.kubectl("apply", "--server-side", "--force-conflicts", "-k", "deploy/overlays/observe")
    story.deployment.kubectl("apply", "-f", "deploy/examples/slo-controller-config.yaml")
    agent = story.deployment.rolled_out("observe")
    story.deployment.said(agent, "dry run: nothing is evicted")
    answer = json.loads(
        story.deployment.kubectl("-n", NAMESPACE, "exec", agent, "--", "sh", "-c", "koordebpf doctor --json || true")
    )
    found = {each["signal"]: (each["works"], each["how"]) for each in answer["sources"]}
    assert found["kubelet's cgroup root"] == (True, "/: kubepods.slice")
    assert {signal: how for signal, (works, how) in found.items() if not works} == {}


def test_an_observer_reports_and_evicts_no_pod(story: Story) -> None:
    agent = story.deployment.rolled_out("observe")
    hog = story.fill("hog")
    (outcome,) = story.outcomes(agent, "dry_run")
    assert outcome["name"] == "hog"
    assert is_running(story.node.pod("hog"))
    story.deployment.configure(**AMPLE)
    story.node.api.delete(hog)
    story.node.until(lambda: story.node.pod(hog["metadata"]["name"]) is None, "the hog's object is gone")


def test_by_the_api_only_the_hog_is_evicted(story: Story) -> None:
    story.deployment.add_to_pool()
    story.node.add(idle_hog("by-api", story.node.name))
    story.deployment.apply("enforce")
    story.deployment.kubectl("label", "node", "-l", "pool=batch", "koordebpf.io/mode=enforce")
    agent = story.deployment.rolled_out("enforce")
    story.deployment.said(agent, "enforcing by api")
    hog = story.fill("by-api")
    (outcome,) = story.outcomes(agent, "done")
    assert outcome["name"] == "by-api"
    story.node.until(lambda: story.node.pod(hog["metadata"]["name"]) is None, "the hog's object is gone")
    events = story.node.api.items("v1", "Event", "default", fieldSelector="source=koordebpf")
    assert ("by-api", "evictPodSuccess") in reasons(events)
    assert story.others_live()
