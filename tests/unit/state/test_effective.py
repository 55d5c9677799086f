"""What a resize asks for and the kubelet has not granted does not count, on the node and in the controller."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koordebpf.controller.batch.facts import pod_record
from koordebpf.jobs.prediction.predict import predicted_pod
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.plugins.given_source import given_pod
from koordebpf.kube.plugins.pods import pod_bytes
from koordebpf.state.pods.effective import effective, kube_qos_of_pod, possible_limits, scheduled_requests
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.pods.hook_pods import hook_pod
from koordebpf.state.pods.requests import cpu_requests, memory_requests
from koordebpf.strategies.hooks.adjust import HookRules, container_adjustment, normalized_container, pod_adjustment
from koordebpf.strategies.memory_qos.values import memory_pod

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


THREE = {"memory": "3Gi", "cpu": "1"}
FOUR = {"memory": "4Gi", "cpu": "1"}
ONLY_LIMITS = {"limits": {"memory": "1Gi"}}


@pytest.mark.parametrize(
    ("pod", "granted_gib", "limit_gib"),
    [
        (resized(REFUSED, None, ONE, amounts(1)), 1, 1),
        (resized([], None, ONE, amounts(1), resize="Infeasible"), 1, 1),
        (resized(REFUSED, None, THREE, amounts(1)), 3, 1),
        (resized(REFUSED, None, ONE, amounts(2, 2)), 2, 2),
        (resized(REFUSED, None, None, amounts(1)), 1, 1),  # since 1.33 without allocatedResources
        (resized(REFUSED, None, ONE), 1, None),  # before 1.33 without actual limits
        # it has none
        (resized(REFUSED, {"requests": ONE, "limits": {"memory": "900Gi"}}, ONE, {"requests": ONE}), 1, 0),
        (resized(REFUSED), 0, None),  # its image is not there yet
        (resized(DEFERRED, amounts(4), ONE, amounts(1)), 1, 1),
        (resized([], amounts(4), ONE, amounts(1), resize="Deferred"), 1, 1),
        (resized(DEFERRED, amounts(4), None, amounts(1)), 1, 1),
        (resized(DEFERRED, amounts(4)), 0, None),
        (resized([], amounts(64), ONE, amounts(1)), 1, 1),  # the kubelet has not answered yet
        (resized([], amounts(64), None, amounts(1)), 1, 1),
        (resized([], amounts(64), ONE), 1, None),
        (resized([], {"requests": {"memory": "64Gi"}}, {"cpu": "1"}, {"requests": {"cpu": "1"}}), 0, 0),
        (resized([], {"requests": {"memory": "64Gi"}}, None, {"limits": {"cpu": "1"}}), 0, 0),
        (resized(IN_PROGRESS, amounts(8), FOUR, amounts(1)), 4, 1),  # a second one, on top of the first
        (resized(IN_PROGRESS, amounts(4), FOUR, amounts(1)), 4, 4),  # granted: it grows
        (resized(IN_PROGRESS, amounts(4, 2), None, amounts(4, 1)), 4, 4),
        (resized(IN_PROGRESS, amounts(1), ONE, amounts(4)), 4, 4),  # it shrinks
        (resized([], amounts(4), {"memory": "4096Mi", "cpu": "1"}, amounts(4)), 4, 4),  # done
        (resized([], amounts(2)), 2, 2),  # of a kubelet that tells nothing
        (resized([], ONLY_LIMITS, None, {"limits": {"memory": "1024Mi"}}), 1, 1),
    ],
)
def test_what_is_granted_and_limits(pod: Pod, granted_gib: int, limit_gib: int | None) -> None:
    facts = pod_facts(pod)
    of_memory = memory_pod(facts)
    (container,) = hook_pod(pod, "Guaranteed").containers
    for each in (pod, given_pod(pod_bytes(pod))):
        assert memory_requests(effective(each)).native_bytes == granted_gib * GIB
    assert pod_record(pod).memory_bytes == predicted_pod(facts).request.memory_bytes == granted_gib * GIB
    assert facts.terms.memory_request_bytes == granted_gib * GIB
    assert facts.terms.native_memory_request_bytes == (granted_gib * GIB or None)
    assert (of_memory.request_bytes, of_memory.limit_bytes) == (granted_gib * GIB, (limit_gib or 0) * GIB)
    assert (of_memory.is_limit_known, container.is_limit_known) == (limit_gib is not None,) * 2
    assert container.memory_limit_bytes == (limit_gib or 0) * GIB


BATCH = {"kubernetes.io/batch-cpu": "4000", "kubernetes.io/batch-memory": "4Gi"}


@pytest.mark.parametrize("conditions", [[], REFUSED, DEFERRED, IN_PROGRESS])
def test_names_that_only_the_status_has_are_what_hooks_wrote(conditions: list[dict[str, str]]) -> None:
    reported = {"requests": BATCH | {"cpu": "4"}, "limits": BATCH | {"cpu": "4", "memory": "4Gi"}}
    pod = resized(conditions, {"requests": BATCH, "limits": BATCH}, BATCH, reported)
    (container,) = hook_pod(pod, "BestEffort").containers
    assert (container.cpu_request_millicpu, container.cpu_limit_millicpu, container.memory_limit_bytes) == (0, 0, 0)
    assert container.is_limit_known
    requests = cpu_requests(effective(pod))
    assert (requests.native_millicpu, requests.batch_millicpu) == (0, 4000)
    assert memory_requests(effective(pod)).native_bytes == 0


@pytest.mark.parametrize(
    ("conditions", "asked", "allocated"),
    [
        ([], {"requests": ONE, "limits": {"memory": "2Gi", "cpu": "2"}}, ONE),
        ([], {"requests": ONE, "limits": {"memory": "2Gi", "cpu": "2"}}, None),
        (IN_PROGRESS, {"requests": ONE, "limits": {"memory": "2Gi", "cpu": "2"}}, ONE),
        # guaranteed, and a resize waits
        (REFUSED, amounts(64, 64), {"memory": "2Gi", "cpu": "2"}),
        (DEFERRED, amounts(4, 4), {"memory": "2Gi", "cpu": "2"}),
        ([], amounts(64, 64), {"memory": "2Gi", "cpu": "2"}),
    ],
)
def test_a_quota_stays_when_the_status_tells_what_the_hook_made_of_it(
    conditions: list[dict[str, str]], asked: dict[str, Any], allocated: dict[str, str] | None
) -> None:
    rules, quota_us = HookRules(normalization_ratio=1.2), 200_000
    for _ in range(5):
        reported = {"requests": allocated or ONE, "limits": {"cpu": f"{quota_us // 100}m", "memory": "2Gi"}}
        (container,) = hook_pod(resized(conditions, asked, allocated, reported), "Burstable").containers
        setting = normalized_container(container, rules)
        assert setting is not None
        quota_us = setting.value
        assert quota_us == 166_667


def test_a_request_of_cpu_is_the_least_that_is_made_of_its_limit_while_a_resize_waits() -> None:
    asked = {"requests": {"cpu": "64"}, "limits": {"cpu": "64"}}
    pod = resized(REFUSED, asked, {"cpu": "1"}, {"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}})
    assert hook_pod(pod, "Burstable").containers[0].cpu_limit_millicpu == 1000


@pytest.mark.parametrize("conditions", [REFUSED, DEFERRED])
def test_limits_that_nothing_tells_are_left_alone(conditions: list[dict[str, str]]) -> None:
    written = msgspec.to_builtins(resized(conditions, {"requests": BATCH, "limits": BATCH}))
    written["metadata"]["labels"] = {"koordinator.sh/qosClass": "BE"}
    written["spec"]["containers"].append({"name": "injected", "resources": amounts(1)})
    made = hook_pod(msgspec.convert(written, Pod), "Burstable")
    rules = HookRules(hooks=frozenset({"BatchResource", "CPUNormalization"}), normalization_ratio=1.2)
    of_pod = pod_adjustment(made, rules)
    assert (of_pod.cfs_quota_us, of_pod.memory_limit_bytes) == (None, None)
    assert container_adjustment(made, made.containers[0], rules).memory_limit_bytes is not None
    assert container_adjustment(made, made.containers[1], rules).cfs_quota_us is None


def test_a_status_that_is_unusable_leaves_limits_alone() -> None:
    made = hook_pod(resized(REFUSED, None, {"memory": "much", "cpu": "1"}, amounts(1)), "Guaranteed")
    (container,) = made.containers
    assert (container.is_limit_known, container.cpu_limit_millicpu, container.memory_limit_bytes) == (False, 0, 0)
    assert len(made.problems) == 1
    assert "left alone" in made.problems[0]


def test_cpu_of_a_refused_resize_raises_no_quota() -> None:
    pod = resized(REFUSED, None, ONE, amounts(1))
    (container,) = hook_pod(pod, "Guaranteed").containers
    assert (cpu_requests(effective(pod)).native_millicpu, container.cpu_request_millicpu) == (1000, 1000)
    assert container.cpu_limit_millicpu == 1000


def test_what_cannot_be_resized_is_that_of_the_specification() -> None:
    asked = {"requests": {"memory": "9Gi", "kubernetes.io/batch-cpu": "500"}}
    pod = resized(REFUSED, asked, {"memory": "1Gi"}, {"requests": {"memory": "1Gi"}})
    (container,) = effective(pod).main
    assert container.requests == {"memory": "1Gi", "kubernetes.io/batch-cpu": "500"}
    assert cpu_requests(effective(pod)).batch_millicpu == 500


def test_sidecars_are_resized_and_init_containers_that_end_are_not() -> None:
    pod = resized(REFUSED, amounts(1), ONE, amounts(1))
    init = [
        {"name": "side", "restartPolicy": "Always", "resources": amounts(64)},
        {"name": "once", "resources": amounts(2)},
    ]
    statuses = [{"name": name, "allocatedResources": ONE, "resources": amounts(1)} for name in ("side", "once")]
    written = msgspec.to_builtins(pod)
    written["spec"]["initContainers"], written["status"]["initContainerStatuses"] = init, statuses
    made = msgspec.convert(written, Pod)
    assert memory_requests(effective(made)).native_bytes == 3 * GIB


def test_a_pod_without_a_resize_has_what_is_written() -> None:
    (container,) = effective(resized([], amounts(1))).main
    assert {"requests": container.requests, "limits": container.limits} == amounts(1)


def test_a_quantity_of_the_status_that_is_none_spoils_its_own_pod() -> None:
    pod = resized(DEFERRED, amounts(2), {"memory": "much"}, amounts(1))
    assert "pod shop/web status[c].memory" in (effective(pod).problem or "")
    assert memory_requests(effective(pod)).native_bytes == 0
    facts = pod_facts(pod)
    assert facts.terms.problem is not None
    assert facts.terms.memory_request_bytes == 0
    assert memory_pod(facts).request_bytes == 0


def whole(asked: dict[str, Any], conditions: list[dict[str, str]] | None = None, **status: Any) -> Pod:
    """Return a pod with these resources at its own level, and a container without any."""
    made = msgspec.to_builtins(resized(conditions or [], {"requests": {}}, **status))
    made["spec"]["resources"] = asked
    return msgspec.convert(made, Pod)


WITH_OVERHEAD = {"memory": "1280Mi", "cpu": "1250m"}


@pytest.mark.parametrize(
    ("pod", "granted_gib", "limit_gib"),
    [
        (whole(amounts(12)), 12, 12),
        (whole({"limits": {"memory": "2Gi"}}), 2, 2),
        (whole({"requests": {"memory": "2Gi"}}), 2, 0),
        (whole(amounts(64), REFUSED, allocatedResources=ONE, resources=amounts(1)), 1, 1),
        (whole(amounts(64), DEFERRED, allocatedResources=ONE, resources=amounts(1)), 1, 1),
        (whole(amounts(64), allocatedResources=ONE, resources=amounts(1)), 1, 1),  # the kubelet has not answered yet
        (whole(amounts(64), resources=amounts(1)), 1, 1),
        (whole(amounts(64), allocatedResources=ONE), 1, None),
        (whole(amounts(4), IN_PROGRESS, allocatedResources=FOUR, resources=amounts(1)), 4, 4),  # granted: it grows
        (whole(amounts(1), IN_PROGRESS, allocatedResources=ONE, resources=amounts(4)), 4, 4),  # it shrinks
        # A kubelet that does not resize pods as a whole refuses that of a container.
        (whole(amounts(8), REFUSED), 8, 8),
    ],
)
def test_what_the_own_level_of_a_pod_is_granted_and_limited_to(
    pod: Pod, granted_gib: int, limit_gib: int | None
) -> None:
    facts, hooked = pod_facts(pod), hook_pod(pod, "Guaranteed")
    of_memory = memory_pod(facts)
    for each in (pod, given_pod(pod_bytes(pod))):
        assert memory_requests(effective(each)).native_bytes == granted_gib * GIB
    assert pod_record(pod).memory_bytes == predicted_pod(facts).request.memory_bytes == granted_gib * GIB
    assert facts.terms.memory_request_bytes == facts.terms.native_memory_request_bytes == granted_gib * GIB
    assert (of_memory.request_bytes, of_memory.limit_bytes) == (granted_gib * GIB, (limit_gib or 0) * GIB)
    assert (of_memory.is_limit_known, hooked.is_limit_known) == (limit_gib is not None,) * 2
    assert hooked.containers[0].memory_limit_bytes == (limit_gib or 0) * GIB


def test_the_own_level_stands_for_all_containers_and_the_overhead_is_added() -> None:
    made = msgspec.to_builtins(whole({"requests": {"memory": "6Gi"}, "limits": {"memory": "8Gi", "cpu": "4"}}))
    made["spec"]["containers"] = [{"name": name, "resources": amounts(2)} for name in "ab"]
    made["spec"]["overhead"] = {"memory": "1Gi"}
    its = effective(msgspec.convert(made, Pod))
    assert (its.request("memory").value(), its.request("cpu").milli_value()) == (7 * GIB, 2000)
    limits = its.limit("memory"), its.limit("cpu")
    assert [each.value() for each in limits if each is not None] == [9 * GIB, 4]
    assert [each.value() for at in its.main if (each := its.limit_of(at, "memory")) is not None] == [2 * GIB] * 2


@pytest.mark.parametrize("conditions", [[], REFUSED])
@pytest.mark.parametrize("actual", [amounts(1), {"requests": WITH_OVERHEAD, "limits": WITH_OVERHEAD}])
def test_what_the_kubelet_reports_of_the_own_level_has_the_overhead_in_it(
    conditions: list[dict[str, str]], actual: dict[str, Any]
) -> None:
    made = msgspec.to_builtins(whole(amounts(1), conditions, allocatedResources=WITH_OVERHEAD, resources=actual))
    made["spec"]["overhead"] = {"memory": "256Mi", "cpu": "250m"}
    its = effective(msgspec.convert(made, Pod))
    limit = its.limit("memory")
    assert (its.request("memory").value(), its.request("cpu").milli_value()) == (5 * GIB // 4, 1250)
    assert limit is not None
    assert limit.value() == 5 * GIB // 4


@pytest.mark.parametrize(
    ("spec", "kube_qos"),
    [
        ({"resources": amounts(1)}, "Guaranteed"),
        ({"resources": {"limits": ONE}}, "Guaranteed"),
        ({"resources": {"limits": {"memory": "1Gi"}}}, "Burstable"),
        ({"resources": {}}, "BestEffort"),
        ({"resources": {"requests": {"hugepages-2Mi": "2Mi"}}}, "BestEffort"),
        ({"resources": {"limits": {"memory": "much"}}}, "Burstable"),
        ({}, "BestEffort"),
    ],
)
def test_the_class_of_a_pod_whose_status_has_none(spec: dict[str, Any], kube_qos: str) -> None:
    made = {
        "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
        "spec": {"containers": [{"name": "c"}]} | spec,
    }
    pod = msgspec.convert(made, Pod)
    assert effective(pod).kube_qos == pod_facts(pod).kube_qos == kube_qos_of_pod(pod) == kube_qos
    named = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, qosClass="Burstable"))
    assert effective(named).kube_qos == kube_qos_of_pod(named) == "Burstable"


# The scheduler keeps the room for what is asked for; what evicts and protects does not count it.
def test_the_scheduler_counts_what_is_only_asked_for() -> None:
    for pod in (
        resized(DEFERRED, amounts(4), ONE, amounts(1)),
        whole(amounts(4), DEFERRED, allocatedResources=ONE, resources=amounts(1)),
    ):
        assert scheduled_requests(pod)["memory"].value() == 4 * GIB
        assert effective(pod).request("memory").value() == GIB
    assert scheduled_requests(resized(REFUSED, amounts(4), ONE, amounts(1)))["memory"].value() == GIB


def test_files_of_containers_may_have_the_limit_of_the_pod() -> None:
    def limits(pod: Pod) -> dict[str, int]:
        return {name: each.milli_value() for name, each in possible_limits(pod, "cpu").items()}

    assert limits(whole(amounts(1, 2))) == {"c": 2000}
    assert limits(whole(amounts(1, 2), IN_PROGRESS, allocatedResources=ONE, resources=amounts(1, 4))) == {"c": 4000}
    assert limits(whole(amounts(1, 64), REFUSED, allocatedResources=ONE, resources=amounts(1, 4))) == {"c": 4000}
    # A kubelet reports the sum of containers as the level of a pod that has none.
    assert limits(resized([], {"requests": ONE}, ONE, {"requests": ONE}, resources=amounts(1, 4))) == {}
