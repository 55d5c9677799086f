"""Batch and mid resources against an API server: what is written on a Node, and what is left alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.report.prom.controller import BatchMetrics
from tests.contract.apiserver import Reply, Request, Server, status
from tests.contract.batch_rig import (
    BATCH_CPU,
    BATCH_MEMORY,
    GIB,
    MID_CPU,
    MID_MEMORY,
    BatchRig,
    allocatable,
    big_node,
    colocation,
    pod,
    report,
)
from tests.contract.objectstore import CONFIGMAPS, MANAGER_LEASES, NODEMETRICS, NODES, PODS, TOPOLOGIES, Store

Open = Callable[..., BatchRig]
# 100 − 40 − 5 − 12, and 400 − 140 − 20 − 30.
BOOTSTRAP = "kubectl apply --server-side -k deploy/bootstrap"
USUAL = {BATCH_CPU: 43_000, BATCH_MEMORY: 210 * GIB, MID_CPU: 3_000, MID_MEMORY: 4 * GIB}


def usual_report(**more: Any) -> Any:
    return report("n1", ("5", "20Gi"), ("a", "12", "30Gi"), node=("20", "60Gi"), reclaimable=("3", "4Gi"), **more)


@pytest.fixture
def store(server: Server) -> Store:
    store = Store(server)
    store.put(NODES, big_node("n1"))
    store.put(PODS, pod("a", "n1", "10", "40Gi"))
    store.put(PODS, pod("elsewhere", "n2", "10", "40Gi"))
    store.put(PODS, pod("over", "n1", "50", "40Gi", phase="Succeeded"))
    store.put(CONFIGMAPS, colocation())
    store.put(NODEMETRICS, usual_report())
    return store


@pytest.fixture
def open_rig(kubeconfig: Path, store: Store) -> Iterator[Open]:
    opened: list[BatchRig] = []

    def _open(**how: bool) -> BatchRig:
        opened.append(BatchRig(kubeconfig, **how))
        return opened[-1]

    yield _open
    for each in opened:
        each.close()


def patches(store: Store) -> list[Request]:
    return [request for request in list(store.server.requests) if request.method == "PATCH"]


def written(store: Store, rig: BatchRig) -> Any:
    return rig.until(lambda: allocatable(store, "n1"), "the Node to be written")


class TestNode:
    def test_it_gets_the_four_resources_and_the_original_amounts(self, store: Store, open_rig: Open) -> None:
        assert written(store, open_rig()) == USUAL
        node = store.objects[NODES]["n1"]
        assert node["status"]["allocatable"]["cpu"] == "100"
        origin = json.loads(node["metadata"]["annotations"]["node.koordinator.sh/originExtendedAllocatable"])
        assert origin == {"resources": {BATCH_CPU: "43000", BATCH_MEMORY: str(210 * GIB)}}

    def test_each_write_of_a_node_and_of_its_nodemetric_is_counted(self, store: Store, open_rig: Open) -> None:
        store.remove(NODEMETRICS, "n1")
        rig, metrics = open_rig(), BatchMetrics()
        rig.until(lambda: store.writes(NODEMETRICS), "the NodeMetric")
        store.put(NODEMETRICS, usual_report())
        written(store, rig)

        def is_counted() -> bool:  # an answer that is on its way is not counted yet; of two tries one may be refused
            rig.batch.count(metrics)
            nodemetrics = metrics.writes.get("nodemetric", 0)
            others = {"node": len(patches(store)), "topology": 0, "failed": 0}
            return metrics.writes == {**others, "nodemetric": nodemetrics} and (
                1 <= nodemetrics <= len(store.writes(NODEMETRICS))
            )

        rig.until(is_counted, "each write in the count")

    def test_without_a_config_map_no_node_is_given_anything(self, store: Store, open_rig: Open) -> None:
        store.remove(CONFIGMAPS, "slo-controller-config")
        rig = open_rig()
        rig.until(lambda: "n1" in rig.batch.calculations.computed, "a look")
        for _ in range(5):
            assert rig.look() == ()
        assert allocatable(store, "n1") == {}
        assert patches(store) == []

    def test_a_small_change_waits_and_a_large_one_does_not(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        count = len(patches(store))
        store.put(
            NODEMETRICS, report("n1", ("5", "20Gi"), ("a", "13", "30Gi"), reclaimable=("3", "4Gi"), node=("1", "1"))
        )
        rig.until(lambda: rig.batch.calculations.computed["n1"].result.calculations[BATCH_CPU].result == 42_000, "news")
        for _ in range(5):
            rig.look()
        assert len(patches(store)) == count
        rig.clock_ns += 301 * 10**9
        rig.until(lambda: allocatable(store, "n1")[BATCH_CPU] == 42_000, "the small change")
        store.put(
            NODEMETRICS, report("n1", ("5", "20Gi"), ("a", "30", "30Gi"), reclaimable=("3", "4Gi"), node=("1", "1"))
        )
        rig.until(lambda: allocatable(store, "n1")[BATCH_CPU] == 25_000, "the large change")
        assert len(patches(store)) == count + 2

    def test_the_sums_before_third_parties_are_written_although_nothing_is_left(
        self, store: Store, open_rig: Open
    ) -> None:
        """They stand in an annotation beside the amounts."""
        taken = {BATCH_CPU: "90000", BATCH_MEMORY: "400Gi"}
        parties = {"allocations": [{"name": "yarn", "priority": "koord-batch", "resources": taken}]}
        annotations = {"node.koordinator.sh/thirdPartyAllocations": json.dumps(parties)}
        store.put(NODES, big_node("n1", annotations=annotations))

        def origin() -> Any:
            written_ = store.objects[NODES]["n1"]["metadata"]["annotations"]
            text = written_.get("node.koordinator.sh/originExtendedAllocatable")
            return json.loads(text)["resources"][BATCH_CPU] if text else None

        rig = open_rig()
        rig.until(lambda: origin() == "43000", "the sum")
        assert allocatable(store, "n1")[BATCH_CPU] == 0
        store.put(
            NODEMETRICS, report("n1", ("5", "20Gi"), ("a", "50", "30Gi"), reclaimable=("3", "4Gi"), node=("1", "1"))
        )
        rig.until(lambda: origin() == "5000", "the new sum")
        count = len(patches(store))
        rig.close()
        second = open_rig()
        second.until(lambda: "n1" in second.batch.calculations.computed, "a look")
        for _ in range(5):
            second.look()
        assert len(patches(store)) == count

    def test_without_news_nothing_is_asked_or_written(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        rig.until(lambda: not rig.publisher.pending, "the watch to show it")
        before = len(patches(store))
        for _ in range(20):
            rig.look()
            rig.clock_ns += 400 * 10**9
        assert len(patches(store)) == before

    def test_a_restart_writes_nothing(self, store: Store, open_rig: Open) -> None:
        first = open_rig()
        written(store, first)
        first.close()
        count = len(patches(store))
        second = open_rig()
        second.until(lambda: second.batch.calculations.computed, "a look")
        second.look()
        assert len(patches(store)) == count

    def test_an_old_report_takes_them_away(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        store.put(NODEMETRICS, usual_report(age_s=16 * 60))
        rig.until(lambda: not allocatable(store, "n1"), "the reset")
        origin = "node.koordinator.sh/originExtendedAllocatable"
        rig.until(lambda: origin not in store.objects[NODES]["n1"]["metadata"]["annotations"], "no original amounts")
        assert store.objects[NODES]["n1"]["status"]["capacity"] == {"cpu": "100", "memory": "400Gi"}

    def test_a_report_grows_old_though_no_object_changes(
        self, store: Store, open_rig: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = open_rig()
        written(store, rig)
        import time

        real = time.time_ns
        monkeypatch.setattr("koordebpf.controller.batch.part.time.time_ns", lambda: real() + 16 * 60 * 10**9)
        rig.until(lambda: not allocatable(store, "n1"), "the reset")

    def test_a_deleted_report_takes_them_away(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        store.remove(NODEMETRICS, "n1")
        rig.until(lambda: not allocatable(store, "n1"), "the reset")

    def test_enable_false_takes_them_away(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        store.put(CONFIGMAPS, colocation(enable=False))
        rig.until(lambda: not allocatable(store, "n1"), "the reset")

    def test_a_new_pod_without_a_report_counts_with_its_request(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        store.put(PODS, pod("new", "n1", "10", "20Gi", phase="Pending"))
        rig.until(lambda: allocatable(store, "n1")[BATCH_CPU] == 33_000, "the new pod")
        store.remove(PODS, "new")
        rig.until(lambda: allocatable(store, "n1") == USUAL, "the pod that has gone")

    def test_labels_and_annotations_of_a_node_count(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        annotations = {
            "node.koordinator.sh/reservation": '{"resources": {"memory": "60Gi"}, "reservedCPUs": "0-9"}',
            "node.koordinator.sh/thirdPartyAllocations": json.dumps(
                {"allocations": [{"priority": "koord-batch", "resources": {BATCH_CPU: "8000"}}, {"name": "x"}]}
            ),
        }
        labels = {"node.koordinator.sh/memory-reclaim-ratio": "0.5"}
        store.put(NODES, big_node("n1", annotations=annotations, labels=labels))
        rig.until(lambda: allocatable(store, "n1").get(BATCH_CPU) == 100_000 - 40_000 - 10_000 - 12_000 - 8_000, "CPU")
        assert allocatable(store, "n1")[BATCH_MEMORY] == (400 - 200 - 60 - 30) * GIB

    def test_annotations_that_cannot_be_read_change_nothing_and_are_named(
        self, store: Store, open_rig: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        names = ("reservation", "thirdPartyAllocations", "cpu-normalization-ratio")
        annotations = {f"node.koordinator.sh/{name}": "{{" for name in names}
        store.put(NODES, big_node("n1", annotations=annotations))
        with caplog.at_level(logging.WARNING):
            assert written(store, open_rig()) == USUAL
        assert all(any(name in line for line in caplog.messages) for name in names)

    @pytest.mark.parametrize("annotation", ['{"enable":false,}', '{"enable":"false"}'])
    def test_an_annotation_whose_switch_cannot_be_read_leaves_the_node_as_it_was(
        self, annotation: str, store: Store, open_rig: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig = open_rig()
        assert written(store, rig) == USUAL
        of_node = {"node.koordinator.sh/colocation-strategy": annotation}
        store.put(NODES, {**store.objects[NODES]["n1"], "metadata": big_node("n1", annotations=of_node)["metadata"]})
        store.put(NODES, big_node("n2", annotations=of_node))
        said = [f"Node {name}: metadata.annotations[node.koordinator.sh/colocation-strategy]" for name in ("n1", "n2")]
        rig.until(lambda: all(any(each in line for line in caplog.messages) for each in said), "the sentences")
        assert allocatable(store, "n1") == USUAL
        assert not allocatable(store, "n2").get(BATCH_CPU)

    def test_a_report_that_cannot_be_read_stays_as_it_was(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        odd = usual_report()
        odd["status"]["podsMetric"][0]["podUsage"]["resources"]["cpu"] = "many"
        store.put(NODEMETRICS, odd)
        rig.until(lambda: any("many" in problem for problem in rig.look()), "the sentence")
        assert allocatable(store, "n1") == USUAL


class TestNumaZones:
    def test_they_are_read_where_each_has_cpu_and_memory(self, store: Store, open_rig: Open) -> None:
        amounts = [{"name": "cpu", "allocatable": "50"}, {"name": "memory", "allocatable": "200Gi"}]
        zones = [{"name": "node-0", "type": "Node", "resources": amounts}]
        store.put(TOPOLOGIES, {"metadata": {"name": "n1"}, "zones": zones})
        rig = open_rig()
        rig.until(lambda: rig.source.of("n1")[2], "the topology")
        assert [zone.name for zone in rig.source.of("n1")[2].zones] == ["node-0"]
        store.put(TOPOLOGIES, {"metadata": {"name": "n1"}, "zones": [*zones, {"name": "node-1", "resources": []}]})
        rig.until(lambda: rig.source.of("n1")[2].zones == (), "the zone without amounts")

    def zone(self, store: Store) -> dict[str, Any]:
        (zone,) = store.objects[TOPOLOGIES]["n1"]["zones"]
        return {each["name"]: each.get("allocatable") for each in zone["resources"]}

    def put(self, store: Store, *more: dict[str, str]) -> None:
        amounts = [{"name": "memory", "allocatable": "100Gi"}, {"name": "cpu", "allocatable": "50"}, *more]
        zones = [{"name": "node-0", "type": "Node", "resources": amounts, "costs": [1]}]
        meta = {"name": "n1", "annotations": {"mine": "x"}}
        store.put(TOPOLOGIES, {"metadata": meta, "zones": zones, "topologyPolicies": ["None"]})

    def test_they_get_their_share_beside_what_others_wrote(self, store: Store, open_rig: Open) -> None:
        self.put(store, {"name": "gpu", "allocatable": "2"})
        rig = open_rig()
        rig.until(lambda: BATCH_CPU in self.zone(store), "the zone")
        # 50 − 20 − 5 − 12, and 100 − 35 − 20 − 30.
        wanted = {"cpu": "50", "gpu": "2", BATCH_CPU: "13000", BATCH_MEMORY: str(15 * GIB), "memory": "100Gi"}
        assert self.zone(store) == wanted
        written = store.objects[TOPOLOGIES]["n1"]
        assert (written["metadata"]["annotations"], written["topologyPolicies"]) == ({"mine": "x"}, ["None"])
        assert written["zones"][0]["costs"] == [1]
        for _ in range(5):
            rig.look()
            rig.clock_ns += 400 * 10**9
        assert len(store.writes(TOPOLOGIES)) == 1
        store.put(NODEMETRICS, usual_report(age_s=16 * 60))
        rig.until(lambda: self.zone(store)[BATCH_CPU] == "0" == self.zone(store)[BATCH_MEMORY], "the reset")
        for _ in range(5):
            rig.look()
        assert len(store.writes(TOPOLOGIES)) == 2

    def test_a_write_of_another_in_between_is_kept(self, store: Store, open_rig: Open) -> None:
        self.put(store)
        between = [True]

        def interfere(request: Request) -> Reply | None:
            if between[0] and request.method == "PUT" and request.path.startswith(TOPOLOGIES):
                between[0] = False
                self.put(store, {"name": "gpu", "allocatable": "4"})
            return None

        store.faults.append(interfere)
        rig = open_rig()
        rig.until(lambda: not between[0], "the conflict")
        rig.clock_ns += 60 * 10**9
        rig.until(lambda: BATCH_CPU in self.zone(store), "the zone")
        assert self.zone(store)["gpu"] == "4"

    def test_a_refused_topology_does_not_keep_the_node_from_its_resources(self, store: Store, open_rig: Open) -> None:
        self.put(store)

        def refuse(request: Request) -> Reply | None:
            if request.path == f"{TOPOLOGIES}/n1":
                return lambda exchange: exchange.answer(403, status(403, "Forbidden", "cannot"))
            return None

        store.faults.append(refuse)
        rig = open_rig()
        assert written(store, rig) == USUAL
        rig.until(lambda: any("cannot" in each for each in rig.look()), "the sentence")


class TestNodeMetric:
    def test_it_is_there_while_colocation_is_on(self, store: Store, open_rig: Open) -> None:
        store.remove(NODEMETRICS, "n1")
        store.put(CONFIGMAPS, colocation(metricReportIntervalSeconds=30, metricAggregatePolicy={"durations": ["5m"]}))
        rig = open_rig()
        rig.until(lambda: store.objects[NODEMETRICS], "the NodeMetric")
        made = store.objects[NODEMETRICS]["n1"]
        assert made["spec"]["metricCollectPolicy"] == {
            "aggregateDurationSeconds": 300,
            "reportIntervalSeconds": 30,
            "nodeAggregatePolicy": {"durations": ["5m"]},
            "nodeMemoryCollectPolicy": "usageWithoutPageCache",
        }
        assert [(each["kind"], each["name"]) for each in made["metadata"]["ownerReferences"]] == [("Node", "n1")]
        store.put(CONFIGMAPS, colocation(metricReportIntervalSeconds=45))
        spec = lambda: store.objects[NODEMETRICS]["n1"]["spec"]["metricCollectPolicy"]  # noqa: E731
        rig.until(lambda: spec()["reportIntervalSeconds"] == 45, "the new policy")
        store.put(CONFIGMAPS, colocation(enable=False))
        rig.until(lambda: not store.objects[NODEMETRICS], "its deletion")

    def test_anothers_is_left_alone_until_it_is_adopted(self, store: Store, open_rig: Open) -> None:
        first = open_rig()
        written(store, first)
        first.close()
        assert "spec" not in store.objects[NODEMETRICS]["n1"]
        second = open_rig(adopt=True)
        second.until(lambda: "spec" in store.objects[NODEMETRICS]["n1"], "the adoption")

    def test_without_its_crd_it_says_so(self, store: Store, open_rig: Open) -> None:
        del store.objects[NODEMETRICS]
        store.put(NODES, big_node("n1", has={BATCH_CPU: "5"}))
        rig = open_rig()
        rig.until(
            lambda: any(all(part in each for part in ("does not serve NodeMetric", BOOTSTRAP)) for each in rig.look()),
            "the sentence",
        )
        rig.until(lambda: not allocatable(store, "n1"), "the reset")


def lease(renewed: str, holder: str = "koord-manager-1") -> dict[str, Any]:
    meta = {"name": "koordinator-manager", "namespace": "koordinator-system"}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


class TestAnotherManager:
    def test_while_it_renews_its_lease_nothing_is_written(self, store: Store, open_rig: Open) -> None:
        rig = open_rig(adopt=True)
        for number in range(6):
            store.put(MANAGER_LEASES, lease(f"t{number}"))
            rig.clock_ns += 10 * 10**9
            problems = rig.until(lambda: rig.batch.calculations.computed and rig.look(), "a look")
            assert "a Koordinator manager runs (koord-manager-1 " in problems[-1]
        assert patches(store) == [] and store.writes(NODEMETRICS) == []
        rig.clock_ns += 20 * 10**9
        assert written(store, rig) == USUAL

    def test_a_lease_that_was_given_up_is_none(self, store: Store, open_rig: Open) -> None:
        store.put(MANAGER_LEASES, lease("t", holder=""))
        assert written(store, open_rig()) == USUAL

    def test_where_the_lease_may_not_be_read_nothing_is_written(self, store: Store, open_rig: Open) -> None:
        def deny(request: Request) -> Reply | None:
            if request.path.startswith(MANAGER_LEASES):
                return lambda exchange: exchange.answer(403, status(403, "Forbidden", "cannot get leases"))
            return None

        store.faults.append(deny)
        rig = open_rig()
        rig.until(lambda: any("is not known, so no Node is written" in each for each in rig.look()), "the sentence")
        assert patches(store) == []

    def test_until_the_lease_was_read_nothing_is_written_and_then_an_error_changes_nothing(
        self, store: Store, open_rig: Open
    ) -> None:
        failing = [True]

        def fail(request: Request) -> Reply | None:
            if failing[0] and request.path.startswith(MANAGER_LEASES):
                return lambda exchange: exchange.answer(500, status(500, "InternalError", "etcd"))
            return None

        store.faults.append(fail)
        rig = open_rig()
        rig.until(lambda: any("is not known yet" in each for each in rig.look()), "the sentence")
        assert patches(store) == []
        failing[0] = False
        rig.clock_ns += 6 * 10**9
        assert written(store, rig) == USUAL
        failing[0] = True
        store.put(PODS, pod("new", "n1", "20", "20Gi"))
        rig.clock_ns += 6 * 10**9
        rig.until(lambda: allocatable(store, "n1")[BATCH_CPU] == 23_000, "the new pod")

    def test_nodes_that_it_wrote_are_left_alone_until_they_are_adopted(self, store: Store, open_rig: Open) -> None:
        fields = {"f:status": {"f:allocatable": {"f:kubernetes.io/batch-cpu": {}}}}
        managed = [{"manager": "koord-manager", "operation": "Update", "subresource": "status", "fieldsV1": fields}]
        store.put(NODES, big_node("n1", managed=managed, has={BATCH_CPU: "1"}))
        store.put(NODES, big_node("n2"))
        store.put(NODEMETRICS, report("n2", ("5", "20Gi")))
        rig = open_rig()
        rig.until(lambda: allocatable(store, "n2"), "the other Node")
        assert any("resources of 1 Nodes were written by a Koordinator manager" in each for each in rig.look())
        assert allocatable(store, "n1") == {BATCH_CPU: 1}
        rig.close()
        adopting = open_rig(adopt=True)
        adopting.until(lambda: allocatable(store, "n1") == USUAL, "the adoption")


class TestRefusals:
    def test_an_unusable_entry_gives_nothing_to_nodes_that_it_keeps_out(self, store: Store, open_rig: Open) -> None:
        keeps_out = {"name": "off", "nodeSelector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}}
        rig = open_rig()
        for wrong in ({}, {"degradeTimeMinutes": 0}, {"cpuReclaimThresholdPercent": "65"}):
            store.put(CONFIGMAPS, colocation(nodeConfigs=[{**keeps_out, "enable": False, **wrong}]))
            for each in (rig, open_rig()):  # the one that runs, and one that starts now
                each.until(lambda found=each: "n1" in found.batch.calculations.computed, "a look")
                for _ in range(5):
                    each.look()
                assert allocatable(store, "n1") == {}

    def test_after_a_restart_the_nodes_of_an_unusable_entry_keep_what_they_have(
        self, store: Store, open_rig: Open
    ) -> None:
        rig = open_rig()
        written(store, rig)
        rig.close()
        every = {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}
        store.put(CONFIGMAPS, colocation(nodeConfigs=[{"nodeSelector": every, "degradeTimeMinutes": 0}]))
        count = len(patches(store))
        second = open_rig()
        second.until(lambda: "n1" in second.batch.calculations.computed, "a look")
        for _ in range(5):
            second.look()
        assert allocatable(store, "n1") == USUAL
        assert len(patches(store)) == count
        assert "the Node keeps what it has" in second.batch.calculations.computed["n1"].problems[0]

    def test_an_unusable_config_keeps_the_last_good_one(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        store.put(CONFIGMAPS, colocation(cpuReclaimThresholdPercent="x"))
        rig.until(lambda: any("the last good one stays in force" in each for each in rig.look()), "the sentence")
        assert allocatable(store, "n1") == USUAL
        rig.close()
        # One that starts now knows none: it takes nothing away.
        second = open_rig()
        second.until(lambda: any("no Node is written until it is right" in each for each in second.look()), "the same")
        assert allocatable(store, "n1") == USUAL

    def test_a_dry_run_says_what_it_would_write_once(
        self, store: Store, open_rig: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.remove(NODEMETRICS, "n1")
        store.put(NODES, big_node("n1", has={BATCH_CPU: "7"}))
        rig = open_rig(dry_run=True)
        with caplog.at_level(logging.INFO):
            rig.until(lambda: any("would set" in line for line in caplog.messages), "the line")
            for _ in range(5):
                rig.look()
        lines = [line for line in caplog.messages if "would" in line]
        assert len(lines) == 2
        assert any("would create NodeMetric n1" in line for line in lines)
        assert any("batch-cpu none" in line and "there is no NodeMetric" in line for line in lines)
        assert patches(store) == [] and store.writes(NODEMETRICS) == []

    def test_one_that_does_not_lead_computes_and_writes_nothing(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        rig.leads = False
        rig.until(lambda: rig.batch.calculations.computed, "a look")
        rig.look()
        assert patches(store) == []
        rig.leads = True
        assert written(store, rig) == USUAL

    @pytest.mark.parametrize("code", [403, 429, 500, 503])
    def test_a_refused_write_is_named_and_tried_again(self, store: Store, open_rig: Open, code: int) -> None:
        refusing = [True]

        def refuse(request: Request) -> Reply | None:
            if refusing[0] and request.method == "PATCH":
                return lambda exchange: exchange.answer(code, status(code, "Odd", "not now"))
            return None

        store.faults.append(refuse)
        rig = open_rig()
        rig.until(lambda: any("not now" in each for each in rig.look()), "the sentence")
        tried = len(patches(store))
        rig.look()
        assert len(patches(store)) == tried
        refusing[0] = False
        rig.clock_ns += 400 * 10**9
        assert written(store, rig) == USUAL
        assert not any("not now" in each for each in rig.look())

    def test_a_node_that_is_deleted_is_forgotten(self, store: Store, open_rig: Open) -> None:
        rig = open_rig()
        written(store, rig)
        store.remove(NODES, "n1")
        rig.until(lambda: not rig.batch.calculations.computed, "the deletion")
        assert not rig.publisher.pending
