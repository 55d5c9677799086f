"""What deploy/components/own-node-only leaves a compromised agent of NodeResourceTopologies, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from koordebpf.kube.colocation.node_topologies import TOPOLOGIES_PATH, NodeTopologies
from koordebpf.kube.http.transport import open_cluster
from tests.cluster.api import Api, Object, Refused
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import BASE
from tests.cluster.own_node import Tenant, client, policy_alone
from tests.cluster.topologies import defined, topology_of

RIGHTS = BASE.parent / "components/instead-of-koordlet/rbac-topology.yaml"
MERGE = "application/merge-patch+json"
TIMEOUT_S = 20.0
POOLS = "node.koordinator.sh/cpu-shared-pools"


def topology(name: str, **metadata: Any) -> Object:
    made: Any = topology_of(name)
    made["metadata"] |= metadata
    return made | {"topologyPolicies": ["None"], "zones": []}


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: ControlPlane) -> Iterator[None]:
    """The definition, the rights with one more to patch and delete, and the one policy that is about it."""

    def send(_: Tenant, unbound: Api) -> None:
        unbound.create(topology("probe"))
        cluster.api.delete(topology_of("probe"))

    with defined(cluster), policy_alone(cluster, "koordebpf-topologies", RIGHTS, send, "patch", "delete"):
        yield


@pytest.fixture
def tenant(cluster: ControlPlane, namespace: str) -> Iterator[Tenant]:
    tenant = Tenant(cluster, namespace)
    yield tenant
    for name in (tenant.here, tenant.elsewhere):
        cluster.api.delete(topology_of(name))
    tenant.close()


@pytest.fixture
def forged(tenant: Tenant) -> Api:
    """An attacker with the token of the agent on node `here`."""
    return client(tenant, tenant.here)


def test_the_agent_makes_and_replaces_its_own_as_before(tenant: Tenant) -> None:
    mine = NodeTopologies(open_cluster(tenant.kubeconfig(tenant.here)), tenant.here)
    try:
        mine.create(topology(tenant.here, annotations={POOLS: "null"}), timeout_s=TIMEOUT_S)
        found = mine.read(timeout_s=TIMEOUT_S)
        assert found is not None
        found["metadata"]["annotations"][POOLS] = "[]"
        found["topologyPolicies"] = ["RestrictedPodLevel"]
        mine.update(found, timeout_s=TIMEOUT_S)
        now = mine.read(timeout_s=TIMEOUT_S)
    finally:
        mine.close()
    assert now is not None
    assert (now["metadata"]["annotations"], now["topologyPolicies"]) == ({POOLS: "[]"}, ["RestrictedPodLevel"])


def test_that_of_another_node_is_out_of_reach(cluster: ControlPlane, tenant: Tenant, forged: Api) -> None:
    with pytest.raises(Refused, match="the token is for Node"):
        forged.create(topology(tenant.elsewhere))
    cluster.api.create(topology(tenant.elsewhere))
    with pytest.raises(Refused, match="the token is for Node"):
        forged.call("PATCH", f"{TOPOLOGIES_PATH}/{tenant.elsewhere}", {"topologyPolicies": []}, MERGE)


def test_none_is_deleted(cluster: ControlPlane, tenant: Tenant, forged: Api) -> None:
    cluster.api.create(topology(tenant.here))
    with pytest.raises(Refused):
        forged.call("DELETE", f"{TOPOLOGIES_PATH}/{tenant.here}")
    assert cluster.api.get(topology_of(tenant.here)) is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"annotations": {"team": "b"}}, "annotations and labels of others"),
        ({"annotations": {"team": None}}, "annotations and labels of others"),
        ({"annotations": {"new": "a"}}, "annotations and labels of others"),
        ({"labels": {"team": "b"}}, "annotations and labels of others"),
        ({"finalizers": ["a.example/b"]}, "only what describes the node"),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}, "only what describes"),
    ],
)
def test_what_is_anothers_stays(
    cluster: ControlPlane, tenant: Tenant, forged: Api, change: dict[str, Any], why: str
) -> None:
    cluster.api.create(topology(tenant.here, annotations={"team": "a"}, labels={"team": "a"}))
    with pytest.raises(Refused, match=why):
        forged.call("PATCH", f"{TOPOLOGIES_PATH}/{tenant.here}", {"metadata": change}, MERGE)
