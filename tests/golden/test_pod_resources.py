"""Requests, limits and classes of generated pods, as Kubernetes' own functions count them.

Source: k8s.io/component-helpers v0.35.4 resource.PodRequests and PodLimits, k8s.io/kubernetes v1.35.4
SetObjectDefaults_Pod and ComputePodQOS; tests/cluster/test_pod_resources.py asks them again.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from koordebpf.kube.cache.objects import Pod
from koordebpf.quantity import Quantity, parse_quantity
from koordebpf.state.pods.effective import effective, kube_qos_of_pod, scheduled_requests
from koordebpf.state.pods.resources import RESIZABLE

Row = dict[str, Any]
ROWS: list[Row] = json.loads(gzip.decompress((Path(__file__).parent / "pod_resources.json.gz").read_bytes()))


def pod_of(row: Row) -> Pod:
    return msgspec.convert(row["pod"], Pod)


def number(amount: Quantity) -> Decimal:
    return Decimal(f"{amount.unscaled}E{amount.scale}")


def numbers(written: dict[str, str]) -> dict[str, Decimal]:
    return {name: found for name, amount in written.items() if (found := parse_quantity(amount))}


def scheduled(row: Row) -> dict[str, Decimal]:
    return {name: found for name, amount in scheduled_requests(pod_of(row)).items() if (found := number(amount))}


def test_there_are_pods_of_every_kind() -> None:
    specs = [each["pod"]["spec"] for each in ROWS]
    assert len(ROWS) >= 2000
    for name in ("initContainers", "overhead", "resources"):
        assert sum(name in each for each in specs) > 300
    reasons = [
        each["reason"] for row in ROWS for each in row["pod"]["status"].get("conditions", ()) if "reason" in each
    ]
    assert {reason: reasons.count(reason) > 100 for reason in reasons} == {"Deferred": True, "Infeasible": True}
    assert {row["class"] for row in ROWS} == {"Guaranteed", "Burstable", "BestEffort"}


def test_requests_are_those_of_kube_scheduler() -> None:
    wrong = [row for row in ROWS if scheduled(row) != numbers(row["scheduled"])]
    assert wrong == []


# InPlacePodLevelResourcesVerticalScaling is off by default in 1.35: no kubelet reports the pod's own level then.
def test_requests_are_those_of_a_scheduler_that_does_not_resize_whole_pods() -> None:
    rows = [row for row in ROWS if "resources" not in row["pod"]["status"]]
    assert len(rows) > 1000
    wrong = [row for row in rows if scheduled(row) != numbers(row["containersScheduled"])]
    assert wrong == []


def test_of_a_pod_that_was_never_resized_the_same_counts_here() -> None:
    rows = [row for row in ROWS if not row["pod"]["status"]]
    assert len(rows) > 1000
    for row in rows:
        its = effective(pod_of(row))
        names = {*row["specified"], *its.overhead}
        assert {name: number(its.request(name)) for name in names} == {
            name: parse_quantity(row["specified"].get(name, "0")) for name in names
        }


def test_limits_are_those_that_the_kubelet_adds_up_and_none_where_one_is_missing() -> None:
    known = 0
    for row in (each for each in ROWS if not each["pod"]["status"]):
        its = effective(pod_of(row))
        for name in RESIZABLE:
            limit = its.limit(name)
            if limit is None:
                level = row["pod"]["spec"].get("resources", {}).get("limits", {})
                containers = (each.limits.get(name, "0") for each in its.every)
                assert not numbers(level).get(name)
                assert name in level or any(not parse_quantity(each) for each in containers)
                continue
            known += 1
            assert number(limit) == parse_quantity(row["limits"][name])
    assert known > 500


def test_classes_are_those_of_the_api_server() -> None:
    wrong = [row for row in ROWS if kube_qos_of_pod(pod_of(row)) != row["class"]]
    assert wrong == []


# The kubelet refused the resize, and its status names the resource in each container that may be resized.
def test_of_a_refused_resize_that_is_known_in_full_the_same_counts_here() -> None:
    compared = 0
    for row in ROWS:
        pod = pod_of(row)
        conditions = pod.status.conditions or ()
        if not any(each.reason == "Infeasible" for each in conditions):
            continue
        its, counted = effective(pod), scheduled_requests(pod)
        for name in RESIZABLE:
            if all(name in each.requests for each in its.every) and _is_reported_in_full(row["pod"], name):
                compared += 1
                assert number(its.request(name)) == number(counted[name])
    assert compared > 20


def _is_reported_in_full(pod: Row, name: str) -> bool:
    spec, status = pod["spec"], pod["status"]
    lasting = [*spec["containers"], *(each for each in spec.get("initContainers", ()) if "restartPolicy" in each)]
    every = {each["name"]: each for each in (*status["containerStatuses"], *status["initContainerStatuses"])}
    reported = [status] if "resources" in spec else []
    reported += [every.get(each["name"], {}) for each in lasting]
    return all(
        name in each.get("resources", {}).get("requests", ()) and "allocatedResources" in each for each in reported
    )
