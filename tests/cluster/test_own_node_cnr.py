"""What deploy/components/own-node-only leaves to a compromised agent of CustomNodeResources, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from koordebpf.errors import KubeDenied
from koordebpf.kube.cache.cnr import CNR_PATH
from koordebpf.kube.clients.cnr_taints import OWNED, CnrTaints
from koordebpf.kube.http.transport import open_cluster
from koordebpf.slo.katalyst import TAINT_PREFIX
from tests.cluster.api import Api, Object, Refused
from tests.cluster.cnr import cnr, defined
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import BASE
from tests.cluster.own_node import Tenant, client, policy_alone

TIMEOUT_S = 5.0
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RIGHTS = BASE.parent / "components/katalyst/rbac.yaml"
MERGE = "application/merge-patch+json"
LEVEL = "reclaimed_cores"
HEAT = (f"{TAINT_PREFIX}Heat", "NoSchedule", LEVEL)
MINE = {"key": HEAT[0], "effect": HEAT[1], "qosLevel": LEVEL}
LIST = ":".join(HEAT)
FOREIGN = {"key": f"{TAINT_PREFIX}Foreign", "effect": "NoSchedule", "value": "a", "qosLevel": LEVEL}
FOREIGN_LIST = f"{TAINT_PREFIX}Foreign:NoSchedule:{LEVEL}"


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: ControlPlane) -> Iterator[None]:
    """The definition, the rights, and the one policy that is about it."""

    def send(probe: Tenant, unbound: Api) -> None:
        cluster.api.create(cnr(probe.here))
        try:
            unbound.call("PATCH", f"{CNR_PATH}/{probe.here}", {"metadata": {"labels": {"a": "b"}}}, MERGE)
        finally:
            cluster.api.delete(cnr(probe.here))

    with defined(cluster), policy_alone(cluster, "koordebpf-cnr-taints", RIGHTS, send):
        yield


@pytest.fixture
def tenant(cluster: ControlPlane, namespace: str) -> Iterator[Tenant]:
    tenant = Tenant(cluster, namespace)
    for name in (tenant.here, tenant.elsewhere):
        cluster.api.create(cnr(name, FOREIGN))
    yield tenant
    for name in (tenant.here, tenant.elsewhere):
        cluster.api.delete(cnr(name))
    tenant.close()


@pytest.fixture
def forged(tenant: Tenant) -> Api:
    """An attacker with the token of the agent on node `here`."""
    return client(tenant, tenant.here)


def now(tenant: Tenant) -> tuple[list[Object], str | None]:
    found: Any = tenant.cluster.api.get(cnr(tenant.here))
    return found["spec"].get("taints", []), found["metadata"].get("annotations", {}).get(OWNED)


def taints_on(tenant: Tenant, name: str) -> CnrTaints:
    return CnrTaints(open_cluster(tenant.kubeconfig(tenant.here)), name, TAINT_PREFIX)


def test_the_agent_sets_and_removes_its_own_as_before(tenant: Tenant) -> None:
    mine = taints_on(tenant, tenant.here)
    assert mine.set_to({HEAT, (f"{TAINT_PREFIX}Disk", "NoExecute", LEVEL)}, at=AT, timeout_s=TIMEOUT_S)
    assert mine.set_to({HEAT}, at=AT, timeout_s=TIMEOUT_S)
    assert [each["key"] for each in now(tenant)[0]] == [FOREIGN["key"], HEAT[0]]
    assert now(tenant)[1] == LIST
    assert mine.set_to((), at=AT, timeout_s=TIMEOUT_S)
    assert now(tenant) == ([FOREIGN], None)
    mine.close()


def test_no_other_nodes_is_changed(tenant: Tenant) -> None:
    other = taints_on(tenant, tenant.elsewhere)
    with pytest.raises(KubeDenied, match=f"the token is for Node {tenant.here}"):
        other.set_to({HEAT}, at=AT, timeout_s=TIMEOUT_S)
    other.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": {"labels": {"a": "b"}}}, "only taints may be changed"),
        ({"metadata": {"annotations": {"a": "b"}}}, "of annotations only"),
        ({"spec": {"taints": []}}, "is another component's"),
        ({"spec": {"taints": [{**FOREIGN, "value": "b"}]}}, "is another component's"),
        ({"spec": {"taints": [FOREIGN, MINE]}}, "must be of node"),
        ({"spec": {"taints": [FOREIGN]}, "metadata": {"annotations": {OWNED: FOREIGN_LIST}}}, "has set itself"),
        ({"spec": {"taints": [FOREIGN]}, "metadata": {"annotations": {OWNED: LIST}}}, "has set itself"),
        (
            {
                "spec": {"taints": [FOREIGN, {**MINE, "qosLevel": "shared_cores"}]},
                "metadata": {"annotations": {OWNED: f"{HEAT[0]}:NoSchedule:shared_cores"}},
            },
            "reclaimed_cores alone",
        ),
        (
            {
                "spec": {"taints": [FOREIGN, {**MINE, "key": "team"}]},
                "metadata": {"annotations": {OWNED: f"team:NoSchedule:{LEVEL}"}},
            },
            "must be of node",
        ),
    ],
)
def test_the_rest_of_it_stays(change: Object, said: str, tenant: Tenant, forged: Api) -> None:
    with pytest.raises(Refused, match=said):
        forged.call("PATCH", f"{CNR_PATH}/{tenant.here}", change, MERGE)
    assert now(tenant) == ([FOREIGN], None)


def test_none_is_made_or_deleted(tenant: Tenant, forged: Api) -> None:
    for method, path in (("POST", CNR_PATH), ("DELETE", f"{CNR_PATH}/{tenant.here}")):
        with pytest.raises(Refused, match="403"):
            forged.call(method, path, cnr(f"{tenant.here}-new") if method == "POST" else None)
