"""Every right of an agent that own-node-only narrows, used on a real API server with tokens of three kinds.

What is sent is a dry run: admission judges it, and nothing changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from koordebpf.kube.cache.cnr import CNR_PATH
from koordebpf.kube.cache.node_metric import NODE_METRICS_PATH
from koordebpf.kube.colocation.node_topologies import TOPOLOGIES_PATH
from tests.cluster import cnr, node_metrics, topologies
from tests.cluster.api import Api, Object, Refused
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import AGENT, node
from tests.cluster.own_node import Tenant, client, client_of_node
from tests.contract.apiserver import until
from tests.support.rights import POLICIES, documents, narrowing, policies_in, rights_in, shipped

BOUND = policies_in(documents(POLICIES))
NARROWED = {
    str(right): narrowing(right, BOUND)
    for right in sorted(rights_in(shipped()))
    if right.writes and right.account == AGENT and narrowing(right, BOUND)
}
KINDS = ("rbac.authorization.k8s.io", "admissionregistration.k8s.io")
SERVED = (cnr, node_metrics, topologies)


class Wanted:
    """What an agent may do on its own node, done about a node with a token."""

    def __init__(self, tenant: Tenant, api: Api, where: str) -> None:
        self._tenant = tenant
        self._api = api
        self._where = where

    def evict(self) -> None:
        one = self._pod()
        name, namespace = one["metadata"]["name"], one["metadata"]["namespace"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        eviction["deleteOptions"] = {"preconditions": {"uid": one["metadata"]["uid"]}}
        self._send("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)

    def delete_pod(self) -> None:
        one = self._pod()
        options = {"preconditions": {"uid": one["metadata"]["uid"]}}
        path = f"/api/v1/namespaces/{one['metadata']['namespace']}/pods/{one['metadata']['name']}"
        self._send("DELETE", path, options)

    def record(self) -> None:
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": self._where, "namespace": "default"},
            "source": {"component": "koordebpf", "host": self._where},
            "reportingComponent": "koordebpf",
            "reportingInstance": self._where,
        }
        self._send("POST", "/api/v1/namespaces/default/events", event)

    def taint(self) -> None:
        found = self._tenant.cluster.api.get(node(self._where)) or {}
        taints = [*found["spec"].get("taints", ()), {"key": "koordebpf.io/memory-pressure", "effect": "NoSchedule"}]
        self._send("PATCH", f"/api/v1/nodes/{self._where}", {"spec": {"taints": taints}})

    def set_condition(self) -> None:
        condition = {"type": "KoordebpfEvicting", "status": "True"}
        self._send("PATCH", f"/api/v1/nodes/{self._where}/status", {"status": {"conditions": [condition]}})

    def taint_cnr(self) -> None:
        self._send("PATCH", f"{CNR_PATH}/{self._where}", {"spec": {"taints": []}})

    def create_topology(self) -> None:
        self._tenant.cluster.api.delete(topologies.topology_of(self._where))
        self._send("POST", TOPOLOGIES_PATH, topology(self._where))

    def update_topology(self) -> None:
        found = self._tenant.cluster.api.get(topologies.topology_of(self._where))
        found = found or self._tenant.cluster.api.create(topology(self._where))
        self._send("PUT", f"{TOPOLOGIES_PATH}/{self._where}", {**found, "topologyPolicies": ["Restricted"]})

    def report(self) -> None:
        status = {"status": {"updateTime": "2026-01-02T03:04:05Z"}}
        self._send("PATCH", f"{NODE_METRICS_PATH}/{self._where}/status", status)

    def _pod(self) -> Object:
        return self._tenant.pod(self._where)

    def _send(self, method: str, path: str, body: Object) -> None:
        # As agents do: conditions of Nodes are merged by their types.
        merge = "application/strategic-merge-patch+json" if path.startswith("/api/") else "application/merge-patch+json"
        self._api.call(method, f"{path}?dryRun=All", body, merge if method == "PATCH" else "application/json")


REQUESTS: dict[str, Callable[[Wanted], None]] = {
    "create pods/eviction": Wanted.evict,
    "create events": Wanted.record,
    "delete pods": Wanted.delete_pod,
    "patch nodes": Wanted.taint,
    "patch nodes/status": Wanted.set_condition,
    "patch customnoderesources": Wanted.taint_cnr,
    "create noderesourcetopologies": Wanted.create_topology,
    "update noderesourcetopologies": Wanted.update_topology,
    "patch nodemetrics/status": Wanted.report,
}


def topology(name: str) -> Object:
    return topologies.topology_of(name) | {"topologyPolicies": ["None"], "zones": []}


@pytest.fixture(scope="module")
def component(cluster: ControlPlane) -> Iterator[Tenant]:
    """All rights of agents and all policies, which deny; two nodes, of which all is there that may be changed."""
    made = [
        one
        for name, some in shipped().items()
        for one in some
        if name not in ("base", "readers", "batch-resources") and one["apiVersion"].partition("/")[0] in KINDS
    ]
    with contextlib.ExitStack() as stack:
        for served in SERVED:
            stack.enter_context(served.defined(cluster))
        yield from granted(cluster, made)


def granted(cluster: ControlPlane, made: list[Object]) -> Iterator[Tenant]:
    cluster.api.create(*made)
    namespace = "own-node-rights"
    cluster.add_namespace(namespace)
    label = {"metadata": {"labels": {"koordebpf.io/eviction": "own-node"}}}
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    cluster.api.patch(named, label)
    tenant = Tenant(cluster, namespace)
    for name in (tenant.here, tenant.elsewhere):
        cluster.api.create(cnr.cnr(name), node_metrics.node_metric(name))
    unbound = client(tenant, None)
    for right in NARROWED:
        wait_until(tenant, unbound, right, is_refused=True)
    yield tenant
    for one in made:
        cluster.api.delete(one)
    # They are not forgotten at once, and the cluster is other tests' too.
    for right in ("create pods/eviction", "create events"):
        wait_until(tenant, unbound, right, is_refused=False)
    tenant.close()
    cluster.api.delete(named)


def refusing(tenant: Tenant, api: Api, right: str, where: str) -> str:
    """Return which policy refuses it; empty: it is admitted.

    Raises:  Refused: by something else.
    """
    try:
        REQUESTS[right](Wanted(tenant, api, where))
    except Refused as refused:
        for name in NARROWED[right]:
            if refused.status == 403 and f"ValidatingAdmissionPolicy '{name}'" in str(refused):
                return name
        raise
    return ""


def wait_until(tenant: Tenant, unbound: Api, right: str, *, is_refused: bool) -> None:
    """Wait until a policy refuses it, or none does: roles and definitions, too, are known a moment later."""

    def is_so() -> bool:
        try:
            return bool(refusing(tenant, unbound, right, tenant.here)) == is_refused
        except Refused:
            return False

    until(is_so, f"`{right}` to be {'refused' if is_refused else 'admitted'}")


def test_each_right_has_a_request() -> None:
    assert REQUESTS.keys() == NARROWED.keys(), (
        "write into REQUESTS what uses a new right, and remove what no right is for"
    )


@pytest.mark.parametrize("right", NARROWED)
def test_it_is_good_for_the_own_node_alone(right: str, component: Tenant) -> None:
    own = client(component, component.here)
    assert refusing(component, own, right, component.here) == ""
    assert refusing(component, own, right, component.elsewhere) in NARROWED[right]


@pytest.mark.parametrize("right", NARROWED)
def test_a_token_that_is_bound_to_no_pod_is_good_for_nothing(right: str, component: Tenant) -> None:
    assert refusing(component, client(component, None), right, component.here) in NARROWED[right]


@pytest.mark.parametrize("right", NARROWED)
def test_one_that_is_bound_to_a_node_and_no_pod_is_good_for_nothing(right: str, component: Tenant) -> None:
    assert refusing(component, client_of_node(component), right, component.here) in NARROWED[right]
