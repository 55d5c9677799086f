"""The marks of a Node on a real API server, with the rights that deploy/components/node-mark gives the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordebpf.act.taint import NodeMarker
from koordebpf.errors import KubeConflict, KubeDenied
from koordebpf.kube.clients.taints import CONDITION_TYPE, TAINT_KEY, NodeMarks
from koordebpf.kube.http.transport import open_cluster
from tests.cluster.accounts import account_that_lacks
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import BASE, applied, node, pod
from tests.cluster.processes import ServerProcess
from tests.contract.apiserver import until

TIMEOUT_S = 5.0
RIGHTS = BASE.parent / "components/node-mark/rbac.yaml"
OTHER = {"key": "team", "value": "a", "effect": "NoSchedule"}


@pytest.fixture
def a_node(cluster: ControlPlane, namespace: str) -> Iterator[Object]:
    made = cluster.api.create(node(f"{namespace}-node"))
    yield cluster.api.patch(made, {"spec": {"taints": [OTHER]}})
    cluster.api.delete(made)


@pytest.fixture(scope="module")
def rights(cluster: ControlPlane) -> Iterator[None]:
    with applied(cluster.api, RIGHTS):
        yield


@pytest.fixture
def marks(rights: None, agent_kubeconfig: Path, a_node: Object) -> Iterator[NodeMarks]:
    marks = NodeMarks(open_cluster(agent_kubeconfig), a_node["metadata"]["name"])

    # A role is known a moment after it was made.
    def is_allowed() -> bool:
        try:
            return not marks.remove(timeout_s=TIMEOUT_S)
        except KubeDenied:
            return False

    until(is_allowed, "the right to look")
    yield marks
    marks.close()


@pytest.fixture
def scheduler(cluster: ControlPlane, binaries: Binaries, tmp_path: Path) -> Iterator[ServerProcess]:
    certificate, key = cluster.authority.client("scheduler", "system:kube-scheduler", "none")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    flags = [f"--kubeconfig={cluster.kubeconfig('scheduler', user)}", "--leader-elect=false", "--secure-port=0"]
    server = ServerProcess("scheduler", [binaries.kubernetes, "kube-scheduler", *flags], tmp_path / "scheduler.log")
    yield server
    server.stop()


def now(cluster: ControlPlane, one: Object) -> Any:
    found = cluster.api.get(one)
    assert found is not None
    return found


def tainted_by(cluster: ControlPlane, one: Object) -> set[tuple[str, str]]:
    # The cluster's own controllers mark a Node whose kubelet is not there.
    taints = now(cluster, one)["spec"].get("taints", ())
    return {(each["key"], each["effect"]) for each in taints if "node.kubernetes.io/" not in each["key"]}


def conditions(cluster: ControlPlane, one: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in now(cluster, one)["status"]["conditions"]}


def surely(write: Callable[[], bool]) -> None:
    """Write, once more where one of the cluster's own controllers wrote meanwhile."""

    def is_done() -> bool:
        try:
            return write() or True
        except KubeConflict:
            return False

    until(is_done, "written without a conflict")


def test_the_taint_comes_beside_another_and_is_removed(cluster: ControlPlane, marks: NodeMarks, a_node: Object) -> None:
    surely(lambda: marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S))
    assert tainted_by(cluster, a_node) == {("team", "NoSchedule"), (TAINT_KEY, "NoSchedule")}
    surely(lambda: marks.remove(timeout_s=TIMEOUT_S))
    assert tainted_by(cluster, a_node) == {("team", "NoSchedule")}


def test_the_last_taint_leaves_an_empty_list(cluster: ControlPlane, marks: NodeMarks, a_node: Object) -> None:
    cluster.api.patch(a_node, {"spec": {"taints": None}})
    surely(lambda: marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S))
    surely(lambda: marks.remove(timeout_s=TIMEOUT_S))
    assert tainted_by(cluster, a_node) == set()


def test_the_condition_comes_beside_the_kubelets_and_is_removed(
    cluster: ControlPlane, marks: NodeMarks, a_node: Object
) -> None:
    before = conditions(cluster, a_node)
    assert "Ready" in before
    assert marks.put("condition", at=datetime.now(UTC), timeout_s=TIMEOUT_S)
    assert conditions(cluster, a_node)[CONDITION_TYPE] == "True"
    assert before.keys() < conditions(cluster, a_node).keys()
    assert marks.remove(timeout_s=TIMEOUT_S)
    after = conditions(cluster, a_node)
    assert CONDITION_TYPE not in after
    assert before.keys() <= after.keys()


def test_an_old_list_of_taints_is_not_written(cluster: ControlPlane, marks: NodeMarks, a_node: Object) -> None:
    read = marks._read

    def then_another_writes(timeout_s: float) -> Any:
        found = read(timeout_s)
        cluster.api.patch(a_node, {"spec": {"taints": [OTHER, {"key": "late", "effect": "NoSchedule"}]}})
        return found

    marks._read = then_another_writes  # type: ignore[method-assign]
    with pytest.raises(KubeConflict):
        marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S)
    assert tainted_by(cluster, a_node) == {("team", "NoSchedule"), ("late", "NoSchedule")}


def test_a_thread_marks_it_and_its_end_takes_that_away(cluster: ControlPlane, marks: NodeMarks, a_node: Object) -> None:
    marker = NodeMarker(marks, "taint")
    marker.wish(True)
    until(lambda: (TAINT_KEY, "NoSchedule") in tainted_by(cluster, a_node), "the taint")
    marker.close()
    assert tainted_by(cluster, a_node) == {("team", "NoSchedule")}


def test_without_the_component_the_agent_may_not(cluster: ControlPlane, namespace: str, a_node: Object) -> None:
    account = account_that_lacks(cluster, namespace, "pods/eviction")
    marks = NodeMarks(open_cluster(account), a_node["metadata"]["name"])
    with pytest.raises(KubeDenied, match="needs RBAC verb get on nodes"):
        marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S)
    marks.close()


def test_the_scheduler_sends_no_pod_to_a_tainted_node(
    cluster: ControlPlane, marks: NodeMarks, a_node: Object, namespace: str, scheduler: ServerProcess
) -> None:
    cluster.api.patch(a_node, {"metadata": {"labels": {"here": namespace}}, "spec": {"taints": None}})
    surely(lambda: marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S))
    again = pod("again", "", namespace=namespace)
    again["spec"] = {**again["spec"], "nodeSelector": {"here": namespace}}
    del again["spec"]["nodeName"]
    cluster.api.create(again)

    def why_not() -> str:
        scheduler.check()
        said = now(cluster, again)["status"].get("conditions", ())
        return next((each["message"] for each in said if each.get("reason") == "Unschedulable"), "")

    # Which taint the message does not say; there is no other one.
    until(lambda: "untolerated taint" in why_not(), "the scheduler's no")
    assert tainted_by(cluster, a_node) == {(TAINT_KEY, "NoSchedule")}
    assert "nodeName" not in now(cluster, again)["spec"]
    surely(lambda: marks.remove(timeout_s=TIMEOUT_S))
    until(lambda: now(cluster, again)["spec"].get("nodeName") == a_node["metadata"]["name"], "the pod's node")
