"""KubeActions against a real API server: what it says of an eviction, and what of that is worth another try."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from koordebpf.errors import KubeBusy, KubeDenied, KubeError, KubeGone
from koordebpf.kube.clients.evictions import KubeActions
from koordebpf.kube.http.transport import open_cluster
from tests.cluster.accounts import account_that_lacks, refused_requests
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import budget, node, pod, reasons, running
from tests.contract.apiserver import until

TIMEOUT_S = 5.0
NODE = "fake"


@pytest.fixture(scope="module", autouse=True)
def fake_node(cluster: ControlPlane) -> Iterator[None]:
    made = cluster.api.create(node(NODE))
    yield
    cluster.api.delete(made)


@pytest.fixture
def actions(agent_kubeconfig: Path) -> Iterator[KubeActions]:
    actions = KubeActions(open_cluster(agent_kubeconfig), NODE)
    yield actions
    actions.close()


def running_pod(cluster: ControlPlane, namespace: str, name: str, app: str = "app") -> Object:
    """Return a pod that the API server takes for one whose processes run: of others no budget is asked."""
    made = cluster.api.create(pod(name, NODE, namespace=namespace, labels={"app": app}))
    return cluster.api.patch(made, {"status": running(made, secrets.token_hex(32))}, "status")


def evict(actions: KubeActions, one: Object, uid: str | None = None) -> None:
    metadata = one["metadata"]
    actions.evict(metadata["namespace"], metadata["name"], uid or metadata["uid"], timeout_s=TIMEOUT_S)


def add_budget(cluster: ControlPlane, namespace: str, name: str, app: str, min_available: int, allowed: int) -> None:
    """Create a budget; return when its controller has counted."""
    made = cluster.api.create(budget(name, app, min_available, namespace))

    def is_counted() -> bool:
        status = (cluster.api.get(made) or {}).get("status", {})
        counted = status.get("observedGeneration") == made["metadata"]["generation"]
        return bool(counted and status.get("disruptionsAllowed") == allowed)

    until(is_counted, f"{allowed} disruptions allowed")


@pytest.mark.story
def test_an_eviction_begins_the_deletion_of_exactly_this_pod(cluster, actions, namespace):
    one = running_pod(cluster, namespace, "one")
    evict(actions, one)
    now = cluster.api.get(one)
    assert now is not None
    assert now["metadata"]["deletionTimestamp"]
    assert [each["reason"] for each in now["status"]["conditions"] if each["type"] == "DisruptionTarget"] == [
        "EvictionByEvictionAPI"
    ]
    evict(actions, one)  # it terminates: said again, and no harm done


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_grace_period_of_a_day_is_cut_also_while_it_runs(cluster, actions, namespace, is_deleted):
    made = cluster.api.create(pod("patient", NODE, namespace=namespace, grace_s=86400))
    made = cluster.api.patch(made, {"status": running(made, secrets.token_hex(32))}, "status")
    if is_deleted:
        cluster.api.delete(made)
    metadata = made["metadata"]
    actions.evict(namespace, metadata["name"], metadata["uid"], timeout_s=TIMEOUT_S, grace_s=30)
    assert cluster.api.get(made)["metadata"]["deletionGracePeriodSeconds"] == 30
    # AND it cannot be made longer again
    actions.evict(namespace, metadata["name"], metadata["uid"], timeout_s=TIMEOUT_S, grace_s=600)
    assert cluster.api.get(made)["metadata"]["deletionGracePeriodSeconds"] == 30


def test_a_budget_that_is_spent_refuses_without_saying_when_to_come_back(cluster, actions, namespace):
    first, second = (running_pod(cluster, namespace, name) for name in ("first", "second"))
    add_budget(cluster, namespace, "budget", "app", min_available=1, allowed=1)
    evict(actions, first)
    with pytest.raises(KubeBusy, match="create pods/eviction: 429 Too Many Requests: Cannot evict pod") as refused:
        evict(actions, second)
    assert refused.value.retry_after_s is None
    assert refused.value.retry
    assert "budget" in str(refused.value)
    # Once another pod is Ready the budget allows one again.
    running_pod(cluster, namespace, "third")
    until(lambda: is_evicted(actions, second), "an eviction that the budget allows")


def is_evicted(actions: KubeActions, one: Object) -> bool:
    try:
        evict(actions, one)
    except KubeBusy:
        return False
    return True


def test_two_budgets_on_a_pod_are_an_error_of_the_server(cluster, actions, namespace):
    one = running_pod(cluster, namespace, "one")
    running_pod(cluster, namespace, "other")
    for name in ("first", "second"):
        add_budget(cluster, namespace, name, "app", min_available=1, allowed=1)
    with pytest.raises(KubeError, match=r"500 Internal Server Error: .* more than one PodDisruptionBudget") as refused:
        evict(actions, one)
    assert refused.value.retry
    assert "deletionTimestamp" not in (cluster.api.get(one) or {})["metadata"]


def test_a_pod_made_again_under_its_name_is_left_alone(cluster, actions, namespace):
    old = running_pod(cluster, namespace, "same")
    cluster.api.delete(old, gracePeriodSeconds=0)
    new = running_pod(cluster, namespace, "same")
    with pytest.raises(KubeGone, match=r"409 Conflict: .*the UID in the precondition") as gone:
        evict(actions, old)
    assert gone.value.status == 409
    assert "deletionTimestamp" not in (cluster.api.get(new) or {})["metadata"]


def test_a_pod_that_is_gone_is_gone(cluster, actions, namespace):
    one = running_pod(cluster, namespace, "one")
    cluster.api.delete(one, gracePeriodSeconds=0)
    with pytest.raises(KubeGone, match='404 Not Found: pods "one" not found') as gone:
        evict(actions, one)
    assert gone.value.status == 404


def test_a_namespace_that_ends_takes_nothing_new_and_is_no_missing_permission(cluster, actions, namespace):
    one = running_pod(cluster, namespace, "one")
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    cluster.api.delete(made)
    until(lambda: (cluster.api.get(made) or {})["status"]["phase"] == "Terminating", "the namespace ends")
    for ask in (evict, record):
        with pytest.raises(KubeGone, match="because it is being terminated"):
            ask(actions, one)


def test_a_missing_verb_is_named(cluster, namespace):
    one = running_pod(cluster, namespace, "one")
    actions = KubeActions(open_cluster(account_that_lacks(cluster, namespace, "pods/eviction")), NODE)
    with pytest.raises(KubeDenied, match=r"needs RBAC verb create on pods/eviction") as denied:
        evict(actions, one)
    actions.close()
    assert not denied.value.retry
    assert (denied.value.verb, denied.value.resource) == ("create", "pods/eviction")
    assert refused_requests(cluster, namespace, "pods/eviction") == 1


def test_an_event_is_seen_through_the_api_and_sent_twice_is_one(cluster, actions, namespace):
    one = running_pod(cluster, namespace, "one")
    at = datetime.now(UTC)
    record(actions, one, at)
    with pytest.raises(KubeError, match="409 Conflict") as repeated:
        record(actions, one, at)
    assert not repeated.value.retry
    query = {"fieldSelector": f"involvedObject.uid={one['metadata']['uid']}"}
    (event,) = cluster.api.items("v1", "Event", namespace, **query)
    assert reasons([event]) == [("one", "evictPodSuccess")]
    assert (event["type"], event["message"], event["source"]["component"]) == ("Warning", "it went", "koordebpf")


def test_an_event_on_a_node_is_found_as_kubectl_describe_looks_for_it(cluster, actions, namespace):
    at = datetime.now(UTC)
    actions.create_event(
        "", NODE, NODE,
        reason="EvictionSoon", message=f"{namespace}: soon", at=at, timeout_s=TIMEOUT_S, about="Node",
    )  # fmt: skip
    # As for kubelet's Events: by the Node's name in place of its UID.
    query = {"fieldSelector": f"involvedObject.kind=Node,involvedObject.name={NODE},involvedObject.uid={NODE}"}
    events = cluster.api.items("v1", "Event", "default", **query)
    (event,) = [each for each in events if namespace in each["message"]]
    assert (event["type"], event["reason"], event["source"]["host"]) == ("Warning", "EvictionSoon", NODE)
    assert event["involvedObject"].get("namespace", "") == ""


def record(actions: KubeActions, one: Object, at: datetime | None = None) -> None:
    metadata = one["metadata"]
    actions.create_event(
        metadata["namespace"], metadata["name"], metadata["uid"],
        reason="evictPodSuccess", message="it went", at=at or datetime.now(UTC), timeout_s=TIMEOUT_S,
    )  # fmt: skip
