"""Whether this client has a right, as the API server says."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from apiserver import Server, gives, status

from koordebpf.errors import KubeError
from koordebpf.kube.clients.access import may
from koordebpf.kube.http.transport import open_cluster

PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def asks(kubeconfig: Path) -> bool:
    with closing(open_cluster(kubeconfig)) as transport:
        return may(transport, "patch", "nodes", "n1")


@pytest.mark.parametrize("allowed", [True, False])
def test_the_servers_word_counts(server: Server, kubeconfig: Path, allowed: bool) -> None:
    server.on(PATH, gives(201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}))
    assert asks(kubeconfig) is allowed
    (request,) = server.requests
    assert json.loads(request.body)["spec"] == {
        "resourceAttributes": {"verb": "patch", "resource": "nodes", "name": "n1"}
    }


def test_no_answer_is_no_right(server: Server, kubeconfig: Path) -> None:
    server.on(PATH, gives(201, {"kind": "SelfSubjectAccessReview"}))
    assert asks(kubeconfig) is False


@pytest.mark.parametrize("body", [b"<html>", b'{"status": {"allowed": "yes"}}'])
def test_what_is_no_answer_is_an_error(server: Server, kubeconfig: Path, body: bytes) -> None:
    server.on(PATH, gives(201, body))
    with pytest.raises(KubeError, match="SelfSubjectAccessReview"):
        asks(kubeconfig)


def test_a_refusal_is_an_error(server: Server, kubeconfig: Path) -> None:
    server.on(PATH, gives(403, status(403, "Forbidden", "no")))
    with pytest.raises(KubeError):
        asks(kubeconfig)
