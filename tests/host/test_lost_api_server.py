"""The agent has lost its API server while memory runs out: what it does then, on real cgroups."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import LiveCluster, kubeconfig
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB = 400  # its threshold is 70 %
HELD = "held: the api source's list of pods is"
STALE = re.compile(r"the api source's list of pods is (\d+) s old")
LOST = "emergency: the API server has not been heard of for"


class Story:
    """A node whose best-effort pods `hog` (priority 5000) and `other` (5500) outgrow it beside the LS pod `web`."""

    def __init__(self, hierarchy: MemoryHierarchy, folder: Path) -> None:
        self._folder = folder
        self.node = NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB)
        self.paths = {
            "hog": self.node.add_pod("hog", priority=5000)[0],
            "other": self.node.add_pod("other", priority=5500)[0],
            "web": self.node.add_pod("web", be=False)[0],
        }
        self.cluster = LiveCluster(self.node)
        self.agent: LiveAgent | None = None
        self.hogs: dict[str, Hog] = {}

    def watched(self, emergency: dict[str, str], *arguments: object, executor: str = "api") -> LiveAgent:
        """Begin the agent, whose list of pods counts as stale after 2 s, and wait until it is ready."""
        config = {
            "apiVersion": "koordebpf.io/v1alpha1",
            "kind": "AgentConfiguration",
            "guards": {"podsMaxAge": "2s"},
            "emergency": emergency,
        }
        path = self._folder / "config.yaml"
        path.write_text(json.dumps(config | {"source": {"type": "api"}, "executor": {"type": executor}}))
        given = ["--config", path, "--node-name", "n1", "--node-cgroup", self.node.path]
        given += ["--kubeconfig", kubeconfig(self._folder / "kubeconfig", self.cluster.server.url)]
        self.agent = LiveAgent(self._folder, *given, *arguments).becomes_ready()
        return self.agent

    def lose(self) -> None:
        """Cut every list and watch, and answer no eviction any more."""
        self.cluster.is_cut = True
        for name in self.paths:
            self.cluster.answers[name].extend([lambda exchange: exchange.cut()] * 1000)

    def grow(self, name: str, mib: int) -> Hog:
        self.hogs[name] = Hog(self.paths[name], mib, rate_mib_s=400, hold_s=120)
        return self.hogs[name]

    def outgrow(self) -> None:
        """Fill the node above its threshold; `hog` is last and may be killed while it grows."""
        self.grow("web", 100).wait_for("done")
        self.grow("other", 60).wait_for("done")
        self.grow("hog", 150)

    def ages(self, seconds: int) -> None:
        """Wait until the agent's list of pods is so old: it tells the age each second or so, and may skip one."""
        assert self.agent is not None
        says = self.agent.readiness
        until(
            lambda: any(int(age) >= seconds for text in says()[1] for age in STALE.findall(text)),
            f"a list of pods of {seconds} s",
        )

    def alive(self) -> set[str]:
        return {name for name, hog in self.hogs.items() if hog.process.poll() is None}

    def close(self) -> None:
        if self.agent:
            self.agent.__exit__(None, None, None)
        for hog in self.hogs.values():
            hog.stop()
        self.node.close()
        self.cluster.close()

    def restarted(self, lost: LiveAgent, *arguments: object) -> LiveAgent:
        """Kill the agent as the kernel does when memory is out, and begin another one."""
        lost.process.kill()
        lost.process.wait()
        given = ["--config", self._folder / "config.yaml", "--node-name", "n1", "--node-cgroup", self.node.path]
        given += ["--kubeconfig", self._folder / "kubeconfig"]
        self.agent = LiveAgent(self._folder, *given, *arguments).started()
        return self.agent


@pytest.fixture
def story(hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[Story]:
    story = Story(hierarchy, tmp_path)
    yield story
    story.close()


KILL_BE = {"action": "kill-be", "after": "4s", "maxAge": "600s"}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["api", "cgroup"])
def test_best_effort_pods_are_killed_by_cgroup_and_the_audit_says_why(story: Story, executor: str) -> None:
    agent = story.watched(KILL_BE, "--enforce", executor=executor)
    agent.said("4 s to 600 s after the last word of the API server best-effort pods are killed by cgroup if need be")
    story.lose()
    story.ages(5)  # so that nothing was done on the last fresh list
    story.outgrow()
    assert story.hogs["hog"].process.wait(patience(30)) == -signal.SIGKILL
    agent.said("back below the threshold")
    assert story.alive() == {"web", "other"}

    lines = until(lambda: [line for line in agent.plans() if line["outcomes"][0]["result"] == "done"], "the kill")
    (line,) = lines
    assert line["sentence"].startswith(LOST)
    assert line["sentence"].split(": ")[2].startswith("evicting default/hog")
    (outcome,) = line["outcomes"]
    assert (outcome["executor"], outcome["name"]) == ("cgroup", "hog")
    assert [feature["verdict"]["feature"] for feature in line["features"]] == ["BEMemoryEvict"]
    assert "evicting default/hog (priority 5000" in agent.said(LOST)
    assert all(each["sentence"].startswith(LOST) for each in agent.plans())
    # No round was skipped for the guard that an emergency opens, though it is closed for all others.
    assert agent.metric('koordebpf_skipped_rounds_total{feature="act",reason="pods_stale"}') == 0
    assert agent.metric('koordebpf_guard_closed{reason="pods_stale"}') == 1
    # It stays not ready: all is not well.
    agent.refuses("the api source's list of pods is")
    if executor == "api":
        story.cluster.is_cut = False
        agent.becomes_ready()


@pytest.mark.slow
def test_while_the_list_of_pods_is_fresh_decisions_continue_from_it(story: Story) -> None:
    agent = story.watched({}, "--enforce", "--pods-max-age-s", 600, executor="cgroup")
    story.lose()
    agent.said("the connection to")
    story.outgrow()
    assert story.hogs["hog"].process.wait(patience(30)) == -signal.SIGKILL
    agent.said("back below the threshold")
    assert story.alive() == {"web", "other"}
    assert "emergency" not in agent.log
    assert HELD not in agent.log


@pytest.mark.slow
def test_nothing_is_the_default(story: Story) -> None:
    agent = story.watched({}, "--enforce", executor="cgroup")
    story.lose()
    agent.refuses("the api source's list of pods is")
    story.outgrow()
    agent.said(HELD)
    rounds = agent.metric("koordebpf_ticks_total") + 5
    until(lambda: agent.metric("koordebpf_ticks_total") >= rounds, "ticks")
    assert story.alive() == {"web", "other", "hog"}
    assert {outcome["result"] for line in agent.plans() for outcome in line["outcomes"]} == {"held"}


@pytest.mark.slow
def test_without_enforcement_it_is_said_and_not_done(story: Story) -> None:
    agent = story.watched(KILL_BE)
    story.lose()
    agent.refuses("the api source's list of pods is")
    story.outgrow()
    assert "(dry run)" in agent.said(LOST)
    until(lambda: any(line["sentence"].startswith(LOST) for line in agent.plans()), "the line")
    assert story.alive() == {"web", "other", "hog"}
    assert {outcome["result"] for line in agent.plans() for outcome in line["outcomes"]} <= {"held", "dry_run"}


@pytest.mark.slow
def test_after_its_time_the_guard_closes_for_good(story: Story) -> None:
    agent = story.watched({"action": "kill-be", "after": "2s", "maxAge": "4s"}, "--enforce", executor="cgroup")
    story.lose()
    story.ages(5)
    story.outgrow()
    agent.said(HELD)
    rounds = agent.metric("koordebpf_ticks_total") + 5
    until(lambda: agent.metric("koordebpf_ticks_total") >= rounds, "ticks")
    assert story.alive() == {"web", "other", "hog"}
    assert LOST not in agent.log


@pytest.mark.slow
def test_a_pod_whose_cgroup_is_another_one_by_now_is_left_alone(story: Story) -> None:
    agent = story.watched(KILL_BE, "--enforce")
    story.lose()
    agent.refuses("the api source's list of pods is")
    container = story.paths["hog"]
    was = cgroup_id(container.parent)
    container.rmdir()
    container.parent.rmdir()
    story.node._make(container.parent)
    container.mkdir()
    assert cgroup_id(container.parent) != was
    story.outgrow()
    # The next in order is evicted, though the priority of `hog` is lower.
    assert story.hogs["other"].process.wait(patience(30)) == -signal.SIGKILL
    time.sleep(1)  # a further round, in which only `hog` would be left
    assert story.alive() == {"web", "hog"}


@pytest.mark.slow
def test_latency_sensitive_pods_stay_whatever_the_shortage(story: Story) -> None:
    agent = story.watched(KILL_BE, "--enforce", "--feature-gates", "MemoryEvict=true")
    story.lose()
    agent.refuses("the api source's list of pods is")
    story.grow("web", 320).wait_for("done")
    agent.said("no candidate would give memory back")
    ticks = agent.metric("koordebpf_ticks_total") + 50
    until(lambda: agent.metric("koordebpf_ticks_total") >= ticks, "ticks")
    assert story.alive() == {"web"}


class TestAnAgentThatStartsWhileTheApiServerIsAway:
    """After its own end, of all moments: it knows the pods by what the agent before kept in its run directory."""

    def kept(self, agent: LiveAgent) -> Path:
        return until(lambda: next(iter(agent.run_dir.glob("*/pods.json")), None), "the list is kept")  # type: ignore[no-any-return]

    @pytest.mark.slow
    def test_it_kills_by_the_kept_list_until_it_hears_from_the_server(self, story: Story) -> None:
        first = story.watched(KILL_BE, "--enforce")
        assert self.kept(first).stat().st_mode & 0o777 == 0o600
        story.lose()
        agent = story.restarted(first, "--enforce")
        story.ages(5)
        story.outgrow()
        assert story.hogs["hog"].process.wait(patience(30)) == -signal.SIGKILL
        agent.said("back below the threshold")
        assert story.alive() == {"web", "other"}
        assert "evicting default/hog (priority 5000" in agent.said(LOST)
        story.cluster.is_cut = False
        agent.becomes_ready()
        agent.said("its list of pods replaces the one that was kept")

    @pytest.mark.slow
    def test_a_pod_whose_cgroup_is_another_one_by_now_is_left_alone(self, story: Story) -> None:
        first = story.watched(KILL_BE, "--enforce")
        self.kept(first)
        story.lose()
        container = story.paths["hog"]
        first.process.kill()
        first.process.wait()
        container.rmdir()
        container.parent.rmdir()
        story.node._make(container.parent)
        container.mkdir()
        story.restarted(first, "--enforce")
        story.ages(5)
        story.outgrow()
        assert story.hogs["other"].process.wait(patience(30)) == -signal.SIGKILL
        time.sleep(1)
        assert story.alive() == {"web", "hog"}

    @pytest.mark.slow
    def test_a_list_of_another_boot_is_none(self, story: Story) -> None:
        first = story.watched(KILL_BE, "--enforce")
        path = self.kept(first)
        story.lose()
        first.process.kill()
        first.process.wait()
        kept = json.loads(path.read_text())
        path.write_text(json.dumps(kept | {"boot_id": "00000000-0000-4000-8000-000000000000"}))
        agent = story.restarted(first, "--enforce")
        agent.refuses("no list of pods")
        story.outgrow()
        rounds = agent.metric("koordebpf_ticks_total") + 10
        until(lambda: agent.metric("koordebpf_ticks_total") >= rounds, "ticks")
        assert story.alive() == {"web", "other", "hog"}
