"""Which CPUs belong to whom by annotations: as Koordinator writes them, absent, and unreadable."""

from __future__ import annotations

import json

import pytest

from koordebpf.slo.pods.cpu_placement import (
    MANAGER_POLICY_ANNOTATION,
    POD_ALLOCATIONS_ANNOTATION,
    RESERVATION_ANNOTATION,
    RESOURCE_STATUS_ANNOTATION,
    SYSTEM_QOS_ANNOTATION,
    NodeCpus,
    PodCpus,
    node_cpus,
    pod_cpus,
)


def test_a_pods_cpus():
    status = {"cpuset": "2-3,8", "numaNodeResources": [{"node": 0, "resources": {"cpu": "3"}}]}
    assert pod_cpus({RESOURCE_STATUS_ANNOTATION: json.dumps(status)}, 3000) == PodCpus((2, 3, 8), True)
    assert pod_cpus({RESOURCE_STATUS_ANNOTATION: '{"cpuset": ""}'}, 8000) == PodCpus()
    assert pod_cpus(None, 0) == pod_cpus({}, 0) == pod_cpus({RESOURCE_STATUS_ANNOTATION: ""}, 8000) == PodCpus()


@pytest.mark.parametrize(("request_millicpu", "count"), [(3000, 3), (2001, 3), (2000, 2), (1, 1), (0, 0)])
def test_a_pod_is_bound_to_as_many_cpus_as_it_requests(request_millicpu, count):
    for cpus in range(1, 5):
        found = pod_cpus({RESOURCE_STATUS_ANNOTATION: json.dumps({"cpuset": f"0-{cpus - 1}"})}, request_millicpu)
        assert len(found.cpus) == (cpus if cpus <= count else 0)
        assert (found.problem is None) is (cpus <= count)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cpuset": 3}',
        '{"cpuset": "3-1"}',
        '{"cpuset": "0-99999"}',
        # Any tenant who may create a pod writes these: they must neither end the agent nor keep it busy.
        json.dumps({"cpuset": "9" * 5000}),
        json.dumps({"cpuset": "0-8191," * 37_000}),
        json.dumps({"cpuset": "\u0663"}),
        '{"cpuset": "0", "numaNodeResources": [' + "9" * 5000 + "x]}",
        '{"numaNodeResources": ' + "[" * 100_000,
    ],
    ids=range(10),
)
def test_an_unreadable_one_binds_to_nothing_and_is_reported(text):
    found = pod_cpus({RESOURCE_STATUS_ANNOTATION: text}, 8000)
    assert (found.cpus, found.has_numa) == ((), False)
    assert found.problem.startswith(f"annotation {RESOURCE_STATUS_ANNOTATION}: ")


def test_what_a_node_sets_aside():
    node = {
        RESERVATION_ANNOTATION: json.dumps({"resources": {"cpu": "1500m"}, "reservedCPUs": "0", "applyPolicy": "x"})
    }
    topology = {
        RESERVATION_ANNOTATION: '{"reservedCPUs": "1"}',
        SYSTEM_QOS_ANNOTATION: '{"cpuset": "2-3"}',
        MANAGER_POLICY_ANNOTATION: '{"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0"}',
        POD_ALLOCATIONS_ANNOTATION: '[{"name": "p", "uid": "u", "cpuset": "5", "managedByKubelet": true}]',
    }
    assert node_cpus(node, topology) == NodeCpus((0, 1), "1500m", (2, 3), True, {"u": (5,)})
    assert node_cpus(None, None) == NodeCpus()


@pytest.mark.parametrize(
    ("written", "cpus"),
    [
        ('{"cpuset": "2", "cpusetExclusive": true}', (2,)),
        ('{"cpuset": "2", "cpusetExclusive": false}', ()),
        ('{"cpuset": "2", "cpusetExclusive": null}', (2,)),
    ],
)
def test_cpus_of_the_system_class_are_its_own_unless_it_says_otherwise(written, cpus):
    assert node_cpus(None, {SYSTEM_QOS_ANNOTATION: written}).system_cpus == cpus


def test_what_is_unreadable_does_not_hide_the_rest():
    topology = {
        RESERVATION_ANNOTATION: '{"reservedCPUs": "zero"}',
        SYSTEM_QOS_ANNOTATION: "not json",
        MANAGER_POLICY_ANNOTATION: '{"policy": "none"}',
        POD_ALLOCATIONS_ANNOTATION: '[{"uid": "u", "cpuset": "5"}]',
    }
    found = node_cpus({RESERVATION_ANNOTATION: '{"resources": {"cpu": 2}}'}, topology)
    assert (found.reserved_cpus, found.reserved_cpu, found.system_cpus, found.is_static) == ((), "2", (), False)
    assert found.pinned == {"u": (5,)}
    assert len(found.problems) == 2


def test_null_as_go_writes_what_is_empty_says_nothing_and_is_no_problem() -> None:
    said = node_cpus(None, {SYSTEM_QOS_ANNOTATION: "null", POD_ALLOCATIONS_ANNOTATION: "null"})
    assert (said.problems, said.system_cpus, said.pinned) == ((), (), {})
    assert pod_cpus({RESOURCE_STATUS_ANNOTATION: "null"}, 8000) == PodCpus()
