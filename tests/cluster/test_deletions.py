"""PodDeletions against a real API server: exactly one pod, its grace period, and no PodDisruptionBudget."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from koordebpf.errors import KubeDenied, KubeGone
from koordebpf.kube.clients.deletions import PodDeletions
from koordebpf.kube.http.transport import open_cluster
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import AGENT, BASE, NAMESPACE, applied, budget, node, pod, running
from tests.contract.apiserver import until

TIMEOUT_S = 5.0
NODE = "fake-of-deletions"
RIGHTS = BASE.parent / "components/pod-deletion/rbac.yaml"


@pytest.fixture(scope="module", autouse=True)
def fake_node(cluster: ControlPlane) -> Iterator[None]:
    made = cluster.api.create(node(NODE))
    yield
    cluster.api.delete(made)


@pytest.fixture
def deletions(cluster: ControlPlane) -> Iterator[PodDeletions]:
    """The agent's own account with the component."""
    with applied(cluster.api, RIGHTS):
        deletions = PodDeletions(open_cluster(cluster.service_account(NAMESPACE, AGENT)))
        yield deletions
        deletions.close()


def running_pod(cluster: ControlPlane, namespace: str, name: str, grace_s: int = 30) -> Object:
    made = cluster.api.create(pod(name, NODE, namespace=namespace, labels={"app": "app"}, grace_s=grace_s))
    return cluster.api.patch(made, {"status": running(made, secrets.token_hex(32))}, "status")


def delete(deletions: PodDeletions, one: Object, uid: str | None = None, grace_s: int | None = None) -> None:
    metadata = one["metadata"]
    deletions.delete(
        metadata["namespace"], metadata["name"], uid or metadata["uid"], timeout_s=TIMEOUT_S, grace_s=grace_s
    )


def allowed(deletions: PodDeletions, one: Object) -> bool:
    # The API server learns of a role a moment after it was made.
    try:
        delete(deletions, one, "another")
    except KubeDenied:
        return False
    except KubeGone:
        return True
    raise AssertionError("it deleted a pod by another UID")


@pytest.mark.parametrize(("grace_s", "given_s"), [(None, 30), (7, 7)])
def test_a_deletion_gives_a_pod_its_own_grace_period_or_the_one_that_is_asked_for(
    cluster: ControlPlane, deletions: PodDeletions, namespace: str, grace_s: int | None, given_s: int
) -> None:
    one = running_pod(cluster, namespace, "one")
    until(lambda: allowed(deletions, one), "the right to delete")
    delete(deletions, one, grace_s=grace_s)
    now: Any = cluster.api.get(one)
    assert now["metadata"]["deletionTimestamp"]
    assert now["metadata"]["deletionGracePeriodSeconds"] == given_s
    delete(deletions, one)  # it terminates: said again, and no harm done
    now = cluster.api.get(one)
    assert now["metadata"]["deletionGracePeriodSeconds"] == given_s


def test_a_grace_period_of_none_at_all_takes_the_object_at_once(
    cluster: ControlPlane, deletions: PodDeletions, namespace: str
) -> None:
    one = running_pod(cluster, namespace, "one")
    until(lambda: allowed(deletions, one), "the right to delete")
    delete(deletions, one, grace_s=0)
    assert cluster.api.get(one) is None
    with pytest.raises(KubeGone, match="not found"):
        delete(deletions, one)


def test_a_new_pod_of_the_same_name_is_safe(cluster: ControlPlane, deletions: PodDeletions, namespace: str) -> None:
    old = running_pod(cluster, namespace, "same")
    until(lambda: allowed(deletions, old), "the right to delete")
    delete(deletions, old, grace_s=0)
    new = running_pod(cluster, namespace, "same")
    with pytest.raises(KubeGone, match=r"UID in (the )?precondition"):
        delete(deletions, old)
    now: Any = cluster.api.get(new)
    assert "deletionTimestamp" not in now["metadata"]


def test_no_disruption_budget_is_asked(cluster: ControlPlane, deletions: PodDeletions, namespace: str) -> None:
    one = running_pod(cluster, namespace, "one")
    made = cluster.api.create(budget("budget", "app", 1, namespace))
    until(
        lambda: ((cluster.api.get(made) or {}).get("status") or {}).get("currentHealthy") == 1, "the count of a budget"
    )
    until(lambda: allowed(deletions, one), "the right to delete")
    delete(deletions, one)
    now: Any = cluster.api.get(one)
    assert now["metadata"]["deletionTimestamp"]


def test_without_the_component_the_right_is_missing_and_named(cluster: ControlPlane, namespace: str) -> None:
    one = running_pod(cluster, namespace, "one")
    deletions = PodDeletions(open_cluster(cluster.service_account(NAMESPACE, AGENT)))
    until(lambda: not allowed(deletions, one), "the end of the right to delete")
    with pytest.raises(KubeDenied, match="needs RBAC verb delete on pods"):
        delete(deletions, one)
    deletions.close()
