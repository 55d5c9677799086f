"""The cluster of these tests: one for all of them, made of real servers, gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.cluster.binaries import Binaries, obtain, say_line
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.node import RealNode
from tests.cluster.objects import AGENT, NAMESPACE, install, node
from tests.cluster.required import require_real_node
from tests.cluster.story import NODE_BYTES, Story


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests of a real node that would run beside others of the live kernel."""
    for item in items:
        if "real_node" in getattr(item, "fixturenames", ()) and needs.of_module(item.path) != needs.KUBELET:
            raise pytest.UsageError(f"{item.nodeid} uses a real node: mark its module kubelet")


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return obtain(say_line)


@pytest.fixture(scope="session")
def cluster(binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane into which deploy/ was applied."""
    with control_plane(binaries.kubernetes) as plane:
        install(plane.api)
        yield plane


@pytest.fixture(scope="session")
def agent_kubeconfig(cluster: ControlPlane) -> Path:
    """The agent's own ServiceAccount, with what deploy/ allows it and nothing else."""
    return cluster.service_account(NAMESPACE, AGENT)


@pytest.fixture(scope="session")
def real_node(cluster: ControlPlane, binaries: Binaries) -> Iterator[RealNode]:
    """A node of 3 GiB with kubelet and containerd."""
    require_real_node()
    made = RealNode(cluster, binaries, "real", NODE_BYTES)
    yield made
    made.close()


@pytest.fixture
def node_name(cluster: ControlPlane) -> Iterator[str]:
    """A Node that only the API server knows."""
    made = cluster.api.create(node(f"n-{secrets.token_hex(4)}"))
    yield made["metadata"]["name"]
    cluster.api.delete(made)


@pytest.fixture
def story(cluster: ControlPlane, real_node: RealNode, namespace: str, tmp_path: Path) -> Iterator[Story]:
    """The real node with pods and an agent of the test's own; afterwards it has neither."""
    story = Story(cluster, real_node, namespace, tmp_path)
    yield story
    story.close()


@pytest.fixture
def namespace(cluster: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own, in which pods may be made; its deletion begins afterwards."""
    name = f"t-{secrets.token_hex(4)}"
    made = cluster.add_namespace(name)
    yield name
    cluster.api.delete(made)
