"""The agent against an API server, end to end: real cgroups, a real hog, and a server that misbehaves on request."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.units import NS_PER_S
from tests.contract.apiserver import Exchange, gives, status, until
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import EVICTED, LiveCluster, busy, denied, is_another, kubeconfig
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience
from tests.support.ports import free_port

THRESHOLD_PERCENT = 70
NODE_MIB = 400
HOG_MIB, OTHER_MIB = 200, 100  # 75 % of the node together; each alone covers the need


class Story:
    """A node with two best-effort pods and one latency-sensitive, and what grows in them."""

    def __init__(self, hierarchy: MemoryHierarchy, folder: Path) -> None:
        self.folder = folder
        self.node = NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB)
        (self.hog_path,) = self.node.add_pod("hog", priority=5000)
        (self.other_path,) = self.node.add_pod("other", priority=5500)
        self.node.add_pod("web", be=False)
        self.clusters: list[LiveCluster] = []
        self.agents: list[LiveAgent] = []
        self.hogs: list[Hog] = []

    def cluster(self, threshold_percent: int = THRESHOLD_PERCENT, port: int = 0) -> LiveCluster:
        self.clusters.append(LiveCluster(self.node, threshold_percent, port))
        return self.clusters[-1]

    def agent(self, url: str, *arguments: object, enforce: bool = True) -> LiveAgent:
        path = kubeconfig(self.folder / "kubeconfig", url)
        given = ["--source", "api", "--executor", "api", "--node-name", "n1", "--kubeconfig", path]
        given += ["--node-cgroup", self.node.path, *(["--enforce"] if enforce else []), *arguments]
        self.agents.append(LiveAgent(self.folder, *given))
        return self.agents[-1]

    def grow(self) -> tuple[Hog, Hog]:
        """Fill the node above its threshold; return the processes of `hog` and `other`."""
        other = Hog(self.other_path, OTHER_MIB, hold_s=120)
        self.hogs.append(other)
        other.wait_for("done")
        hog = Hog(self.hog_path, HOG_MIB, rate_mib_s=400, hold_s=120)
        self.hogs.append(hog)
        return hog, other

    def close(self) -> None:
        for agent in self.agents:
            agent.__exit__(None, None, None)
        for hog in self.hogs:
            hog.stop()
        self.node.close()
        for cluster in self.clusters:
            cluster.close()


@pytest.fixture
def story(hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[Story]:
    story = Story(hierarchy, tmp_path)
    yield story
    story.close()


def ticks_per_s(agent: LiveAgent) -> float:
    """Return the agent's pace over 3 s, but for the wakes by records: those of other cgroups wake it too."""

    def own_ticks() -> float:
        return agent.metric("koordebpf_ticks_total") - agent.metric("koordebpf_records_total")

    started_s, before = time.monotonic(), own_ticks()
    time.sleep(3)
    return (own_ticks() - before) / (time.monotonic() - started_s)


def reasons(cluster: LiveCluster) -> list[tuple[str, str]]:
    return [(event["involvedObject"]["name"], event["reason"]) for event in cluster.eviction_events]


class Evicted(NamedTuple):
    """One eviction: two pods grow below a threshold of 90 %, which becomes 70 % then."""

    cluster: LiveCluster
    uid: str
    asked_before: list[str]
    line: dict[str, Any]  # of the audit
    others_end: int | None
    counts: tuple[float, float]  # evictions that were done, times from a decision to freed memory
    agents_end: int


@pytest.fixture(scope="module")
def evicted(hierarchy: MemoryHierarchy, tmp_path_factory: pytest.TempPathFactory) -> Evicted:
    story = Story(hierarchy, tmp_path_factory.mktemp("evicted"))
    try:
        cluster = story.cluster(threshold_percent=90)
        agent = story.agent(cluster.server.url).becomes_ready()
        hog, other = story.grow()
        hog.wait_for("done")
        asked_before, uid = cluster.asked(), cluster.pod("hog")["metadata"]["uid"]
        cluster.set_threshold(THRESHOLD_PERCENT)
        line = agent.has_plan()
        assert hog.process.wait(patience(10)) != 0
        others_end = other.process.poll()
        until(lambda: cluster.eviction_events, "the Event")
        credit = line["features"][0]["balance"]["credit"]
        until(lambda: agent.metric("koordebpf_released_bytes_total") >= credit, "released")
        counts = (
            agent.metric('koordebpf_evictions_total{executor="api",reason="BEMemoryEvict",result="done"}'),
            agent.metric("koordebpf_decision_to_freed_seconds_count"),
        )
        return Evicted(cluster, uid, asked_before, line, others_end, counts, agent.stop())
    finally:
        story.close()


def test_the_server_is_asked_for_the_pod_with_the_most_by_its_uid(evicted: Evicted) -> None:
    ((name, body, _),) = evicted.cluster.evictions
    assert name == "hog"
    assert body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "hog", "namespace": "default"},
        "deleteOptions": {"preconditions": {"uid": evicted.uid}},
    }
    assert evicted.others_end is None


def test_the_event_is_koordinators(evicted: Evicted) -> None:
    (event,) = evicted.cluster.eviction_events
    said = event["reason"], event["type"], event["involvedObject"]["uid"]
    assert said == ("evictPodSuccess", "Warning", evicted.uid)
    assert event["message"] == (
        "evict Pod:default/hog, reason: evicted, message: trigger by koordlet feature BEMemoryEvict, kill pod: hog"
    )


def test_the_audit_line_says_who_and_how_long_each_step_took(evicted: Evicted) -> None:
    (outcome,) = evicted.line["outcomes"]
    assert (outcome["result"], outcome["executor"], outcome["uid"]) == ("done", "api", evicted.uid)
    assert evicted.line["decided_ns"] <= outcome["sent_ns"] <= outcome["answered_ns"]
    (feature,) = evicted.line["features"]
    assert feature["victims"] == [evicted.uid]
    assert [candidate["name"] for candidate in feature["ranking"]] == ["hog", "other"]
    assert feature["balance"]["credit"] >= feature["balance"]["need"] > 0
    latencies = evicted.line["latencies"]
    assert all(value is not None and value >= 0 for value in latencies.values()), latencies


def test_an_eviction_and_the_memory_that_it_freed_are_counted_once(evicted: Evicted) -> None:
    assert evicted.counts == (1, 1)
    assert evicted.agents_end == 0


def test_a_new_threshold_holds_from_the_next_tick(evicted: Evicted) -> None:
    assert evicted.asked_before == []
    assert evicted.line["features"][0]["verdict"]["evidence"]["threshold_percent"] == THRESHOLD_PERCENT
    assert evicted.cluster.asked() == ["hog"]


@pytest.mark.story
def test_a_disruption_budget_sends_the_next_candidate_and_is_asked_again_in_its_time(story: Story) -> None:
    cluster = story.cluster()
    cluster.answers["hog"].append(busy(3))
    cluster.answers["other"].append(busy(600))
    agent = story.agent(cluster.server.url).becomes_ready()
    hog, other = story.grow()
    until(lambda: len(cluster.evictions) >= 3, "the third request")
    assert cluster.asked() == ["hog", "other", "hog"]
    (_, _, first), _, (_, _, again) = cluster.evictions
    assert again - first >= 3
    assert hog.process.wait(patience(10)) != 0
    assert other.process.poll() is None
    until(lambda: len(cluster.eviction_events) == 3, "Events")
    assert reasons(cluster) == [("hog", "evictPodFail"), ("other", "evictPodFail"), ("hog", "evictPodSuccess")]
    assert "disruption budget" in cluster.eviction_events[0]["message"]
    until(lambda: [o["result"] for line in agent.plans() for o in line["outcomes"]] == ["refused", "refused", "done"],
          "audit lines")  # fmt: skip
    assert agent.metric('koordebpf_evictions_total{executor="api",reason="BEMemoryEvict",result="refused"}') == 2


@pytest.mark.slow
def test_a_missing_permission_is_named_and_not_tried_again_soon(story: Story) -> None:
    cluster = story.cluster()
    cluster.answers["hog"] += [denied()] * 100
    cluster.answers["other"] += [denied()] * 100
    agent = story.agent(cluster.server.url).becomes_ready()
    story.grow()
    assert "allow create on pods/eviction" in agent.said("refused: default/other")
    rounds = agent.metric("koordebpf_ticks_total") + 30  # 3 s and more of them: one round each 100 ms
    until(lambda: agent.metric("koordebpf_ticks_total") >= rounds, "ticks")
    assert cluster.asked()[:2] == ["hog", "other"]
    # After 5 to 10 s there is a second try, which a slow machine may live to see.
    for name in ("hog", "other"):
        asked = [at for each, _, at in cluster.evictions if each == name]
        assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(asked))
    assert agent.log.count("refused: default/hog") <= cluster.asked().count("hog")


def test_an_answer_that_comes_while_the_agent_ends_is_audited(story: Story) -> None:
    cluster = story.cluster()

    def end_it(exchange: Exchange) -> None:
        agent.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)  # of the second that an answer has to come; an agent that is slower to end hears it as always
        exchange.answer(201, EVICTED)
        cluster.kill("hog")

    cluster.answers["hog"].append(end_it)
    agent = story.agent(cluster.server.url).becomes_ready()
    story.grow()
    assert agent.process.wait(patience(30)) == 0
    assert [outcome["result"] for line in agent.plans() for outcome in line["outcomes"]] == ["done"]
    assert reasons(cluster) == [("hog", "evictPodSuccess")]


@pytest.mark.slow
def test_an_error_of_the_server_is_tried_again_as_the_same_eviction(story: Story) -> None:
    cluster = story.cluster()
    cluster.answers["hog"].append(gives(500, status(500, "InternalError", "etcdserver: request timed out")))
    agent = story.agent(cluster.server.url).becomes_ready()
    hog, other = story.grow()
    assert [outcome["result"] for outcome in agent.has_plan()["outcomes"]] == ["done"]
    assert cluster.asked() == ["hog", "hog"]
    assert cluster.evictions[0][1] == cluster.evictions[1][1]
    assert hog.process.wait(patience(10)) != 0
    assert other.process.poll() is None
    until(lambda: cluster.eviction_events, "the Event")
    assert reasons(cluster) == [("hog", "evictPodSuccess")]


def test_a_pod_made_again_under_its_name_is_not_touched_nor_is_another_one_in_its_place(story: Story) -> None:
    cluster = story.cluster()
    cluster.answers["hog"].append(is_another())
    agent = story.agent(cluster.server.url).becomes_ready()
    hog, other = story.grow()
    (outcome,) = agent.has_plan()["outcomes"]
    assert outcome["result"] == "gone"
    # What the old pod holds is coming back, says the server: it is waited for.
    agent.said("is already coming back from default/hog")
    assert hog.process.poll() is None
    cluster.kill("hog")
    agent.said("back below the threshold")
    assert cluster.asked() == ["hog"]
    assert other.process.poll() is None
    assert cluster.eviction_events == []


@pytest.mark.slow
def test_a_grace_period_is_waited_for_and_costs_little(story: Story) -> None:
    cluster = story.cluster()
    cluster.answers["hog"].append(gives(201, EVICTED))  # and its processes run for a while
    agent = story.agent(cluster.server.url).becomes_ready()
    _, other = story.grow()
    agent.said("evicted default/hog by api")
    time.sleep(2)  # memory of the killed comes back at once: only then it is waited for more slowly
    assert ticks_per_s(agent) < 50  # 10 are meant; 100 would be a tick each 10 ms
    assert cluster.asked() == ["hog"]
    cluster.kill("hog")
    assert agent.has_plan()["latencies"]["decided_to_freed_ns"] >= 5_000_000_000
    agent.said("default/hog gave ")
    assert cluster.asked() == ["hog"]
    assert other.process.poll() is None


@pytest.mark.slow
def test_a_gate_that_is_off_costs_nothing_above_the_threshold(story: Story) -> None:
    cluster = story.cluster()
    agent = story.agent(cluster.server.url, "--feature-gates", "BEMemoryEvict=false").becomes_ready()
    hog, _ = story.grow()
    hog.wait_for("done")
    skipped = 'koordebpf_skipped_rounds_total{feature="BEMemoryEvict",reason="gate_off"}'
    assert ticks_per_s(agent) < 33  # 1 is meant; 250 would be a tick each 4 ms
    until(lambda: agent.metric(skipped) >= 2, "rounds that were skipped")
    assert cluster.asked() == []


@pytest.mark.slow
def test_an_unusable_nodeslo_leaves_the_last_good_one_in_force(story: Story) -> None:
    cluster = story.cluster()
    agent = story.agent(cluster.server.url).becomes_ready()
    cluster.set_threshold("seventy")
    line = agent.said("spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent: 'seventy'")
    assert "the last good strategy stays in force" in line
    story.grow()
    assert agent.has_plan()["features"][0]["verdict"]["evidence"]["threshold_percent"] == THRESHOLD_PERCENT
    assert cluster.asked() == ["hog"]


@pytest.mark.slow
def test_a_node_whose_capacity_is_no_quantity_does_not_end_the_agent(story: Story) -> None:
    cluster = story.cluster()
    agent = story.agent(cluster.server.url).becomes_ready()
    (node,) = cluster.nodes.items.values()
    cluster.nodes.put("MODIFIED", {**node, "status": {"capacity": {"memory": "much"}}})
    assert "the last good Node stays in force" in agent.said("node.status.capacity.memory: 'much'")
    story.grow()
    agent.has_plan()
    assert cluster.asked() == ["hog"]


@pytest.mark.slow
def test_nothing_is_evicted_on_an_old_list_of_pods(story: Story) -> None:
    cluster = story.cluster()
    agent = story.agent(cluster.server.url, "--pods-max-age-s", 2).becomes_ready()
    cluster.is_cut = True
    agent.refuses("the api source's list of pods is")
    hog, _ = story.grow()
    agent.said("; held: the api source's list of pods is")
    assert agent.has_plan()["outcomes"][0]["result"] == "held"
    assert agent.metric('koordebpf_guard_closed{reason="pods_stale"}') == 1
    assert cluster.asked() == []
    assert hog.process.poll() is None
    cluster.is_cut = False
    assert hog.process.wait(patience(60)) != 0
    assert cluster.asked() == ["hog"]
    agent.becomes_ready()


@pytest.mark.slow
def test_a_dry_run_asks_for_nothing(story: Story) -> None:
    cluster = story.cluster()
    agent = story.agent(cluster.server.url, enforce=False).becomes_ready()
    hog, _ = story.grow()
    line = agent.has_plan()
    assert (line["dry_run"], line["outcomes"][0]["result"]) == (True, "dry_run")
    assert "(dry run)" in agent.said("evicting default/hog")
    until(
        lambda: agent.metric('koordebpf_evictions_total{executor="api",reason="BEMemoryEvict",result="dry_run"}') >= 2,
        "a second round",
    )
    assert (cluster.asked(), cluster.eviction_events) == ([], [])
    assert hog.process.poll() is None
    assert agent.stop() == 0
    assert {request.method for request in cluster.server.requests} == {"GET"}


@pytest.mark.slow
def test_a_server_that_comes_later_is_found(story: Story) -> None:
    port = free_port()
    agent = story.agent(f"http://127.0.0.1:{port}").started()
    agent.refuses("no list of pods from the api source yet")
    agent.said(f"list pods: no connection to http://127.0.0.1:{port}: [Errno 111] Connection refused")
    hog, other = story.grow()
    hog.wait_for("done")
    assert (hog.process.poll(), other.process.poll()) == (None, None)
    cluster = story.cluster(port=port)
    assert hog.process.wait(patience(60)) != 0
    assert cluster.asked() == ["hog"]
    agent.becomes_ready()


def hold(exchange: Exchange) -> None:
    exchange.hold()


def trickle(exchange: Exchange) -> None:
    exchange.keeps_alive = False
    exchange.raw(b"HTTP/1.1 201 Created\r\nX-Header: ")
    while not exchange._server.stopping.wait(0.05):
        exchange.raw(b"x")


@pytest.mark.slow
@pytest.mark.parametrize("fails", [busy, lambda: hold, lambda: trickle], ids=["refuses", "hangs", "trickles"])
def test_the_last_resort_when_the_server_fails_for_too_long(story: Story, fails: Callable[[], object]) -> None:
    cluster = story.cluster()
    cluster.answers["hog"].extend([fails()] * 50)  # type: ignore[list-item]
    cluster.answers["other"].extend([busy(600)])
    agent = story.agent(cluster.server.url, "--kill-after-s", 1).becomes_ready()
    hog, other = story.grow()
    assert hog.process.wait(patience(30)) == -9
    assert other.process.poll() is None
    done = until(lambda: [line for line in agent.plans() if line["outcomes"][0]["result"] == "done"], "the kill")
    (outcome,) = done[0]["outcomes"]
    assert (outcome["executor"], outcome["name"]) == ("cgroup", "hog")
    assert outcome["detail"].startswith("last resort, ")
    assert outcome["sent_ns"] - min(line["decided_ns"] for line in agent.plans()) >= NS_PER_S
    assert agent.stop() == 0


@pytest.mark.slow
def test_a_request_that_hangs_does_not_hold_the_agent(story: Story) -> None:
    cluster = story.cluster()
    cluster.answers["hog"].extend([hold] * 50)
    agent = story.agent(cluster.server.url).becomes_ready()
    story.grow()
    until(lambda: cluster.server.held, "the request")
    agent.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)  # it waits for the answer now
    assert agent.stop(timeout_s=5) == 0
    assert "stopped: everything is detached" in agent.log
    # What was asked and never answered stands in the audit file all the same.
    assert agent.plans()[0]["outcomes"][0]["result"] == "sent"
