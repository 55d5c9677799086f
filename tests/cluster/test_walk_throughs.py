"""Koordinator's stories of an eviction, on a real node: from the POST of a pod to the end of its cgroup."""

from __future__ import annotations

import secrets

import pytest

from koordebpf.units import MIB
from tests.cluster.accounts import resource_of
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import AGENT, NAMESPACE, deployed, pod, reasons
from tests.cluster.story import Story, policy

pytestmark = pytest.mark.kubelet

BATCH = "kubernetes.io/batch-memory"

TOPOLOGIES = "noderesourcetopologies"


def tell(capsys: pytest.CaptureFixture[str], title: str, lines: list[str]) -> None:
    with capsys.disabled():
        print(f"\n  {title}", *(f"    {line}" for line in lines), sep="\n")


@pytest.mark.story
def test_a_stress_pod_is_evicted_by_usage_and_the_latency_sensitive_pod_survives(story: Story, capsys) -> None:
    story.hold("web", 300, qos="LS", priority="koord-prod", requests={"memory": "300Mi"})
    story.hold("train", 200, priority="koord-batch-high")
    agent = story.agent()
    story.threshold(memoryEvictThresholdPercent=60, memoryEvictLowerPercent=55)
    stress = story.add("stress", 2200, rate_mib_s=400)
    line = story.evicted("stress")
    story.is_gone("stress")
    tell(capsys, "a stress pod, from its POST to the end of its cgroup", stress.lines())
    story.still_run("web", "train")

    (feature,) = [each for each in line["features"] if each["victims"]]
    assert feature["verdict"]["feature"] == "BEMemoryEvict"
    assert [candidate["name"] for candidate in feature["ranking"]] == ["stress", "train"]
    assert stress.peak_bytes < 2200 * MIB
    # What the kubelet says of it, and what koordebpf says, both through the API server.
    (event,) = story.events("stress")
    assert reasons([event]) == [("stress", "evictPodSuccess")]
    assert event["message"].startswith(f"evict Pod:{story.namespace}/stress, reason: evicted, message: trigger by")
    ns = stress.seen_ns
    assert ns["posted"] < ns["running"] < ns["decided"] <= ns["sent"] <= ns["answered"] < ns["removed"]
    agent.said(f"{story.namespace}/stress gave ")
    assert agent.log.count(f"{story.namespace}/stress gave ") == 1
    assert len(agent.plans()) == 1
    assert agent.stop() == 0


@pytest.mark.slow
def test_best_effort_pods_go_by_priority_however_much_they_hold(story: Story) -> None:
    story.hold("low", 350)
    story.hold("high", 700, priority="koord-batch-high")
    agent = story.agent()
    used = story.used_percent()
    story.threshold(memoryEvictThresholdPercent=used - 2, memoryEvictLowerPercent=used - 6)
    line = story.evicted("low")
    story.is_gone("low")
    story.still_run("high")
    (feature,) = [each for each in line["features"] if each["victims"]]
    assert [candidate["name"] for candidate in feature["ranking"]] == ["low", "high"]
    agent.said("back below the threshold")
    assert len(agent.plans()) == 1


@pytest.mark.slow
def test_a_pod_that_opted_out_by_its_annotation_stays(story: Story) -> None:
    story.hold("out", 600, annotations=policy("CPUEvict"))
    story.hold("in", 400, priority="koord-batch-high", annotations=policy("CPUEvict", "BEMemoryEvict"))
    story.agent()
    used = story.used_percent()
    story.threshold(memoryEvictThresholdPercent=used - 2, memoryEvictLowerPercent=used - 6)
    line = story.evicted("in")
    story.is_gone("in")
    story.still_run("out")
    (feature,) = [each for each in line["features"] if each["victims"]]
    (passed_over,) = [each for each in feature["excluded"] if each["name"] == "out"]
    assert "eviction-policy" in str(passed_over)


@pytest.mark.slow
def test_batch_pods_go_when_nothing_is_allocatable_for_them_any_more(story: Story) -> None:
    node = story.node.object
    story.api.patch(node, resources("2Gi"), "status")
    enabled = {"koordinator.sh/eviction-enabled": "true"}
    asks = {BATCH: str(256 * MIB)}
    story.until(lambda: (story.api.get(node) or {})["status"]["allocatable"].get(BATCH) == "2Gi", "batch memory")
    story.hold("batch", 50, labels=enabled, requests=asks, limits=asks)
    story.hold("kept", 50, requests=asks, limits=asks)  # without the label
    story.hold("web", 50, qos="LS", priority="koord-prod", labels=enabled)
    agent = story.agent("--feature-gates", "MemoryAllocatableEvict=true")
    story.threshold(memoryAllocatableEvictThresholdPercent=110, memoryAllocatableEvictLowerPercent=100)
    story.api.patch(node, resources("0"), "status")
    try:
        line = story.evicted("batch")
        story.is_gone("batch")
        story.still_run("kept", "web")
        (feature,) = [each for each in line["features"] if each["victims"]]
        assert feature["verdict"]["feature"] == "MemoryAllocatableEvict"
        assert "none is allocatable" in agent.log
        assert reasons(story.events("batch")) == [("batch", "evictPodSuccess")]
    finally:
        story.api.patch(node, resources(None), "status")


def resources(batch: str | None) -> dict[str, object]:
    return {"status": {"capacity": {BATCH: batch}, "allocatable": {BATCH: batch}}}


def with_company(made: Object) -> None:
    """Give a pod a second container and a sidecar that began before both."""
    (load,) = made["spec"]["containers"]
    sleeps = {key: value for key, value in load.items() if key != "command"}
    made["spec"]["containers"].append({**sleeps, "name": "second"})
    made["spec"]["initContainers"] = [{**sleeps, "name": "sidecar", "restartPolicy": "Always"}]


@pytest.mark.slow
def test_the_container_runtime_stops_every_container_of_a_pod(story: Story) -> None:
    low = story.hold("low", 400, change=with_company)
    story.hold("web", 200, qos="LS", priority="koord-prod", requests={"memory": "200Mi"})
    agent = story.agent("--executor", "cri", "--cri-socket", story.node.socket)
    used = story.used_percent()
    story.threshold(memoryEvictThresholdPercent=used - 2, memoryEvictLowerPercent=used - 4)
    line = story.evicted("low")
    (outcome,) = line["outcomes"]
    assert outcome["executor"] == "cri"
    assert sorted(outcome["detail"].partition(" within ")[0].removeprefix("stopped ").split(", ")) == [
        "load",
        "second",
        "sidecar",
    ]
    low.wait_for("stopped")
    # The pod was not deleted: its containers have ended, and the kubelet starts none of it again.
    story.until(lambda: (low.object() or {})["status"]["phase"] in {"Failed", "Succeeded"}, "the pod has ended")
    assert "terminating" not in low.seen_ns
    story.still_run("web")
    agent.said("back below the threshold")


def test_the_node_is_as_large_as_its_cgroup(story: Story) -> None:
    capacity = (story.api.get(story.node.object) or {})["status"]["capacity"]["memory"]
    assert capacity == "3Gi"
    assert story.node.socket.is_socket()


@pytest.mark.slow
def test_the_agent_uses_every_right_that_deploy_gives_it_and_asks_for_no_other(story: Story) -> None:
    (role,) = (one for one in deployed("rbac.yaml") if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", AGENT))
    given = {(verb, resource) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    before = len(story.cluster.requests())
    story.hold("low", 300)
    story.agent()
    used = story.used_percent()
    story.threshold(memoryEvictThresholdPercent=used - 2, memoryEvictLowerPercent=used - 4)
    story.is_gone("low")
    story.events("low")
    # The ConfigMap is read where no NodeSLO is served: test_source.py.
    expected = given - {(verb, "configmaps") for verb in ("list", "watch")}
    # Koordinator defines it, and it is not installed here: the first list gets 404.
    expected -= {("watch", TOPOLOGIES)}
    # A watch is in the audit when it has ended, as these have with the agent.
    story.agents[-1].stop()
    story.until(lambda: rights(story, before) >= expected, f"not asked for: {expected - rights(story, before)}")
    assert rights(story, before) == expected
    answers = {(resource_of(each), each["responseStatus"]["code"]) for each in asked_since(story, before)}
    assert {(name, code) for name, code in answers if code not in (200, 201)} == {(TOPOLOGIES, 404)}


def asked_since(story: Story, number: int) -> list[Object]:
    """Return what the agent's account has asked for after so many requests."""
    user = f"system:serviceaccount:{NAMESPACE}:{AGENT}"
    return [each for each in story.cluster.requests()[number:] if each["user"]["username"] == user]


def rights(story: Story, since: int) -> set[tuple[str, str]]:
    return {(each["verb"], resource_of(each)) for each in asked_since(story, since)}


@pytest.mark.slow
def test_the_agent_evicts_with_the_token_of_its_pod(story: Story, cluster: ControlPlane) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": story.namespace}}
    cluster.api.patch(namespace, {"metadata": {"labels": {"koordebpf.io/eviction": "own-node"}}})
    mine = pod(f"agent-{secrets.token_hex(4)}", story.node.name, namespace=NAMESPACE)
    mine["spec"]["serviceAccountName"] = AGENT
    made = cluster.api.create(mine)
    try:
        story.hold("hog", 600)
        story.agent(kubeconfig=cluster.service_account(NAMESPACE, AGENT, made))
        story.threshold(memoryEvictThresholdPercent=story.used_percent() - 5)
        story.evicted("hog")
        story.is_gone("hog")
        assert [event["reason"] for event in story.events("hog")] == ["evictPodSuccess"]
    finally:
        cluster.api.delete(made, gracePeriodSeconds=0)
