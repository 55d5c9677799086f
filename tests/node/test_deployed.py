"""deploy/ on a node of cgroup v2 and systemd's slices: one story, in the order of these tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.agent_image import IMAGE
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.deployment import Deployment
from tests.cluster.objects import NAMESPACE, pod, reasons
from tests.node.followed import GuestFollowed
from tests.node.node import SLOWER, GuestNode, is_running, was_never_restarted
from tests.node.pods import HOG
from tests.node.slices import FOLDER, NO_QUOTA, QUOTA, lifted

ABOVE_PERCENT = 15  # of the node's memory above what it uses at rest
HOG_MIB, RATE_MIB_S = 1000, 60
AMPLE = {"memoryEvictThresholdPercent": 95, "memoryEvictLowerPercent": 90}
HELD = {**AMPLE, "cpuSuppressThresholdPercent": 90, "cpuSuppressPolicy": "cfsQuota"}
ROLL_OUT_S = 120
# What an agent may write of best-effort pods and of those that live through the story.
WRITTEN = r"cpu\.max|cpu\.weight|cpu\.idle|cpuset\.cpus|memory\.high|memory\.max|memory\.low|memory\.min|io\.max"


class Story:
    """The deployment and its node."""

    def __init__(self, node: GuestNode, deployment: Deployment) -> None:
        self.node, self.deployment = node, deployment
        self.before = self.files()

    def files(self) -> str:
        """Return what every file holds that an agent may write: of best-effort pods, and of those that live on."""
        live = " ".join(self.node.cgroup(one) for one in map(self.node.pod, ("web", "batch")) if one is not None)
        found = f"{{ find {FOLDER} -maxdepth 1; find {live}; }} | grep -E '/({WRITTEN})$' | sort"
        text = self.node.guest.check(f"{found} | while read -r file; do echo $file: $(cat $file); done")
        # The kernel keeps a set that is in use from being empty again: it gets what the slice above it has.
        above = self.node.guest.check(f"cat {FOLDER}/../cpuset.cpus.effective").strip()
        return re.sub(rf"(cpuset\.cpus:) {above}$", r"\1", text, flags=re.MULTILINE)

    def add_hog(self, name: str) -> None:
        """Start an idle hog."""
        self.node.add(pod(name, self.node.name, *HOG))

    def fill(self, name: str) -> Object:
        """Let a hog take the node over a threshold that it alone crosses; return its pod."""
        threshold = self.node.used_percent() + ABOVE_PERCENT
        self.deployment.configure(memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=threshold - 2)
        hog = self.node.pod(name)
        assert hog is not None
        self.node.prepare_hog(name, HOG_MIB, RATE_MIB_S)
        self.node.wake_hog(name)
        return hog

    def outcomes(self, agent: str, *results: str) -> list[Mapping[str, Any]]:
        """Wait for a plan whose victims came to one of these; return what came of each."""

        def found() -> list[Mapping[str, Any]]:
            lines = [line["outcomes"] for line in self.deployment.logs(agent) if line.get("outcomes")]
            return next((each for each in lines if each[0]["result"] in results), [])

        self.node.until(found, f"a victim that is {' or '.join(results)}", ROLL_OUT_S)
        return found()

    def give_executor(self, name: str, before: str) -> str:
        """Let the agent evict by another executor; return its pod."""
        old, new = (f"\n  type: {each}\n  # Executor cri" for each in (before, name))
        self.deployment.edit("base/agent/config.yaml", old, new)
        self.deployment.apply("enforce")
        return self.deployment.rolled_out("enforce")

    def replace(self, old: str, new: str) -> float:
        """Apply another image while best-effort pods are held; return for how long the limit was lifted, in seconds."""
        before = self.deployment.rolled_out("enforce")
        with GuestFollowed(self.node.guest, QUOTA) as followed:
            self.deployment.edit("overlays/enforce/kustomization.yaml", f"newTag: {old}\n", f"newTag: {new}\n")
            self.deployment.apply("enforce")
            after = self.deployment.rolled_out("enforce")
            assert after != before
            self.deployment.said(after, "the agent before this one has ended: this one acts now")
            spans = followed.spans()
        assert lifted(spans) == []
        return max((span.seconds for span in spans if span.value == NO_QUOTA), default=0)

    def others_live(self) -> bool:
        """Tell whether the pods that are to live do, and were never started again."""
        pods = [self.node.pod(name) for name in ("web", "batch")]
        return all(each and is_running(each) and was_never_restarted(each) for each in pods)


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
    story.deployment.kubectl("apply", "--server-side", "-f", "deploy/examples/slo-controller-config.yaml")
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
    story.add_hog("by-api")
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


@pytest.mark.parametrize(("executor", "before"), [("cri", "api"), ("cgroup", "cri")])
def test_by_another_executor_only_the_hog_ends(story: Story, executor: str, before: str) -> None:
    story.deployment.configure(**AMPLE)
    name = f"by-{executor}"
    story.add_hog(name)
    agent = story.give_executor(executor, before)
    story.deployment.said(agent, f"enforcing by {executor}")
    hog = story.fill(name)
    (outcome,) = story.outcomes(agent, "done", "failed")
    assert outcome["name"] == name
    # An emulated runtime may answer later than the agent waits for it: it has done what it was asked for all the same.
    assert outcome["result"] == "done" or "DEADLINE_EXCEEDED" in outcome["detail"]
    procs = f"find {story.node.cgroup(hog)} -name cgroup.procs 2>/dev/null | xargs -r cat"
    story.node.until(lambda: not story.node.guest.run(procs).text.strip(), "every process of the hog is gone")
    assert story.others_live()
    story.node.api.delete(hog)


def test_an_upgrade_and_its_roll_back_lift_no_limit(story: Story, figure: Callable[[str], None]) -> None:
    story.deployment.configure(**HELD)
    story.node.until(lambda: story.node.guest.check(f"cat {QUOTA}").strip() != NO_QUOTA, "best-effort pods are held")
    story.node.tag_image(IMAGE, f"{IMAGE}.next")
    lifted_s = max(story.replace("0.1.0", "0.1.0.next"), story.replace("0.1.0.next", "0.1.0"))
    figure(f"lifted for {lifted_s:.2f} s at most")
    assert story.others_live()


def test_after_its_removal_every_slice_is_as_before(story: Story) -> None:
    story.deployment.kubectl("delete", "--wait", "--ignore-not-found", "-k", "deploy/overlays/enforce")
    story.node.until(lambda: not story.node.api.items("v1", "Pod", NAMESPACE), "the agents are gone")
    assert story.files() == story.before
    # The kubelet made the folder and leaves it. Which cgroup root is the kubelet's stays known until the next boot.
    left = story.node.guest.check("find /run/koordebpf -type f").split()
    assert left == ["/run/koordebpf/machine/cgroup-root"]
