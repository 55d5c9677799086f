"""What a NodeResourceTopology is to say of a node, and how an object is brought to that."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koordebpf.errors import ConfigError
from koordebpf.jobs.node_topology.merge import MANAGED_BY, difference, merged, new_topology
from koordebpf.jobs.node_topology.report import (
    BASIC_INFO_ANNOTATION,
    CPU_TOPOLOGY_ANNOTATION,
    NUMA_RESERVATION_LABEL,
    CpuModel,
    NodeInfo,
    NumaNode,
    Processor,
    Report,
    TopologyInput,
    choose_by_topology,
    topology_policy,
    topology_report,
)
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kube.cache.objects import Node, Pod
from koordebpf.kube.clients.kubelet import KubeletConfig
from koordebpf.quantity import memory_text, quantity_bytes
from koordebpf.slo.pods.cpu_placement import (
    MANAGER_POLICY_ANNOTATION,
    POD_ALLOCATIONS_ANNOTATION,
    RESERVATION_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
    SYSTEM_QOS_ANNOTATION,
)
from koordebpf.slo.pods.resource_status import BE_SHARED_POOLS_ANNOTATION, SHARED_POOLS_ANNOTATION
from koordebpf.state.cpu.measured import CpuManager
from koordebpf.state.pods.facts import PodFacts, pod_facts
from koordebpf.units import GIB, MIB

# Two sockets of one NUMA node each, four CPUs a node, two threads a core.
PROCESSORS = tuple(Processor(cpu, cpu // 2, cpu // 4, cpu // 4, cpu // 2, cpu // 4 * 8) for cpu in range(8))
INFO = NodeInfo(
    PROCESSORS,
    (NumaNode(0, 8 * GIB, ((2 * MIB, 512), (GIB, 1))), NumaNode(1, 8 * GIB)),
    CpuModel("Xeon", "GenuineIntel", True, False, "7ff"),
)
LEFT = {"cpu": "7500m", "memory": "15Gi"}


def node(labels: dict[str, str] | None = None, **annotations: Any) -> Node:
    names = {"reservation": RESERVATION_ANNOTATION, "system": SYSTEM_QOS_ANNOTATION}
    written = {names[name]: each if isinstance(each, str) else json.dumps(each) for name, each in annotations.items()}
    return msgspec.convert(
        {
            "metadata": {"name": "n1", "uid": "uid-n1", "labels": labels, "annotations": written},
            "status": {"capacity": {"cpu": "8", "memory": "16Gi"}, "allocatable": LEFT},
        },
        Node,
    )


def pod(name: str, qos: str = "", cpuset: str = "", phase: str = "Running") -> PodFacts:
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    annotations = {RESOURCE_STATUS_ANNOTATION: json.dumps({"cpuset": cpuset})} if cpuset else {}
    meta = {"name": name, "namespace": "default", "uid": name, "labels": labels, "annotations": annotations}
    request = {"cpu": str(len(parse_cpu_list(cpuset, "cpuset")))}
    spec = {"containers": [{"name": "main", "resources": {"requests": request}}]}
    return pod_facts(msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, Pod))


def report(
    *pods: PodFacts, of: Node | None = None, config: KubeletConfig | None = None, manager: CpuManager | None = None
) -> Report:
    return topology_report(TopologyInput(INFO, of or node(), pods, config, manager))


def said(written: Report, annotation: str) -> Any:
    return json.loads(written.annotations[annotation])


def shared(written: Report) -> tuple[list[str], list[str]]:
    both = (said(written, SHARED_POOLS_ANNOTATION), said(written, BE_SHARED_POOLS_ANNOTATION))
    ls, be = ([each["cpuset"] for each in pools or ()] for pools in both)
    return ls, be


def test_cpus_and_their_model_are_written_as_koordlet_writes_them() -> None:
    written = report()
    assert said(written, CPU_TOPOLOGY_ANNOTATION)["detail"][5] == {"id": 5, "core": 2, "socket": 1, "node": 1, "l3": 8}
    assert said(written, CPU_TOPOLOGY_ANNOTATION)["detail"][0] == {"id": 0, "core": 0, "socket": 0, "node": 0}
    assert said(written, BASIC_INFO_ANNOTATION) == {
        "cpuModel": "Xeon",
        "hyperThreadEnabled": True,
        "catL3CbmMask": "7ff",
        "vendorID": "GenuineIntel",
    }


def test_what_is_empty_is_written_as_go_writes_it() -> None:
    written = report(manager=CpuManager("none"))
    assert written.annotations[POD_ALLOCATIONS_ANNOTATION] == "null"
    assert [written.annotations[each] for each in (RESERVATION_ANNOTATION, SYSTEM_QOS_ANNOTATION)] == ["{}", "{}"]
    assert report(pod("a", "LSE", "0-7")).annotations[SHARED_POOLS_ANNOTATION] == "null"


def test_pools_are_without_what_pods_reservations_and_the_system_have_for_themselves() -> None:
    assert shared(report()) == (["0-3", "4-7"], ["0-3", "4-7"])
    bound = (pod("a", "LSE", "0"), pod("b", "LSR", "1"), pod("ended", "LSE", "2", "Succeeded"))
    assert shared(report(*bound)) == (["2-3", "4-7"], ["1-3", "4-7"])
    of = node(reservation={"reservedCPUs": "4"}, system={"cpuset": "7"})
    assert shared(report(of=of)) == (["0-3", "5-6"], ["0-3", "5-6"])
    shared_system = node(system={"cpuset": "7", "cpusetExclusive": False})
    assert shared(report(of=shared_system)) == (["0-3", "4-7"], ["0-3", "4-7"])


def test_isolated_cpus_are_in_no_pool_and_count_in_their_zone() -> None:
    info = msgspec.structs.replace(INFO, isolated=(4, 5, 6, 7))
    written = topology_report(TopologyInput(info, node()))
    assert shared(written) == (["0-3"], ["0-3"])
    assert written.zones == report().zones
    shared_by_kubelet = CpuManager("static", {}, (0, 1, 2, 3, 4, 5))
    named = topology_report(TopologyInput(info, node(), manager=shared_by_kubelet))
    assert shared(named) == (["0-3", "4-5"], ["0-3", "4-5"])


def test_a_reservation_by_number_gets_the_cpus_that_kubelet_would_choose() -> None:
    written = report(of=node(reservation={"resources": {"cpu": "1500m", "memory": "1Gi"}, "applyPolicy": "Default"}))
    assert said(written, RESERVATION_ANNOTATION) == {
        "resources": {"cpu": "1500m", "memory": "1Gi"},
        "applyPolicy": "Default",
        "reservedCPUs": "0-1",
    }
    assert shared(written)[0] == ["2-3", "4-7"]


@pytest.mark.parametrize(
    ("count", "cpus"),
    [(0, ()), (1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, (0, 1, 2, 3)), (5, (0, 1, 2, 3, 4)), (8, tuple(range(8)))],
)
def test_whole_sockets_come_before_whole_cores_and_these_before_single_cpus(count: int, cpus: tuple[int, ...]) -> None:
    assert choose_by_topology(PROCESSORS, count) == cpus


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "annotation node.koordinator.sh/reservation of the Node"),
        ('{"reservedCPUs": "4-x"}', "must be a list of CPUs"),
        ('{"resources": {"cpu": "many"}}', "must be a Kubernetes quantity"),
        ('{"resources": {"cpu": ["1"]}}', "must be a Kubernetes quantity"),
        ('{"resources": 1}', ""),
        ("[" * 5000, "annotation node.koordinator.sh/reservation of the Node"),
    ],
)
def test_an_annotation_that_cannot_be_read_says_nothing_and_is_named(text: str, problem: str) -> None:
    written = report(of=node(reservation=text))
    assert shared(written) == (["0-3", "4-7"], ["0-3", "4-7"])
    assert (problem in written.problems[0]) if problem else written.problems == ()


def test_more_reserved_cpus_than_there_are_reserve_none() -> None:
    assert shared(report(of=node(reservation={"resources": {"cpu": "99"}})))[0] == ["0-3", "4-7"]


def test_what_kubelet_bound_is_allocated_and_in_no_pool() -> None:
    pinned = {"b": (4, 5), "a": (2,), "gone": (6,), "ls": (0,), "lsr": (1,)}
    pods = (pod("a"), pod("b"), pod("ls", "LS"), pod("lsr", "LSR", "1"))
    written = report(*pods, config=KubeletConfig(cpuManagerPolicy="static"), manager=CpuManager("static", pinned))
    kubelets = {"managedByKubelet": True}
    assert said(written, POD_ALLOCATIONS_ANNOTATION) == [
        {"namespace": "default", "name": "a", "uid": "a", "cpuset": "2", **kubelets},
        {"namespace": "default", "name": "b", "uid": "b", "cpuset": "4-5", **kubelets},
        {"uid": "gone", "cpuset": "6", **kubelets},
    ]
    assert shared(written) == (["0,3", "7"], ["0-1,3", "7"])


def test_allocations_of_an_earlier_static_policy_are_not_believed() -> None:
    written = report(pod("a"), config=KubeletConfig(cpuManagerPolicy="none"), manager=CpuManager("none", {"a": (2,)}))
    assert said(written, POD_ALLOCATIONS_ANNOTATION) is None


def test_the_static_policys_reservation_is_reported_and_stays_in_the_pools() -> None:
    options = {"full-pcpus-only": "true"}
    config = KubeletConfig("static", options, reservedSystemCPUs="0-1")
    written = report(config=config)
    expected = {"policy": "static", "options": options, "reservedCPUs": "0-1"}
    assert said(written, MANAGER_POLICY_ANNOTATION) == expected
    assert shared(written)[0] == ["0-3", "4-7"]
    by_number = KubeletConfig("static", kubeReserved={"cpu": "1500m"}, systemReserved={"cpu": "1"})
    assert said(report(config=by_number), MANAGER_POLICY_ANNOTATION) == {"policy": "static", "reservedCPUs": "0-2"}


def test_without_kubelets_configuration_its_file_names_the_policy() -> None:
    assert said(report(manager=CpuManager("static")), MANAGER_POLICY_ANNOTATION) == {"policy": "static"}


def test_where_kubelet_cannot_be_asked_what_another_wrote_of_it_stays() -> None:
    known = report(pod("a"), config=KubeletConfig("static"), manager=CpuManager("static", {"a": (2,)}))
    written = new_topology(known, node())
    assert MANAGER_POLICY_ANNOTATION not in report().annotations
    now = merged(written, report(of=node(reservation={"reservedCPUs": "7"})))["metadata"]["annotations"]
    kubelets = (MANAGER_POLICY_ANNOTATION, POD_ALLOCATIONS_ANNOTATION)
    assert [now[name] for name in kubelets] == [written["metadata"]["annotations"][name] for name in kubelets]
    assert json.loads(now[RESERVATION_ANNOTATION]) == {"reservedCPUs": "7"}


@pytest.mark.parametrize(
    ("policy", "scope", "said"),
    [
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
        ("restricted", "container", "RestrictedContainerLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("best-effort", "pod", "BestEffortPodLevel"),
        ("none", "pod", "None"),
        ("", "", "None"),
        ("restricted", "another", "None"),
    ],
)
def test_topology_policies_are_kubelets_policy_and_scope(policy: str, scope: str, said: str) -> None:
    assert topology_policy(KubeletConfig(topologyManagerPolicy=policy, topologyManagerScope=scope)) == said


def test_without_kubelets_configuration_there_is_no_topology_policy() -> None:
    assert topology_policy(None) == "None"


def resources(written: Report, zone: int) -> dict[str, tuple[str, str]]:
    return {each.name: (each.capacity, each.allocatable) for each in written.zones[zone].resources}


def test_a_zone_has_its_cpus_its_huge_pages_and_the_memory_beside_them() -> None:
    written = report()
    assert [each.name for each in written.zones] == ["node-0", "node-1"]
    assert resources(written, 0) == {
        "cpu": ("4", "4"),
        "memory": ("6Gi", "6Gi"),
        "hugepages-2Mi": ("1Gi", "1Gi"),
        "hugepages-1Gi": ("1Gi", "1Gi"),
    }
    assert resources(written, 1)["memory"] == ("8Gi", "8Gi")


def test_with_reservation_by_numa_node_what_kubelet_keeps_is_taken_in_equal_parts() -> None:
    written = report(of=node({NUMA_RESERVATION_LABEL: "true"}))
    assert resources(written, 0)["cpu"] == ("4", "3750m")
    assert resources(written, 1)["memory"] == ("8Gi", "7680Mi")
    assert resources(written, 0)["hugepages-2Mi"] == ("1Gi", "1Gi")
    assert written.labels == {NUMA_RESERVATION_LABEL: "true"}
    other = report(of=node({NUMA_RESERVATION_LABEL: "false"}))
    assert (resources(other, 0)["cpu"], other.labels) == (("4", "4"), {NUMA_RESERVATION_LABEL: "false"})


def test_a_quantity_of_the_nodes_status_that_is_none_is_named() -> None:
    broken = node({NUMA_RESERVATION_LABEL: "true"})
    assert broken.status.allocatable is not None
    broken.status.allocatable["cpu"] = "many"
    with pytest.raises(ConfigError, match=r"node\.status\.cpu"):
        report(of=broken)


def test_nodes_without_cpus_or_memory_and_gaps_in_their_numbers_are_zones_all_the_same() -> None:
    info = NodeInfo(
        (Processor(0, 0, 0, 0), Processor(1, 1, 1, 8)), (NumaNode(0, GIB), NumaNode(2, 4 * GIB), NumaNode(8, None))
    )
    written = topology_report(TopologyInput(info, node()))
    found = {each.name: {one.name: one.capacity for one in each.resources} for each in written.zones}
    assert [(name, each["cpu"], each["memory"]) for name, each in found.items()] == [
        ("node-0", "1", "1Gi"),
        ("node-2", "0", "4Gi"),
        ("node-8", "1", "0"),
    ]


def test_a_kernel_without_numa_has_one_zone_with_its_cpus() -> None:
    written = topology_report(TopologyInput(NodeInfo((Processor(0, 0, 0, 0),)), node()))
    assert resources(written, 0)["cpu"] == ("1", "1")


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 3 << 30, (1 << 62) + 1, 5 << 60, 24684084 << 10])
def test_bytes_are_written_without_loss(size: int) -> None:
    assert quantity_bytes(memory_text(size)) == size


def test_a_new_object_belongs_to_its_node_and_says_what_it_is_to_say() -> None:
    made = new_topology(report(), node())
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("Node", "n1", "uid-n1", True)
    assert made["metadata"]["labels"] == MANAGED_BY
    assert difference(made, report()) is None


def test_the_same_in_other_words_is_no_difference() -> None:
    made = json.loads(json.dumps(new_topology(report(), node())))
    for name, text in made["metadata"]["annotations"].items():
        made["metadata"]["annotations"][name] = json.dumps(json.loads(text), indent=2, sort_keys=True)
    made["zones"][0]["resources"][0] |= {"capacity": "4000m", "allocatable": 4}
    made["zones"][0]["resources"].append({"name": "kubernetes.io/batch-cpu", "capacity": "1k"})
    made["metadata"]["labels"]["team"] = "a"
    made["attributes"] = [{"name": "a", "value": "b"}]
    assert difference(made, report()) is None


def _without_annotations(made: Any) -> None:
    del made["metadata"]["annotations"]


def _another_policy(made: Any) -> None:
    made["topologyPolicies"] = ["None", "Restricted"]


def _another_pool(made: Any) -> None:
    made["metadata"]["annotations"][SHARED_POOLS_ANNOTATION] = "[]"


def _garbage(made: Any) -> None:
    made["metadata"]["annotations"][CPU_TOPOLOGY_ANNOTATION] = "{"


def _a_label(made: Any) -> None:
    made["metadata"]["labels"] = {NUMA_RESERVATION_LABEL: "true"}


def _a_zone_more(made: Any) -> None:
    made["zones"].append({"name": "node-2", "type": "Node"})


def _a_zone_of_another_type(made: Any) -> None:
    made["zones"][1]["type"] = "Socket"


def _less_memory(made: Any) -> None:
    made["zones"][1]["resources"][3]["allocatable"] = "1Gi"


def _no_quantity(made: Any) -> None:
    made["zones"][1]["resources"][0]["capacity"] = {"a": 1}


def _no_zones(made: Any) -> None:
    made["zones"] = "none"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_without_annotations, "annotation"),
        (_another_policy, "topologyPolicies"),
        (_another_pool, SHARED_POOLS_ANNOTATION),
        (_garbage, CPU_TOPOLOGY_ANNOTATION),
        (_a_label, NUMA_RESERVATION_LABEL),
        (_a_zone_more, "zones"),
        (_a_zone_of_another_type, "zone node-1: type"),
        (_less_memory, "zone node-1: memory"),
        (_no_quantity, "zone node-1: cpu"),
        (_no_zones, "zones"),
    ],
)
def test_a_managed_field_that_another_changed_is_named_and_brought_back(change: Any, named: str) -> None:
    made = json.loads(json.dumps(new_topology(report(), node())))
    change(made)
    assert named in str(difference(made, report()))
    assert difference(merged(made, report()), report()) is None


def test_what_others_keep_in_the_object_stays() -> None:
    batch = {"name": "kubernetes.io/batch-cpu", "capacity": "1k", "allocatable": "1k", "available": "1k"}
    written = {
        "metadata": {
            "name": "n1",
            "resourceVersion": "7",
            "labels": {"team": "a"},
            "annotations": {"other": "kept"},
            "finalizers": ["a/b"],
        },
        "attributes": [{"name": "a", "value": "b"}],
        "zones": [
            {"name": "node-0", "type": "Node", "costs": [{"name": "node-1", "value": 20}], "resources": [batch]},
            {"name": "node-7", "type": "Node", "resources": [batch]},
        ],
    }
    now = merged(written, report())
    assert (now["attributes"], now["metadata"]["finalizers"], now["metadata"]["resourceVersion"]) == (
        [{"name": "a", "value": "b"}],
        ["a/b"],
        "7",
    )
    assert (now["metadata"]["labels"]["team"], now["metadata"]["annotations"]["other"]) == ("a", "kept")
    zero, one = now["zones"]
    assert zero["costs"] == [{"name": "node-1", "value": 20}]
    assert batch in zero["resources"]
    assert [each["name"] for each in one["resources"]] == ["cpu", "hugepages-1Gi", "hugepages-2Mi", "memory"]
