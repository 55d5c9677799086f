"""The way to the API server that every pod has: two variables of its environment, and the ServiceAccount it mounts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from koordebpf.errors import ConfigError
from koordebpf.kube.http.transport import open_in_cluster
from koordebpf.kube.sources.api import ApiSource
from tests.contract.apiserver import Cluster, Server, node, nodeslo, pod, until


@pytest.fixture
def account(tmp_path: Path, certificate: tuple[Path, Path]) -> Path:
    (tmp_path / "token").write_text("sesame\n")
    (tmp_path / "ca.crt").write_bytes(certificate[0].read_bytes())
    return tmp_path


@pytest.fixture
def tls_server(kubelet: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    address = urlsplit(kubelet.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    return kubelet


def test_a_source_lists_and_watches_with_the_account_of_its_pod(tls_server: Server, account: Path) -> None:
    cluster = Cluster(tls_server)
    cluster.pods.items, cluster.nodes.items, cluster.nodeslos.items = [pod("a", 1)], [node(5)], [nodeslo(7, 90)]
    source = ApiSource(open_in_cluster(account), "n1")
    source.start(lambda: None)
    try:
        until(lambda: source.state().synced_at_ns and source.state().nodeslo, "the lists")
        assert [each.metadata.name for each in source.state().pods] == ["a"]
    finally:
        source.close()
    assert {request.headers["authorization"] for request in tls_server.requests} == {"Bearer sesame"}


def test_a_token_that_kubelet_renewed_is_shown_from_the_next_request_on(tls_server: Server, account: Path) -> None:
    tls_server.on("/version", lambda exchange: exchange.answer(200, {}))
    transport = open_in_cluster(account)
    ask = {"verb": "get", "resource": "version", "timeout_s": 30.0}
    try:
        transport.get("/version", **ask)
        (account / "new").write_text("open sesame")
        (account / "new").rename(account / "token")
        transport.get("/version", **ask)
    finally:
        transport.close()
    assert [request.headers["authorization"] for request in tls_server.requests] == [
        "Bearer sesame",
        "Bearer open sesame",
    ]


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_what_the_account_lacks_is_named(name: str, tls_server: Server, account: Path) -> None:
    (account / name).unlink()
    with pytest.raises(ConfigError, match=f"{name}.*must be readable"):
        open_in_cluster(account)


def test_an_address_of_ipv6_is_put_in_brackets(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    transport = open_in_cluster(account)
    assert transport.url == "https://[fd00::1]:443"
    transport.close()


def test_a_node_does_not_pay_for_the_package_that_a_kubeconfig_needs(account: Path) -> None:
    program = (
        "import pathlib, sys; from koordebpf.kube.http.transport import open_in_cluster;"
        " import koordebpf.kube.sources.api;"
        f" open_in_cluster(pathlib.Path({str(account)!r})).close();"
        " print([name for name in sys.modules if name.split('.')[0] == 'kubernetes'])"
    )
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    assert said.stdout == "[]\n"
