"""What deploy/components/own-node-only leaves a compromised agent of NodeMetrics, on a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from koordebpf.errors import KubeDenied
from koordebpf.jobs.node_metric.sending import status_patch
from koordebpf.kube.cache.node_metric import NODE_METRICS_PATH
from koordebpf.kube.colocation.node_metrics import NodeMetricStatus
from koordebpf.kube.http.transport import open_cluster
from tests.cluster.api import Api, Object, Refused
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node_metrics import defined, node_metric
from tests.cluster.objects import BASE
from tests.cluster.own_node import Tenant, client, policy_alone

RIGHTS = BASE.parent / "components/instead-of-koordlet/rbac-node-metric.yaml"
MERGE = "application/merge-patch+json"
TIMEOUT_S = 20.0
IDLE: Object = {
    "updateTime": "2026-01-02T03:04:05Z",
    "nodeMetric": {"nodeUsage": {"resources": {"cpu": "0", "memory": "0"}}},
}


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: ControlPlane) -> Iterator[None]:
    """The definition, the rights with more than agents have, and the one policy that is about it."""

    def send(_: Tenant, unbound: Api) -> None:
        unbound.create(node_metric("probe"))
        cluster.api.delete(node_metric("probe"))

    with defined(cluster), policy_alone(cluster, "koordebpf-node-metrics", RIGHTS, send, "create", "patch", "delete"):
        yield


@pytest.fixture
def tenant(cluster: ControlPlane, namespace: str) -> Iterator[Tenant]:
    """Two nodes with a NodeMetric each."""
    tenant = Tenant(cluster, namespace)
    metrics = [node_metric(name) for name in (tenant.here, tenant.elsewhere)]
    cluster.api.create(*metrics)
    yield tenant
    for one in metrics:
        cluster.api.delete(one)
    tenant.close()


@pytest.fixture
def forged(tenant: Tenant) -> Api:
    """An attacker with the token of the agent on node `here`."""
    return client(tenant, tenant.here)


def report_of(tenant: Tenant, of: str) -> None:
    """Report as the agent on node `here` does, with its token, in the NodeMetric of a node."""
    status = NodeMetricStatus(open_cluster(tenant.kubeconfig(tenant.here)), of)
    with contextlib.closing(status):
        status.patch(status_patch(now(tenant, of)["metadata"]["resourceVersion"], None, IDLE), timeout_s=TIMEOUT_S)


def now(tenant: Tenant, name: str) -> Any:
    return tenant.cluster.api.get(node_metric(name))


def test_the_agent_reports_its_own_node_as_before(tenant: Tenant) -> None:
    report_of(tenant, tenant.here)
    assert now(tenant, tenant.here)["status"] == IDLE


def test_that_of_another_node_is_out_of_reach(tenant: Tenant, forged: Api) -> None:
    with pytest.raises(KubeDenied, match=f"the token is for Node {tenant.here}$"):
        report_of(tenant, tenant.elsewhere)
    for part in ("", "/status"):
        with pytest.raises(Refused, match=f"the token is for Node {tenant.here}$"):
            forged.call("PATCH", f"{NODE_METRICS_PATH}/{tenant.elsewhere}{part}", {"status": IDLE}, MERGE)
    assert "status" not in now(tenant, tenant.elsewhere)


def test_of_its_own_the_rest_stays(tenant: Tenant, forged: Api) -> None:
    before = now(tenant, tenant.here)
    own = f"{NODE_METRICS_PATH}/{tenant.here}"
    for change in (
        {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 1}}},
        {"metadata": {"labels": {"a": "b"}}},
    ):
        with pytest.raises(Refused, match="only the status may be changed"):
            forged.call("PATCH", own, change, MERGE)
        forged.call("PATCH", f"{own}/status", change, MERGE)  # of which the API server takes the status alone
    after = now(tenant, tenant.here)
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("labels") is None


def test_none_is_made_or_deleted(tenant: Tenant, forged: Api) -> None:
    tenant.cluster.api.delete(node_metric(tenant.here))
    with pytest.raises(Refused, match="the token is for Node"):
        forged.create(node_metric(tenant.here))
    tenant.cluster.api.create(node_metric(tenant.here))
    with pytest.raises(Refused, match="the token is for Node"):
        forged.call("DELETE", f"{NODE_METRICS_PATH}/{tenant.here}")
    assert now(tenant, tenant.here) is not None
