"""ServiceAccounts that may less than deploy/ allows, and how often the API server said no."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import AGENT, deployed

_GROUP = "rbac.authorization.k8s.io"


def account_that_lacks(cluster: ControlPlane, namespace: str, resource: str) -> Path:
    """Return the kubeconfig of an account that may all of the agent's but for what concerns one resource."""
    (role,) = (one for one in deployed("rbac.yaml") if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", AGENT))
    rules = [rule for rule in role["rules"] if rule["resources"] != [resource]]
    assert len(rules) < len(role["rules"]), resource
    account = f"lacks-{resource.replace('/', '-')}"
    name = f"{namespace}-{account}"  # of what has no namespace
    cluster.api.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}},
        {**role, "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
            "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": name},
        },
    )
    return cluster.service_account(namespace, account)


def refused_requests(cluster: ControlPlane, namespace: str, resource: str) -> int:
    """Count how often accounts of a namespace were answered 403 for a resource, as `pods/eviction`."""
    return len(refused_at(cluster, namespace, resource))


def refused_at(cluster: ControlPlane, namespace: str, resource: str) -> list[datetime]:
    """Return when requests that were answered 403 for a resource came, the first one first."""
    return sorted(
        datetime.fromisoformat(request["requestReceivedTimestamp"])
        for request in cluster.requests()
        if request["user"]["username"].startswith(f"system:serviceaccount:{namespace}:")
        and resource_of(request) == resource
        and request["responseStatus"]["code"] == 403
    )


def resource_of(request: Object) -> str:
    """Return what a request was about, as RBAC spells it."""
    of = request.get("objectRef", {})
    return "/".join(filter(None, (of.get("resource"), of.get("subresource"))))
