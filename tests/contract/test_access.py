"""Whether this client has a right, as the API server says."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from koordebpf.errors import KubeDenied, KubeError
from koordebpf.kube.cache.cnr import CNR_PATH, CustomNodeResource
from koordebpf.kube.clients.access import cnr_now, may
from koordebpf.kube.http.transport import open_cluster
from tests.contract.apiserver import Server, gives, status

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


def cnr(kubeconfig: Path) -> CustomNodeResource | None:
    with closing(open_cluster(kubeconfig)) as transport:
        return cnr_now(transport, "n1")


def test_a_node_has_a_custom_node_resource_or_none(server: Server, kubeconfig: Path) -> None:
    assert cnr(kubeconfig) is None
    server.on(f"{CNR_PATH}/n1", gives(200, {"kind": "CustomNodeResource", "metadata": {"name": "n1"}}))
    assert cnr(kubeconfig) == CustomNodeResource()


def test_without_the_right_to_read_it_that_is_said(server: Server, kubeconfig: Path) -> None:
    server.on(f"{CNR_PATH}/n1", gives(403, status(403, "Forbidden", "no")))
    with pytest.raises(KubeDenied):
        cnr(kubeconfig)


def test_one_that_cannot_be_read_is_named(server: Server, kubeconfig: Path) -> None:
    server.on(f"{CNR_PATH}/n1", gives(200, b'{"status": 7}'))
    with pytest.raises(KubeError, match="CustomNodeResource n1"):
        cnr(kubeconfig)
