"""How a guest becomes a node of a control plane: its credentials, and its kubelet's start."""

from __future__ import annotations

import base64
import json

from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import wait_for
from tests.node.crio import SOCKET as CRIO_SOCKET
from tests.node.guest import Guest
from tests.node.network import HOST_ADDRESS

_FOLDER = "/etc/kubernetes"
KUBELET_CONFIG = f"{_FOLDER}/kubelet.yaml"
_CONTAINERD_CONFIG = "/etc/containerd/config.toml"
_CRIO = f"unix://{CRIO_SOCKET}"


def join(guest: Guest, plane: ControlPlane, name: str, timeout_s: float) -> None:
    """Give the guest's kubelet its credentials and start it; return when the node is Ready.

    Raises:  TimeoutError: it is not, and the kubelet's last lines.
    """
    certificate, key = plane.authority.client(name, f"system:node:{name}", "system:nodes")
    user = {"client-certificate": f"{_FOLDER}/kubelet.crt", "client-key": f"{_FOLDER}/kubelet.key"}
    guest.write(f"{_FOLDER}/pki/ca.crt", plane.authority.certificate.read_bytes())
    guest.write(f"{_FOLDER}/kubelet.crt", certificate.read_bytes())
    guest.write(f"{_FOLDER}/kubelet.key", key.read_bytes())
    guest.write(f"{_FOLDER}/kubelet.kubeconfig", guest_kubeconfig(plane, user))
    if guest.machine.cgroup_driver != "systemd":
        guest.check(f"sed -i 's/^cgroupDriver: .*/cgroupDriver: {guest.machine.cgroup_driver}/' {KUBELET_CONFIG}")
        guest.check(f"sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' {_CONTAINERD_CONFIG}")
        guest.check("systemctl restart containerd")
    if guest.machine.runtime == "crio":
        guest.check(f"sed -i 's|^containerRuntimeEndpoint: .*|containerRuntimeEndpoint: {_CRIO}|' {KUBELET_CONFIG}")
    guest.check("systemctl start --no-block kubelet")
    node: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    try:
        wait_for(lambda: _is_ready(plane.api.get(node)), f"node {name} is not Ready", (), timeout_s)
    except TimeoutError as error:
        units = "-u kubelet -u containerd -u crio"
        error.add_note(guest.run(f"systemctl --failed; journalctl {units} -n 40 --no-pager").text)
        raise


def guest_kubeconfig(cluster: ControlPlane, user: Object) -> bytes:
    """Return a kubeconfig of one file, by which a program in the guest reaches the API server."""
    authority = base64.b64encode(cluster.authority.certificate.read_bytes()).decode()
    server = {"server": f"https://{HOST_ADDRESS}:{cluster.port}", "certificate-authority-data": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": server}],
        "users": [{"name": "here", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        "current-context": "here",
    }
    return json.dumps(config).encode()


def pods_run(plane: ControlPlane) -> bool:
    """Tell whether every pod of the default namespace is Ready."""
    pods = plane.api.items("v1", "Pod", "default")
    return bool(pods) and all(_is_ready(pod) for pod in pods)


def _is_ready(one: Object | None) -> bool:
    conditions = one["status"].get("conditions", ()) if one else ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
