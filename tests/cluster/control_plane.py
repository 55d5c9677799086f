"""etcd, kube-apiserver and kube-controller-manager on loopback, with certificates of their own and RBAC on."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import urllib3

from tests.cluster.api import Api, Object, Refused
from tests.cluster.certificates import Authority
from tests.cluster.processes import ServerProcess, wait_for
from tests.support.patience import patience
from tests.support.ports import free_ports

# Where a node is only an object, these would take its pods away: it sends no heartbeat.
_CONTROLLERS = "*,-node-lifecycle-controller,-taint-eviction-controller"
_ISSUER = "https://kubernetes.default.svc"
# What the garbage collector of each may use before it works harder; the servers need less.
_MEMORY = {"GOMEMLIMIT": "600MiB"}
_TOKEN_S = 3600
_OPERATIONS = 100  # in one transaction; etcd takes 128
# Requests and responses of every ServiceAccount but those of controllers.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


class Kept(msgspec.Struct, frozen=True):
    """Where a control plane keeps keys, tokens and etcd's data for the next one, and its port."""

    folder: Path
    port: int


class ControlPlane:
    """A cluster without nodes, ready when made. `close()` ends its processes and removes its files.

    Shape:   `api` asks as administrator, and `admin_kubeconfig` lets others; `service_account()` makes credentials of
             less. `controllers` is which of kube-controller-manager's run: by default none that miss a kubelet. Pods of
             `limited_priorities` need a quota that names them. With `kept` it continues what is in that folder, which
             stays, and asks nodes at their own addresses, in place of a RealNode's passage.
    Cost:    ready in 3 to 5 s; 0.5 GiB in three processes.
    """

    def __init__(
        self,
        kubernetes: Path,
        controllers: str = _CONTROLLERS,
        limited_priorities: Sequence[str] = (),
        kept: Kept | None = None,
    ) -> None:
        self._limited_priorities = limited_priorities
        self._kubernetes = kubernetes
        self._controllers = controllers
        self._kept = kept
        self.folder = kept.folder if kept else Path(tempfile.mkdtemp(prefix="koordebpf-cluster-"))
        self.authority = Authority(self.folder / "pki")
        self.port, self._etcd_port, self._peer_port, self._controllers_port = free_ports(4)
        if kept:
            self.port = kept.port
        self.way_to_nodes = self.folder / "nodes.sock"  # RealNode opens it
        self.url = f"https://127.0.0.1:{self.port}"
        self._servers: dict[str, ServerProcess] = {}
        tokens = self._tokens()
        self.api = Api(self.url, self.authority.certificate, tokens["admin"])
        self.admin_kubeconfig = self.kubeconfig("admin", {"token": tokens["admin"]})
        try:
            self._start_etcd()
            self._prepare_api_server()
            self.start_api_server()
            self._start_controllers(tokens["controllers"])
        except BaseException:
            self.close()
            raise

    def _tokens(self) -> dict[str, str]:
        file = self.folder / "tokens.csv"
        if not file.exists():
            admin, controllers = secrets.token_hex(16), secrets.token_hex(16)
            file.write_text(
                f'{admin},admin,admin,"system:masters"\n{controllers},system:kube-controller-manager,controllers\n'
            )
        admin, controllers = (line.partition(",")[0] for line in file.read_text().splitlines())
        return {"admin": admin, "controllers": controllers}

    def kubeconfig(self, name: str, user: Object) -> Path:
        """Write credentials for this cluster; return their file."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority.certificate)}
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "here", "cluster": cluster}],
                    "users": [{"name": name, "user": user}],
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": name}}],
                    "current-context": "here",
                }
            )
        )
        path.chmod(0o600)
        return path

    def service_account(self, namespace: str, name: str, bound: Object | None = None) -> Path:
        """Return a kubeconfig with a token of this ServiceAccount, bound to that object; kubelet's is to a pod."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec: Object = {"expirationSeconds": _TOKEN_S}
        file = f"{namespace}-{name}"
        if bound is not None:
            metadata = bound["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": bound["kind"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
            file += f"-{metadata['uid']}"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.api.call("POST", path, body)["status"]["token"]
        return self.kubeconfig(file, {"token": token})

    def add_namespace(self, name: str) -> Object:
        """Create a namespace; return it once pods may be made in it."""
        made = self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self._wait_for_account(name, f"no ServiceAccount in {name}")
        return made

    def forget(self, key: str) -> None:
        """Remove a key from etcd behind the API server's back, as `/registry/pods/default/a`; one that ends in `/`
        with all below it."""
        # What follows `/` is `0`: the range is that of the prefix.
        end = {"range_end": _base64(key[:-1] + "0")} if key.endswith("/") else {}
        assert int(self._etcd("deleterange", {"key": _base64(key), **end}).get("deleted", 0)) > 0, key

    def store(self, objects: Mapping[str, Object]) -> None:
        """Put objects into etcd by their keys: thousands in a second, whom no admission has looked at."""
        puts = [
            {"requestPut": {"key": _base64(key), "value": _base64(json.dumps(each))}} for key, each in objects.items()
        ]
        for first in range(0, len(puts), _OPERATIONS):
            self._etcd("txn", {"success": puts[first : first + _OPERATIONS]})

    def _etcd(self, call: str, body: Object) -> Object:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/{call}"
        answer = urllib3.request("POST", url, body=json.dumps(body), timeout=patience(30))
        assert answer.status == 200, answer.data
        return dict(answer.json())

    def start_api_server(self) -> None:
        """Start kube-apiserver on its port, with what etcd has; return when it is ready."""
        self._servers["kube-apiserver"] = server = self._spawn("kube-apiserver", *self._api_server_flags)
        wait_for(self.is_ready, "kube-apiserver is not ready", [self._servers["etcd"], server])

    def stop_api_server(self, by: signal.Signals = signal.SIGKILL) -> None:
        """End kube-apiserver, or with SIGSTOP let it hang; etcd keeps what it has acknowledged."""
        server = self._servers["kube-apiserver"]
        if by is signal.SIGSTOP:
            server.process.send_signal(by)
        else:
            server.stop(by)

    def back_up(self) -> Path:
        """Copy what etcd has by now, as a backup made at night does; the servers are away meanwhile."""
        backup = self.folder / "backup"
        with self._without_servers() as data:
            shutil.copytree(data, backup)
        return backup

    def restore(self, backup: Path) -> None:
        """Give etcd the data of a backup in place of its own."""
        with self._without_servers() as data:
            shutil.rmtree(data)
            shutil.copytree(backup, data)

    @contextlib.contextmanager
    def _without_servers(self) -> Iterator[Path]:
        self._servers["kube-apiserver"].stop()
        self._servers["etcd"].stop(signal.SIGTERM)
        yield self.folder / "etcd"
        self._start_etcd()
        self.start_api_server()

    def is_ready(self) -> bool:
        """Tell whether kube-apiserver says that it is."""
        with contextlib.suppress(Refused, urllib3.exceptions.HTTPError):
            self.api.call("GET", "/readyz")
            return True
        return False

    def requests(self) -> list[Object]:
        """Return the audit events of what ServiceAccounts have asked for: user, verb, objectRef, responseStatus."""
        *whole, _unfinished = self._audit.read_text().split("\n")
        return [json.loads(line) for line in whole]

    def pids(self) -> list[int]:
        """Return the servers' processes."""
        return [server.pid for server in self._servers.values()]

    def memory_bytes(self) -> dict[str, int]:
        """Return what each server holds."""
        return {name: server.resident_bytes() for name, server in self._servers.items()}

    def close(self) -> None:
        """End every process, the last one first, and remove the files that are not kept; twice is harmless."""
        for name, server in reversed(self._servers.items()):
            server.stop(signal.SIGTERM if self._kept and name == "etcd" else signal.SIGKILL)
        self._servers.clear()
        if self._kept is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _spawn(self, name: str, *flags: str) -> ServerProcess:
        return ServerProcess(name, [self._kubernetes, name, *flags], self.folder / f"{name}.log", environment=_MEMORY)

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._servers["etcd"] = self._spawn(
            "etcd",
            "--name=here",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=here={peer}",
            # The data ends with the tests: only the processes may die, never the machine.
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _prepare_api_server(self) -> None:
        authority, pki = self.authority, self.folder / "pki"
        certificate, key = authority.server("kube-apiserver")
        kubelet_certificate, kubelet_key = authority.client("kubelet-client", "kube-apiserver", "system:masters")
        self._audit = self.folder / "audit.log"
        self._audit.touch()
        (self.folder / "audit.json").write_text(json.dumps(_AUDIT))
        egress = []
        if self._kept is None:  # a RealNode has a network of its own
            (self.folder / "egress.json").write_text(json.dumps(_egress(self.way_to_nodes)))
            egress = [f"--egress-selector-config-file={self.folder}/egress.json"]
        (self.folder / "admission.json").write_text(json.dumps(_admission(self._limited_priorities)))
        # Any pair of keys signs tokens; those that pods have are to stay good.
        tokens_key = pki / "service-accounts.key"
        if not tokens_key.exists():
            authority.client("service-accounts", "service-accounts", "none")
        self._api_server_flags = (
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            # There is no second server, and no address of this one that others could use.
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={authority.certificate}",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--admission-control-config-file={self.folder}/admission.json",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={tokens_key}",
            f"--service-account-signing-key-file={tokens_key}",
            f"--kubelet-client-certificate={kubelet_certificate}",
            f"--kubelet-client-key={kubelet_key}",
            *egress,
            "--kubelet-preferred-address-types=InternalIP",
            f"--cert-dir={pki}",
            f"--audit-policy-file={self.folder}/audit.json",
            f"--audit-log-path={self._audit}",
            "--allow-privileged=true",
            "--shutdown-delay-duration=0s",
        )
        self._tokens_key = tokens_key

    def _start_controllers(self, token: str) -> None:
        kubeconfig = self.kubeconfig("controllers", {"token": token})
        self._servers["kube-controller-manager"] = self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._controllers_port}",
            f"--cert-dir={self.folder}/pki",
            "--leader-elect=false",
            f"--service-account-private-key-file={self._tokens_key}",
            f"--root-ca-file={self.authority.certificate}",
            # Without it the disruption controller may not write the status of a PodDisruptionBudget.
            "--use-service-account-credentials=true",
            # With the default of 20 a second the first ServiceAccount takes 5 s.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            f"--controllers={self._controllers}",
        )
        self._wait_for_account("default", "no controller works")

    def _wait_for_account(self, namespace: str, what: str) -> None:
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        }
        wait_for(lambda: self.api.get(account), what, [self._servers["kube-controller-manager"]])


def _egress(way: Path) -> Object:
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(way)}}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }


# Source: https://kubernetes.io/docs/concepts/policy/resource-quotas, "Limit Priority Class consumption by default".
def _admission(limited_priorities: Sequence[str]) -> Object:
    expression = {"scopeName": "PriorityClass", "operator": "In", "values": list(limited_priorities)}
    limited = {"resource": "pods", "matchScopes": [expression]}
    quota = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "ResourceQuotaConfiguration",
        "limitedResources": [limited] if limited_priorities else [],
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "ResourceQuota", "configuration": quota}],
    }


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextlib.contextmanager
def control_plane(
    kubernetes: Path, controllers: str = _CONTROLLERS, limited_priorities: Sequence[str] = ()
) -> Iterator[ControlPlane]:
    """Give a control plane that is gone afterwards."""
    plane = ControlPlane(kubernetes, controllers, limited_priorities)
    try:
        yield plane
    finally:
        plane.close()
