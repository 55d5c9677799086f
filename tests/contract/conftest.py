from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.support.values.profiles  # noqa: F401
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource, Wanted
from tests.contract.apiserver import Cluster, Server
from tests.contract.sources import PACE, Open


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def cluster(server: Server) -> Cluster:
    return Cluster(server)


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: agent}}}}]
clusters: [{{name: here, cluster: {{server: "{server.url}"}}}}]
users: [{{name: agent, user: {{token: sesame}}}}]
"""
    )
    return path


@pytest.fixture
def open_source(kubeconfig: Path) -> Iterator[Open]:
    opened: list[ApiSource] = []

    def _open(pace: Pace = PACE, wake: Callable[[], None] = lambda: None, **more: Any) -> ApiSource:
        source = ApiSource(open_cluster(kubeconfig), "n1", pace, Wanted(**more))
        opened.append(source)
        source.start(wake)
        return source

    yield _open
    for source in opened:
        source.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key, as a kubelet makes itself one."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=kubelet"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def kubelet(certificate: tuple[Path, Path]) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = Server(context)
    yield server
    server.close()
