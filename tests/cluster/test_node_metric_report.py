"""Reports of a node on a real API server: patches, conflicts, two writers, the agent's rights, a wire that is slow."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import KubeConflict, KubeDenied
from koordebpf.jobs.node_metric import sending as sending_module
from koordebpf.jobs.node_metric.sending import status_patch
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.colocation.node_metrics import NodeMetricStatus, OwnNodeMetric
from koordebpf.kube.http.transport import open_cluster
from koordebpf.units import NS_PER_S
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node_metrics import defined, node_metric
from tests.cluster.objects import BASE, applied
from tests.contract.apiserver import until
from tests.support.node_metric_reports import Reporting

RIGHTS = BASE.parent / "components/instead-of-koordlet/rbac-node-metric.yaml"
PACE = Pace(first_s=0.05, cap_s=0.2, slow_s=0.2)
KOORDLET = "?fieldManager=koordlet"


def status_of(millicpu: int, pods: int = 3) -> Any:
    used = {"resources": {"cpu": f"{millicpu}m", "memory": "1Gi"}}
    entries = dict.fromkeys(("avg", "p50", "p90", "p95", "p99"), used)
    named = {"priority": "koord-batch", "qos": "BE"}
    return {
        "nodeMetric": {
            "nodeUsage": used,
            "aggregatedNodeUsages": [{"duration": "5m0s", "usage": entries}, {"duration": "30m0s", "usage": {}}],
            "systemUsage": {},
            "numaUsages": [{"numaNodeID": 0, "nodeUsage": used, "systemUsage": {}}],
        },
        "podsMetric": [{"name": f"p{n:03}", "namespace": "be", "podUsage": used, **named} for n in range(pods)],
        "hostApplicationMetric": [{"name": "nginx", "usage": used, "qos": "LS"}],
        "prodReclaimableMetric": {"resource": {}},
        "prodPeakMetric": {"resource": used},
    }


class Rig(Reporting):
    """A reporter of one node, with the credentials of that file."""

    def __init__(self, kubeconfig: Path, node_name: str, interval_ns: int = 60 * NS_PER_S) -> None:
        self._at = int(time.time())
        super().__init__(kubeconfig, node_name, PACE, interval_ns)
        self.reflector.start()

    def report(self, millicpu: int, pods: int = 3) -> Any:
        self._at += 1
        update_time = datetime.fromtimestamp(self._at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self.send({"updateTime": update_time, **status_of(millicpu, pods)})


@pytest.fixture(autouse=True)
def without_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_module, "_BURST_NS", 0)


@pytest.fixture(scope="module")
def served(cluster: ControlPlane) -> Iterator[None]:
    with defined(cluster):
        yield


@pytest.fixture(scope="module")
def rights(cluster: ControlPlane) -> Iterator[None]:
    with applied(cluster.api, RIGHTS):
        yield


@pytest.fixture
def one(served: None, cluster: ControlPlane, namespace: str) -> Iterator[Object]:
    made = cluster.api.create(node_metric(f"{namespace}-node"))
    yield made
    cluster.api.delete(made)


@pytest.fixture
def rig(cluster: ControlPlane, rights: None, agent_kubeconfig: Path, one: Object) -> Iterator[Rig]:
    with contextlib.closing(Rig(agent_kubeconfig, one["metadata"]["name"])) as made:
        yield made


def seen(cluster: ControlPlane, one: Object) -> Any:
    found: Any = cluster.api.get(one)
    return found.get("status")


def koordlet_writes(cluster: ControlPlane, one: Object, millicpu: int, at: datetime | None = None) -> None:
    """A whole status through the subresource, as koordlet's UpdateStatus."""
    found: Any = cluster.api.get(one)
    time_text = (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    found["status"] = {"updateTime": time_text, **status_of(millicpu)}
    name = one["metadata"]["name"]
    cluster.api.call("PUT", f"/apis/slo.koordinator.sh/v1alpha1/nodemetrics/{name}/status{KOORDLET}", found)


def test_reports_arrive_with_the_rights_of_the_component_and_what_moved_alone_is_sent(
    cluster: ControlPlane, one: Object, rig: Rig
) -> None:
    first = rig.report(100, 110)
    until(lambda: seen(cluster, one) == first, "the first report")
    whole_bytes = rig.reporter.counts.bytes
    # A pod came, another one left, and one moved.
    second = rig.report(100, 110)
    second["podsMetric"] = [
        *second["podsMetric"][:40],
        {**second["podsMetric"][40], "name": "p039z"},
        *second["podsMetric"][41:],
    ]
    second["podsMetric"][70] = {**second["podsMetric"][70], "podUsage": {"resources": {"cpu": "3", "memory": "1Gi"}}}
    until(lambda: seen(cluster, one) == second, "the second one")
    assert rig.reporter.counts.bytes - whole_bytes < 1000
    found: Any = cluster.api.get(one)
    managers = [each for each in found["metadata"]["managedFields"] if each.get("subresource") == "status"]
    assert [(each["manager"], each["operation"]) for each in managers] == [("koordebpf", "Update")]


def test_a_spec_that_the_manager_changes_is_kept_and_the_report_is_sent_on(
    cluster: ControlPlane, one: Object, rig: Rig
) -> None:
    first = rig.report(100)
    until(lambda: seen(cluster, one) == first, "the first report")
    for seconds in range(30, 40):
        cluster.api.patch(one, {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": seconds}}})
        made = rig.report((seconds - 20) * 1000)  # each moves by more than 5 %
        until(lambda made=made: seen(cluster, one) == made, "the next one")
    found: Any = cluster.api.get(one)
    assert found["spec"] == {"metricCollectPolicy": {"reportIntervalSeconds": 39}}


def test_a_patch_of_an_old_version_is_refused(cluster: ControlPlane, one: Object) -> None:
    status = NodeMetricStatus(open_cluster(cluster.admin_kubeconfig), one["metadata"]["name"])
    with contextlib.closing(status):
        made = {"updateTime": "2026-01-02T03:04:05Z", **status_of(1)}
        body = status_patch(one["metadata"]["resourceVersion"], None, made)
        got = status.patch(body, timeout_s=5)
        assert isinstance(got, OwnNodeMetric)
        assert got.status == made
        with pytest.raises(KubeConflict):
            status.patch(body, timeout_s=5)


def test_an_older_definition_gets_what_it_knows_and_nothing_again_and_again(
    served: None, cluster: ControlPlane, one: Object, rig: Rig
) -> None:
    from tests.cluster.node_metrics import definition

    newest = definition()
    cluster.api.patch(newest, {"spec": {"versions": definition(is_old=True)["spec"]["versions"]}})
    try:

        def is_old() -> bool:
            cluster.api.patch(one, {"status": {"prodPeakMetric": {"resource": {}}}}, "status")
            return "prodPeakMetric" not in (seen(cluster, one) or {})

        until(is_old, "the older definition")
        rig.report(100)
        until(lambda: (seen(cluster, one) or {}).get("podsMetric"), "the report")
        assert "numaUsages" not in seen(cluster, one)["nodeMetric"]
        until(lambda: rig.reporter.held == "quiet", "that nothing is left to send")
        sent = rig.reporter.counts.tries
        rig.report(101)
        time.sleep(0.5)
        assert rig.reporter.counts.tries == sent
    finally:
        cluster.api.patch(newest, {"spec": {"versions": newest["spec"]["versions"]}})


@pytest.mark.slow
def test_two_writers_never_fight(cluster: ControlPlane, one: Object, rights: None, agent_kubeconfig: Path) -> None:
    # Times of writers are in whole seconds.
    silent_s = 3
    with contextlib.closing(Rig(agent_kubeconfig, one["metadata"]["name"], silent_s * NS_PER_S)) as rig:

        def holds_back(millicpu: int) -> bool:  # of one write it may hear too late
            koordlet_writes(cluster, one, millicpu)
            rig.report(100 * millicpu)
            return rig.reporter.held == "other"

        until(lambda: holds_back(1), "that koordlet writes")
        assert rig.reporter.other_writer == "koordlet"
        theirs = seen(cluster, one)
        time.sleep(silent_s)
        assert seen(cluster, one) == theirs
        made = rig.report(200)
        until(lambda: seen(cluster, one) == made, "the report once koordlet is silent")
        until(lambda: holds_back(3), "that it is back")
        theirs = seen(cluster, one)
        rig.report(400)
        time.sleep(0.5)
        assert seen(cluster, one) == theirs


def test_without_the_rights_it_says_which(cluster: ControlPlane, one: Object, namespace: str) -> None:
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "without", "namespace": namespace},
    }
    cluster.api.create(account)
    status = NodeMetricStatus(open_cluster(cluster.service_account(namespace, "without")), one["metadata"]["name"])
    with contextlib.closing(status), pytest.raises(KubeDenied) as caught:
        status.patch(json.dumps([]).encode(), timeout_s=5)
    assert (caught.value.verb, caught.value.resource) == ("patch", "nodemetrics/status")
