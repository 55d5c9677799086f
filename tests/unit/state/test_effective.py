"""A resize that the kubelet refused counts for nothing; limits are the actual ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.plugins.given_pods import given_pod
from koordebpf.kube.plugins.pods import pod_bytes
from koordebpf.state.hooks.pods import hook_pod
from koordebpf.state.memory_qos.pods import memory_pod
from koordebpf.state.pods.effective import effective
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.pods.requests import cpu_requests, memory_requests

GIB = 1 << 30
REFUSED = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]
IN_PROGRESS = [{"type": "PodResizeInProgress", "status": "True"}]


def amounts(gib: int, cpu: int = 1) -> dict[str, dict[str, str]]:
    return {name: {"memory": f"{gib}Gi", "cpu": str(cpu)} for name in ("requests", "limits")}


def resized(
    conditions: list[dict[str, str]],
    asked: dict[str, Any] | None = None,
    allocated: dict[str, str] | None = None,
    actual: dict[str, Any] | None = None,
    **status: Any,
) -> Pod:
    of_container = {"name": "c", "containerID": "containerd://" + "a" * 64}
    of_container |= {"allocatedResources": allocated} if allocated else {}
    of_container |= {"resources": actual} if actual else {}
    written = {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": asked or amounts(64, 64)}]},
        "status": {"phase": "Running", "qosClass": "Guaranteed", "conditions": conditions}
        | {"containerStatuses": [of_container]}
        | status,
    }
    return msgspec.json.decode(msgspec.json.encode(written), type=Pod)


ONE = {"memory": "1Gi", "cpu": "1"}


@pytest.mark.parametrize(
    ("pod", "request_gib", "limit_gib"),
    [
        (resized(REFUSED, None, ONE, amounts(1)), 1, 1),
        (resized([], None, ONE, amounts(1), resize="Infeasible"), 1, 1),
        (resized(REFUSED, None, {"memory": "3Gi", "cpu": "1"}, amounts(1)), 3, 1),
        (resized(REFUSED, None, ONE, amounts(2, 2)), 2, 2),
        (resized(REFUSED, None, ONE), 1, 0),  # before 1.33 without actual limits
        (resized(REFUSED), 0, 0),  # its image is not there yet
        (resized(DEFERRED, amounts(4), ONE, amounts(1)), 4, 1),
        (resized(IN_PROGRESS, amounts(4), {"memory": "4Gi", "cpu": "1"}, amounts(1)), 4, 1),
        (resized(IN_PROGRESS, amounts(1), ONE, amounts(4)), 4, 4),  # it shrinks
        (resized([], amounts(2), ONE, amounts(1)), 2, 1),  # the kubelet has said nothing yet
        (resized([], amounts(2)), 2, 2),
        (resized([], {"limits": {"memory": "1Gi"}}, None, {"limits": {"memory": "1024Mi"}}), 1, 1),
    ],
)
def test_requests_are_the_largest_that_is_granted_and_limits_the_actual_ones(
    pod: Pod, request_gib: int, limit_gib: int
) -> None:
    facts = pod_facts(pod)
    of_memory = memory_pod(facts)
    (container,) = hook_pod(pod, "Guaranteed").containers
    assert memory_requests(pod).native_bytes == request_gib * GIB
    assert facts.terms.memory_request_bytes == request_gib * GIB
    assert facts.terms.native_memory_request_bytes == (request_gib * GIB or None)
    assert (of_memory.request_bytes, of_memory.limit_bytes) == (request_gib * GIB, limit_gib * GIB)
    assert container.memory_limit_bytes == limit_gib * GIB
    assert memory_requests(given_pod(pod_bytes(pod))).native_bytes == request_gib * GIB


def test_cpu_of_a_refused_resize_raises_no_quota() -> None:
    pod = resized(REFUSED, None, ONE, amounts(1))
    (container,) = hook_pod(pod, "Guaranteed").containers
    assert (cpu_requests(pod).native_millicpu, container.cpu_request_millicpu) == (1000, 1000)
    assert container.cpu_limit_millicpu == 1000


def test_what_cannot_be_resized_is_that_of_the_specification() -> None:
    asked = {"requests": {"memory": "9Gi", "kubernetes.io/batch-cpu": "500"}}
    pod = resized(REFUSED, asked, {"memory": "1Gi"}, {"requests": {"memory": "1Gi"}})
    (container,) = effective(pod).main
    assert container.resources is not None
    assert container.resources.requests == {"memory": "1Gi", "kubernetes.io/batch-cpu": "500"}
    assert cpu_requests(pod).batch_millicpu == 500


def test_sidecars_are_resized_and_init_containers_that_end_are_not() -> None:
    pod = resized(REFUSED, amounts(1), ONE, amounts(1))
    init = [
        {"name": "side", "restartPolicy": "Always", "resources": amounts(64)},
        {"name": "once", "resources": amounts(2)},
    ]
    statuses = [{"name": name, "allocatedResources": ONE, "resources": amounts(1)} for name in ("side", "once")]
    written = msgspec.to_builtins(pod)
    written["spec"]["initContainers"], written["status"]["initContainerStatuses"] = init, statuses
    assert memory_requests(msgspec.convert(written, Pod)).native_bytes == 3 * GIB


def test_a_pod_without_a_resize_keeps_its_containers() -> None:
    pod = resized([], amounts(1))
    assert effective(pod).main[0] is pod.spec.containers[0]


def test_a_quantity_of_the_status_that_is_none_spoils_its_own_pod() -> None:
    pod = resized(DEFERRED, amounts(2), {"memory": "much"}, amounts(1))
    with pytest.raises(ConfigError, match=r"pod shop/web status\[c\]\.memory"):
        memory_requests(pod)
    facts = pod_facts(pod)
    assert facts.terms.problem is not None
    assert facts.terms.memory_request_bytes == 0
    assert memory_pod(facts).request_bytes == 0
