"""The agent as a DaemonSet with NRI beside the containerd of the node's Debian: one story, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.deployment import Deployment
from tests.node.image import Suite
from tests.node.node import SLOWER, GuestNode
from tests.node.nri import LIMITED, UNLIMITED, batch_pods, found, remove

AT_ONCE = 10
COMPONENT = "  - ../../components/nri\n"
SETTINGS = "base/agent/config.yaml"
NRI_OFF = "a runtime lets only one plugin set a value.\n  enabled: false"
ADJUSTED = "koordebpf_nri_adjusted_containers_total"


@pytest.fixture(scope="module")
def deployment(
    suite: Suite,
    shared_node: GuestNode,
    binaries: Binaries,
    agent_image: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Deployment]:
    if not suite.has_nri:
        pytest.skip(f"not this kind of machine: containerd {suite.containerd} of {suite.name} has no NRI")
    shared_node.import_image(agent_image)
    folder = tmp_path_factory.mktemp("deployment")
    made = Deployment(shared_node.cluster, binaries, shared_node.name, folder, slower=SLOWER)
    try:
        made.edit("overlays/enforce/kustomization.yaml", f"# {COMPONENT}", COMPONENT)
        made.edit(SETTINGS, "BatchResource: false", "BatchResource: true")
        made.edit(SETTINGS, NRI_OFF, NRI_OFF.replace("false", "true"))
        yield made
    finally:
        made.close()


def metric(deployment: Deployment, agent: str, name: str) -> float:
    lines = (line.rpartition(" ") for line in deployment.metrics(agent).splitlines())
    return sum(float(value) for key, _, value in lines if key.partition("{")[0] == name)


def test_without_an_agent_a_batch_pod_begins_with_two_shares_and_no_limit(
    deployment: Deployment, shared_node: GuestNode
) -> None:
    pods = batch_pods(shared_node, "without")
    assert found(shared_node, pods) == [UNLIMITED]
    remove(shared_node, pods)


def test_ten_pods_at_once_are_limited_before_their_first_instruction(
    deployment: Deployment, shared_node: GuestNode, figure: Callable[[str], None]
) -> None:
    # GIVEN agents as deploy/ has them, with its component nri
    deployment.kubectl("apply", "--server-side", "--force-conflicts", "-k", "deploy/overlays/enforce")
    deployment.kubectl("label", "node", shared_node.name, "koordebpf.io/mode=enforce")
    agent = deployment.rolled_out("enforce")
    deployment.said(agent, "NRI: registered with containerd")
    # WHEN they start
    pods = batch_pods(shared_node, "many", AT_ONCE)
    # THEN each has its limits from the first instruction on
    assert found(shared_node, pods) == [LIMITED] * AT_ONCE
    assert metric(deployment, agent, ADJUSTED) == AT_ONCE
    calls = 'koordebpf_nri_call_seconds_bucket{le="%s",method="CreateContainer",result="succeeded"}'
    within = {le: line_value(deployment.metrics(agent), calls % le) for le in ("0.005", "0.05", "+Inf")}
    figure(f"{within['0.005']:g} of {within['+Inf']:g} answers within 5 ms, {within['0.05']:g} within 50 ms")
    remove(shared_node, pods)


def line_value(text: str, key: str) -> float:
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{key} "))
