"""A Lease of coordination.k8s.io, read and written. Who may hold it, and for how long, is for others to judge."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.kube.body import decoded, encoded
from koordebpf.kube.http.transport import Transport

_VERSION: Final = "coordination.k8s.io/v1"


class LeaseMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """metav1.ObjectMeta, what a writer may change and what says which version it changes."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class LeaseSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """coordination.k8s.io/v1 LeaseSpec. No holder: it was released. Times are RFC 3339 with microseconds."""

    holderIdentity: str | None = None
    leaseDurationSeconds: int | None = None
    acquireTime: str | None = None
    renewTime: str | None = None
    leaseTransitions: int | None = None


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """coordination.k8s.io/v1 Lease."""

    metadata: LeaseMeta
    spec: LeaseSpec = LeaseSpec()


_DECODER = decoder(Lease)


class LeaseClient:
    """One Lease on the API server. Sends once and never retries.

    Needs:   RBAC get and update on the lease of this name, create on leases of this namespace.
    Raises:  KubeError and its kin, each of the three.
    """

    def __init__(self, transport: Transport, namespace: str, name: str) -> None:
        self._transport = transport
        self._namespace = namespace
        self._name = name
        self._path = f"/apis/{_VERSION}/namespaces/{quote(namespace, safe='')}/leases"

    def read(self, *, timeout_s: float) -> Lease:
        """Return the Lease. KubeGone: it does not exist yet."""
        path = f"{self._path}/{quote(self._name, safe='')}"
        return _answered(self._transport.get(path, verb="get", resource="leases", timeout_s=timeout_s))

    def create(self, spec: LeaseSpec, *, timeout_s: float) -> Lease:
        """Make it. KubeConflict: another was faster."""
        lease = Lease(LeaseMeta(name=self._name, namespace=self._namespace), spec)
        return _answered(self._transport.post(self._path, _body(lease), resource="leases", timeout_s=timeout_s))

    def update(self, lease: Lease, spec: LeaseSpec, *, timeout_s: float) -> Lease:
        """Put `spec` into the version that `lease` is. KubeConflict: another wrote meanwhile."""
        path = f"{self._path}/{quote(self._name, safe='')}"
        body = _body(msgspec.structs.replace(lease, spec=spec))
        return _answered(self._transport.put(path, body, resource="leases", timeout_s=timeout_s))


def micro_time(at: datetime) -> str:
    """Return a metav1.MicroTime."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _body(lease: Lease) -> bytes:
    return encoded(lease, _VERSION, "Lease")


def _answered(body: bytes) -> Lease:
    return decoded(body, _DECODER.decode, "leases", "a Lease")
