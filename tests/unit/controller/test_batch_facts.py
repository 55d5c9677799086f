"""From objects of the API server to what the formulas take."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koordebpf.controller.batch.facts import batch_amount, node_facts, read_node_metric, read_pod, read_topology
from koordebpf.kube.colocation.nodes import ColocationNode, decode_colocation_node
from koordebpf.policy.batch.facts import CpuMemory, PodRequest, PodUse, Usage, Zone

GIB = 1024**3


def raw(obj: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(obj).encode())


def node(annotations: dict[str, Any] | None = None, **status: Any) -> ColocationNode:
    texts = {
        f"node.koordinator.sh/{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in (annotations or {}).items()
    }
    usual = {"capacity": {"cpu": "10", "memory": "10Gi"}, "allocatable": {"cpu": "9500m", "memory": "9Gi"}}
    return decode_colocation_node(
        raw({"metadata": {"name": "n1", "annotations": texts}, "status": {**usual, **status}})
    )


def pod(priority: int | None = 9000, phase: str = "Running", **more: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    return {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", **more},
        "spec": {"nodeName": "n1", "priority": priority, "containers": [container, container]},
        "status": {"phase": phase, "qosClass": "Burstable"},
    }


def metric(**status: Any) -> msgspec.Raw:
    return raw({"metadata": {"name": "n1", "uid": "u"}, "status": status})


def uses(cpu: Any, memory: Any) -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": memory}}


class TestPods:
    def test_requests_are_summed_and_classes_have_their_defaults(self) -> None:
        found = read_pod(raw(pod()))
        assert (found.node, found.key, found.band, found.cpu_millicpu, found.memory_bytes) == (
            *("n1", "d/p", "koord-prod"),
            *(3000, 2 * GIB),
        )
        labelled = {"koordinator.sh/qosClass": "LSE", "koordinator.sh/priority-class": "koord-mid"}
        found = read_pod(raw(pod(labels=labelled)))
        assert (found.band, found.is_lse) == ("koord-mid", True)
        assert read_pod(raw(pod(None, labels={"koordinator.sh/qosClass": "BE"}))).band == "koord-batch"
        assert read_pod(raw(pod(None))).band == "koord-prod"

    def test_a_pod_as_a_whole_requests_what_its_own_level_does(self) -> None:
        made = pod()
        made["spec"]["resources"] = {"requests": {"cpu": "8"}, "limits": {"memory": "16Gi"}}
        found = read_pod(raw(made))
        assert (found.cpu_millicpu, found.memory_bytes) == (8000, 2 * GIB)  # of memory its containers name a request

    def test_without_a_class_in_the_status_that_of_the_requests_counts(self) -> None:
        made = pod(None)
        del made["status"]["qosClass"]
        assert read_pod(raw(made)).band == "koord-prod"
        made["spec"]["containers"] = [{"name": "c"}]
        assert read_pod(raw(made)).band == "koord-batch"

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Unknown", ""])
    def test_one_that_is_neither_running_nor_pending_is_of_no_node(self, phase: str) -> None:
        assert read_pod(raw(pod(phase=phase))).node == ""

    @pytest.mark.parametrize(
        ("written", "zones"),
        [
            ('{"numaNodeResources": [{"node": 1}, {"node": 0}]}', (1, 0)),
            ('{"cpuset": "0-3"}', ()),
            ("{", ()),
            ('{"numaNodeResources": "all"}', ()),
            ('{"numaNodeResources": [{"node": "x"}]}', ()),
        ],
    )
    def test_its_zones_are_those_that_the_scheduler_allocated(self, written: str, zones: tuple[int, ...]) -> None:
        annotations = {"scheduling.koordinator.sh/resource-status": written}
        assert read_pod(raw(pod(annotations=annotations))).zones == zones

    def test_a_request_that_is_no_quantity_is_refused_as_what_cannot_be_decoded(self) -> None:
        odd = pod()
        odd["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"
        with pytest.raises(msgspec.DecodeError, match="many"):
            read_pod(raw(odd))


class TestReports:
    def test_every_field_of_the_sum_is_read(self) -> None:
        status = {
            "updateTime": "2026-11-26T10:00:00Z",
            "nodeMetric": {"nodeUsage": uses("2", "3Gi"), "systemUsage": uses("250m", "1048576Ki")},
            "podsMetric": [
                {"name": "p", "namespace": "d", "podUsage": uses("1500m", "512Mi"), "priority": "koord-mid"},
                {"name": "none", "namespace": "d"},
            ],
            "hostApplicationMetric": [{"name": "nginx", "usage": uses(1, 4096), "priority": "koord-prod"}],
            "prodReclaimableMetric": {"resource": uses("0.5", "1e9")},
        }
        usage = read_node_metric(metric(**status)).usage
        assert usage is not None
        assert usage.updated_ns == 1_795_687_200 * 10**9
        assert (usage.node, usage.system) == (CpuMemory(2000, 3 * GIB), CpuMemory(250, GIB))
        assert usage.pods == (PodUse("d/p", "koord-mid", 1500, GIB // 2), PodUse("d/none", "", 0, 0))
        assert [(each.band, each.cpu_millicpu, each.memory_bytes) for each in usage.host_applications] == [
            ("koord-prod", 1000, 4096)
        ]
        assert usage.prod_reclaimable == CpuMemory(500, 10**9)

    def test_what_is_absent_is_not_zero(self) -> None:
        assert read_node_metric(raw({"metadata": {"name": "n1"}})).usage is None
        assert read_node_metric(metric()).usage == Usage()
        assert read_node_metric(metric(nodeMetric={"nodeUsage": {}})).usage.node is None
        half = {"nodeUsage": {"resources": {"cpu": "1"}}}
        assert read_node_metric(metric(nodeMetric=half)).usage.node is None

    @pytest.mark.parametrize(
        "status",
        [
            {"updateTime": "yesterday"},
            {"updateTime": "2026-11-26T10:00:00"},
            {"podsMetric": [{"podUsage": uses("x", "1")}]},
            {"podsMetric": [{"podUsage": uses("-1m", "1")}]},
            {"podsMetric": [{"podUsage": uses("1", "-5")}]},
            {"nodeMetric": {"systemUsage": uses("1", [])}},
        ],
    )
    def test_what_cannot_be_read_is_refused_as_a_whole(self, status: dict[str, Any]) -> None:
        with pytest.raises(msgspec.DecodeError):
            read_node_metric(metric(**status))


@pytest.mark.parametrize(
    ("priority", "qos", "band"),
    [("koord-mid", "BE", "koord-mid"), ("", "BE", "koord-batch"), ("", "LS", "koord-prod"), ("", "", "")],
)
def test_a_host_application_without_a_class_has_that_of_its_qos(priority: str, qos: str, band: str) -> None:
    status = {"hostApplicationMetric": [{"name": "a", "priority": priority, "qos": qos}]}
    (found,) = read_node_metric(metric(**status)).usage.host_applications
    assert found.band == band


class TestNodes:
    def test_amounts_and_annotations_are_read(self) -> None:
        annotations = {
            "reservation": {"resources": {"cpu": "1", "memory": "2Gi"}, "reservedCPUs": "0-2,5"},
            "thirdPartyAllocations": {
                "allocations": [
                    {"priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "700"}},
                    {"priority": "koord-batch", "resources": {"kubernetes.io/batch-memory": "1Gi"}},
                    {"priority": "koord-mid", "resources": {"kubernetes.io/batch-cpu": "9"}},
                ]
            },
            "cpu-normalization-ratio": "1.25",
        }
        facts = node_facts(node(annotations), (Zone("node-0", CpuMemory(1, 1)),))
        assert (facts.capacity, facts.allocatable) == (CpuMemory(10_000, 10 * GIB), CpuMemory(9_500, 9 * GIB))
        assert facts.reserved == CpuMemory(4000, 2 * GIB)
        assert facts.third_party == CpuMemory(700, GIB)
        assert (facts.normalization_ratio, len(facts.zones), facts.problems) == (1.25, 1, ())

    @pytest.mark.parametrize(
        ("name", "written"),
        [
            ("reservation", "{"),
            ("reservation", {"resources": {"cpu": "x"}}),
            ("reservation", {"reservedCPUs": "3-1"}),
            ("reservation", {"resources": {"cpu": "-1"}}),
            ("thirdPartyAllocations", []),
            ("thirdPartyAllocations", {"allocations": [{"priority": "koord-batch", "resources": {}}, 7]}),
            (
                "thirdPartyAllocations",
                {"allocations": [{"priority": "koord-batch", "resources": {"kubernetes.io/batch-cpu": "-3"}}]},
            ),
            ("cpu-normalization-ratio", "fast"),
            ("cpu-normalization-ratio", "nan"),
            ("cpu-normalization-ratio", "-1"),
            ("raw-allocatable", "[]"),
        ],
    )
    def test_an_annotation_that_cannot_be_read_changes_nothing_and_is_named(self, name: str, written: Any) -> None:
        facts = node_facts(node({name: written}))
        assert msgspec.structs.replace(facts, problems=()) == node_facts(node())
        assert len(facts.problems) == 1
        assert name in facts.problems[0]

    def test_a_capacity_that_is_none_is_named_and_gives_nothing(self) -> None:
        facts = node_facts(node(capacity={"cpu": "many"}))
        assert facts.capacity == CpuMemory()
        assert "status.capacity.cpu" in facts.problems[0]

    def test_an_amplified_allocatable_does_not_hide_kubelets_reservation(self) -> None:
        amplified = node({"raw-allocatable": {"cpu": "9"}}, allocatable={"cpu": "15", "memory": "9Gi"})
        assert node_facts(amplified).allocatable == CpuMemory(9_000, 9 * GIB)

    @pytest.mark.parametrize(
        ("capacity", "allocatable", "amount"),
        [
            ({"r": "2k"}, {"r": "2k"}, 2000),
            ({}, {"r": "2k"}, None),
            ({"r": "1"}, {}, None),
            ({"r": 1}, {"r": "x"}, None),
        ],
    )
    def test_it_has_an_extended_resource_where_both_have_it(self, capacity: Any, allocatable: Any, amount: Any) -> None:
        assert batch_amount(node(capacity=capacity, allocatable=allocatable), "r") == amount

    @pytest.mark.parametrize(
        ("manager", "fields", "found"),
        [
            ("koord-manager", {"f:status": {"f:allocatable": {"f:kubernetes.io/batch-cpu": {}}}}, "koord-manager"),
            ("koord-manager", {"f:status": {"f:capacity": {"f:kubernetes.io/mid-memory": {}}}}, "koord-manager"),
            ("koord-manager", {"f:metadata": {}}, ""),
            ("koordebpf-controller", {"f:status": {"f:allocatable": {"f:kubernetes.io/batch-cpu": {}}}}, ""),
            ("kubelet", {"f:status": {"f:allocatable": {"f:kubernetes.io/batch-cpu": {}}}}, ""),
        ],
    )
    def test_a_manager_is_known_by_the_fields_it_wrote(self, manager: str, fields: Any, found: str) -> None:
        managed = [{"manager": "kubelet"}, {"manager": manager, "operation": "Update", "fieldsV1": fields}]
        assert decode_colocation_node(raw({"metadata": {"name": "n", "managedFields": managed}})).manager == found


def test_zones_are_read_where_each_has_both() -> None:
    both = [{"name": "cpu", "allocatable": "4"}, {"name": "memory", "allocatable": "8Gi"}, {"name": "x"}]
    zones = [{"name": "node-0", "type": "Node", "resources": both}]
    assert read_topology(raw({"metadata": {"name": "n1"}, "zones": zones})).zones == (
        Zone("node-0", CpuMemory(4000, 8 * GIB)),
    )
    assert read_topology(raw({"metadata": {"name": "n1"}, "zones": [*zones, {"name": "node-1"}]})).zones == ()


def test_a_record_is_small() -> None:
    import sys

    assert sys.getsizeof(PodRequest("d/p", "koord-prod", False, 1, 1)) <= 80
