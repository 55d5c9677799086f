"""What a kubeconfig's context leads to: requests, and the websockets on which commands in pods talk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import InsecureRequestWarning

from koordebpf.errors import ConfigError, KubeError
from koordebpf.kube.http.refusal import refusal
from koordebpf.kube.http.transport import SERVICE_ACCOUNT, Transport, open_in_cluster

if TYPE_CHECKING:
    from websocket import WebSocket

_DEFAULT = "default"
_CONNECT_S = 10.0


class Cluster:
    """A cluster as one user sees it. `namespace` is the context's. Safe for threads.

    Cost:  it imports the kubernetes package: 22 MB and 0.4 s of CPU.
    """

    def __init__(self, configuration: Any, namespace: str) -> None:
        from kubernetes.client.rest import RESTClientObject

        self.namespace = namespace
        self._configuration = configuration
        pool = RESTClientObject(configuration).pool_manager
        if not configuration.verify_ssl:
            urllib3.disable_warnings(InsecureRequestWarning)  # the kubeconfig asks for it; once is enough
        self.transport = Transport(configuration.host, pool, self._authorize)

    def _authorize(self) -> dict[str, str]:
        from kubernetes.config import ConfigException

        # The package refreshes the tokens of kubeconfig plugins inside this call.
        try:
            bearer = self._configuration.auth_settings().get("BearerToken")
        except (ConfigException, OSError) as error:
            where = self._configuration.host
            raise KubeError(f"the credentials for {where} cannot be refreshed: {error}") from error
        return {"Authorization": bearer["value"]} if bearer and bearer["value"] else {}

    def websocket(self, path: str, query: list[tuple[str, str]], *, resource: str) -> WebSocket:
        """Return an open websocket whose protocol is that of commands in pods, v5 or v4.

        Source:  k8s.io/apimachinery pkg/util/remotecommand; RBAC's verb is `get` before Kubernetes 1.35, then `create`.
        Raises:  KubeDenied, KubeGone, KubeError: there is none.
        """
        import websocket
        from kubernetes.stream import ws_client

        websocket.setdefaulttimeout(_CONNECT_S)
        headers = {name.lower(): value for name, value in self.transport.credentials().items()}
        scheme, _, place = self.transport.url.partition("://")
        url = f"{'wss' if scheme == 'https' else 'ws'}://{place}{path}?{urlencode(query)}"
        try:
            opener: Any = ws_client.create_websocket  # without types
            opened: WebSocket = opener(self._configuration, url, headers)
        except websocket.WebSocketBadStatusException as error:
            body = error.resp_body or b""
            raise refusal(error.status_code, error.resp_headers or {}, body, "create", resource) from error
        except (websocket.WebSocketException, OSError) as error:
            raise KubeError(f"create {resource}: no connection to {self.transport.url}: {error}") from error
        return opened

    def close(self) -> None:
        """Cut every connection."""
        self.transport.close()


def open_kubeconfig(kubeconfig: str | None = None, context: str | None = None) -> Cluster:
    """Return the cluster that kubectl would talk to, found in the same way.

    Args:
        kubeconfig: a file; None: those of $KUBECONFIG, else ~/.kube/config, else the ServiceAccount of this pod.
        context: one of its contexts; None: its current one.
    Raises:  ConfigError: the configuration cannot be used.
    """
    import yaml
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, kube_config

    files = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(Path(each).exists() for each in files.split(os.pathsep) if each):
        if kubeconfig is None and context is None and SERVICE_ACCOUNT.is_dir():
            return _in_this_pod()
        raise ConfigError("--kubeconfig", files, "no such file; name one, or set KUBECONFIG")
    configuration = Configuration()
    try:
        # Both are without types.
        kinds: Any = kube_config
        merged = kinds.KubeConfigMerger(files).config
        loader = kinds.KubeConfigLoader(config_dict=merged, config_base_path=None, active_context=context)
        loader.load_and_set(configuration)
        return Cluster(configuration, str(loader.current_context["context"].get("namespace") or _DEFAULT))
    # It looks at hardly any type of what it reads.
    except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigError(files, context, f"must lead to an API server: {error}") from error


def _in_this_pod() -> Cluster:
    from kubernetes.client import Configuration

    open_in_cluster().close()  # says what is missing
    configuration = Configuration()
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    configuration.host = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    configuration.ssl_ca_cert = str(SERVICE_ACCOUNT / "ca.crt")
    token = (SERVICE_ACCOUNT / "token").read_text().strip()
    configuration.api_key = {"authorization": token}
    configuration.api_key_prefix = {"authorization": "Bearer"}
    return Cluster(configuration, (SERVICE_ACCOUNT / "namespace").read_text().strip())
