"""Two nodes with an agent each, whose tokens are bound to their pods: what own-node-only tells apart."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Api, Object, Refused
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import AGENT, BASE, NAMESPACE, documents, node, pod
from tests.contract.apiserver import until

POLICIES = BASE.parent / "components/own-node-only/policies.yaml"


class Tenant:
    """Two nodes with an agent each, and what may be evicted on them."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.here, self.elsewhere = (
            cluster.api.create(node(f"{namespace}-{name}"))["metadata"]["name"] for name in "ab"
        )
        self._made: list[Object] = []

    def agent_pod(self, where: str) -> Object:
        """Return a pod of the DaemonSet on a node, whose token kubelet would ask for."""
        made = pod(f"agent-{secrets.token_hex(4)}", where, namespace=NAMESPACE)
        made["spec"]["serviceAccountName"] = AGENT
        self._made.append(self.cluster.api.create(made))
        return self._made[-1]

    def kubeconfig(self, where: str | None) -> Path:
        """Return an agent's credentials: those of its pod on a node, None: a token that is bound to nothing."""
        return self.cluster.service_account(NAMESPACE, AGENT, None if where is None else self.agent_pod(where))

    def pod(self, where: str, namespace: str | None = None, **more: Any) -> Object:
        """Return a pod to be evicted."""
        made = self.cluster.api.create(
            pod(f"p-{secrets.token_hex(4)}", where, namespace=namespace or self.namespace, **more)
        )
        self._made.append(made)
        return made

    def is_there(self, one: Object) -> bool:
        """Tell whether the pod was not evicted."""
        now = self.cluster.api.get(one)
        return now is not None and "deletionTimestamp" not in now["metadata"]

    def close(self) -> None:
        for one in self._made:
            self.cluster.api.delete(one, gracePeriodSeconds=0)
        for name in (self.here, self.elsewhere):
            self.cluster.api.delete(node(name))


def client(tenant: Tenant, where: str | None) -> Api:
    return _client(tenant, tenant.kubeconfig(where))


def client_of_node(tenant: Tenant) -> Api:
    """Return a client whose token is bound to the Node `here`, and to no pod."""
    bound = tenant.cluster.api.get(node(tenant.here))
    return _client(tenant, tenant.cluster.service_account(NAMESPACE, AGENT, bound))


def _client(tenant: Tenant, kubeconfig: Path) -> Api:
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    return Api(tenant.cluster.url, tenant.cluster.authority.certificate, token)


@contextlib.contextmanager
def policy_alone(
    cluster: ControlPlane, policy: str, rights: Path, send: Callable[[Tenant, Api], None], *verbs: str
) -> Iterator[None]:
    """Create a component's rights and one policy of own-node-only, and wait until it denies; afterwards delete them.

    Args:
        cluster: serves what the policy is about.
        policy: its name.
        rights: of the component; its first rule gets `verbs`, too, so that the policy alone denies them.
        send: sends what the policy denies a token that is bound to no pod; where it is admitted, nothing is left.
    """
    made = [*documents(rights), *(one for one in documents(POLICIES) if one["metadata"]["name"] == policy)]
    made[0]["rules"][0]["verbs"] += verbs
    cluster.api.create(*made)
    probe = Tenant(cluster, "default")
    unbound = client(probe, None)

    def denies() -> bool:
        try:
            send(probe, unbound)
        except Refused as refused:
            return "the token is for Node of no name" in str(refused)
        return False

    until(denies, f"{policy} denies")
    probe.close()
    yield
    for one in made:
        cluster.api.delete(one)
