"""What the API server asks of the node reaches the guest or fails; nothing leaves the machine."""

from __future__ import annotations

import subprocess

from tests.cluster.api import Refused
from tests.cluster.objects import pod
from tests.node.guest import KUBELET_PORT
from tests.node.network import NODE_ADDRESS, interfaces
from tests.node.node import GuestNode
from tests.support.patience import patience

_KIND = "secrets"
_NOT_HERE = "10.88.0.77"  # of the pods' network, which exists only in the guest


def kubectl(node: GuestNode, *arguments: str) -> str:
    """Return what kubectl prints once it succeeds: an emulated kubelet may be too slow for a TLS handshake."""
    command = [str(node.kubernetes), "kubectl", "--kubeconfig", str(node.cluster.admin_kubeconfig), *arguments]
    done = None

    def succeeds() -> bool:
        nonlocal done
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(60))
        return done.returncode == 0

    try:
        node.until(succeeds, " ".join(arguments))
    except TimeoutError as error:
        error.add_note(str(done))
        raise
    assert done is not None
    return done.stdout


def test_there_is_no_interface_but_loopback(shared_node: GuestNode) -> None:
    assert interfaces() == ["lo"]
    for pid in (*shared_node.cluster.pids(), shared_node.guest.pid):
        assert interfaces(pid) == ["lo"], pid


def test_logs_come_from_the_guest(shared_node: GuestNode) -> None:
    shared_node.add(pod("talker", shared_node.name, "/bin/sh", "-c", "echo in the guest; exec sleep 1000"))
    assert kubectl(shared_node, "logs", "talker") == "in the guest\n"


def test_a_command_runs_in_the_guest(shared_node: GuestNode) -> None:
    release = kubectl(shared_node, "exec", "web", "--", "/bin/busybox", "uname", "-r")
    assert release == shared_node.guest.check("uname -r")


def test_the_kubelet_answers_through_the_api_server(shared_node: GuestNode) -> None:
    path = f"/api/v1/nodes/{shared_node.name}/proxy/stats/summary"
    summary = shared_node.api.call("GET", path)
    assert summary["node"]["nodeName"] == shared_node.name


def test_a_pods_address_is_nowhere_else(shared_node: GuestNode) -> None:
    done = subprocess.run(["ip", "route", "get", _NOT_HERE], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "unreachable" in done.stderr


def test_a_webhook_there_fails_at_once(shared_node: GuestNode) -> None:
    webhook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "asks-a-pod"},
        "webhooks": [
            {
                "name": "asks.koordebpf.test",
                "clientConfig": {"url": f"https://{_NOT_HERE}:9443/"},
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}
                ],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 5,
            }
        ],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}}

    def refusal() -> str:
        try:
            shared_node.api.create(secret)
        except Refused as refused:
            return str(refused)
        shared_node.api.delete(secret)
        return ""

    shared_node.api.create(webhook)
    try:
        shared_node.until(refusal, "the webhook is asked")
        assert "unreachable" in refusal()
    finally:
        shared_node.api.delete(webhook)


def test_the_guest_reaches_no_other_machine(shared_node: GuestNode) -> None:
    # QEMU's user network would connect from here.
    answer = shared_node.guest.run("exec 3<>/dev/tcp/192.0.2.1/443")
    assert answer.code != 0, answer.text


def test_the_kubelets_port_is_forwarded_at_the_nodes_own_address(shared_node: GuestNode) -> None:
    status = shared_node.node()["status"]
    assert {"type": "InternalIP", "address": NODE_ADDRESS} in status["addresses"]
    assert status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == KUBELET_PORT
