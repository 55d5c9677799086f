"""Clusters that admit system-critical pods only where a quota names their priority, as GKE: ours has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.api import Refused
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.objects import NAMESPACE, deployed, pod
from tests.contract.apiserver import until

CRITICAL = ("system-node-critical", "system-cluster-critical")


@pytest.fixture(scope="module")
def limiting(binaries: Binaries) -> Iterator[ControlPlane]:
    with control_plane(binaries.kubernetes, limited_priorities=CRITICAL) as cluster:
        yield cluster


@pytest.mark.slow
def test_agents_and_controllers_are_admitted(limiting: ControlPlane) -> None:
    limiting.api.create(*deployed("namespace.yaml"))
    limiting.add_namespace("elsewhere")
    (quota,) = deployed("resourcequota.yaml")
    pods = [pod(f"of-{priority}", "n", namespace=NAMESPACE, priority=priority) for priority in CRITICAL]
    for one in pods:
        with pytest.raises(Refused, match="insufficient quota to match these scopes"):
            limiting.api.create(one)
    limiting.api.create(quota)
    until(lambda: (limiting.api.get(quota) or {}).get("status", {}).get("hard"), "the quota is known")
    for one in pods:
        limiting.api.create(one)
    with pytest.raises(Refused, match="insufficient quota to match these scopes"):
        limiting.api.create(pod("other", "n", namespace="elsewhere", priority=CRITICAL[0]))
