"""What runs is the release that was chosen."""

from __future__ import annotations

import subprocess

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.releases import chosen


def test_the_api_server_is_of_it(cluster: ControlPlane) -> None:
    assert cluster.api.call("GET", "/version")["gitVersion"] == f"v{chosen().version}"


def test_the_kubelet_is_of_it(binaries: Binaries) -> None:
    said = subprocess.run([binaries.kubernetes, "kubelet", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == f"Kubernetes v{chosen().version}"
