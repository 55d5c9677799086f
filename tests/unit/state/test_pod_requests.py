"""What a pod asks for, as the scheduler counts it: containers, init containers, sidecars and overhead."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.kube.cache.objects import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements
from koordebpf.state.pods.effective import effective
from koordebpf.state.pods.requests import (
    BATCH_MEMORY,
    NATIVE_CPU,
    NATIVE_MEMORY,
    NET_BANDWIDTH,
    cpu_requests,
    katalyst_requests,
    memory_requests,
)

MIB = 1 << 20


def container(mib: int, *, sidecar: bool = False, resource: str = NATIVE_MEMORY) -> Container:
    requests = ResourceRequirements(requests={resource: f"{mib}Mi"})
    return Container(f"c{mib}", resources=requests, restartPolicy="Always" if sidecar else None)


def pod(*init: Container, main: int = 1024, overhead: str | None = None) -> Pod:
    extra = {NATIVE_MEMORY: overhead} if overhead else None
    spec = PodSpec(containers=[container(main)], initContainers=list(init), overhead=extra)
    return Pod(ObjectMeta(name="web", namespace="shop", uid="u"), spec)


@pytest.mark.parametrize(
    ("asked", "mib"),
    [
        (pod(), 1024),
        (pod(container(512)), 1024),  # it has ended before the containers begin
        (pod(container(4096)), 4096),
        (pod(container(4096), container(100, sidecar=True)), 4096),
        (pod(container(100, sidecar=True), container(4096)), 4196),
        (pod(container(100, sidecar=True), container(500)), 1124),
        (pod(container(1500), container(1200)), 1500),
        (pod(container(300, sidecar=True), container(200, sidecar=True), main=10), 510),
        (pod(overhead="64Mi"), 1088),
    ],
)
def test_memory_of_the_moment_that_needs_most(asked: Pod, mib: int) -> None:
    assert memory_requests(effective(asked)).native_bytes == mib * MIB


def test_extended_resources_are_those_of_containers_and_sidecars() -> None:
    spec = PodSpec(
        containers=[container(5, resource=BATCH_MEMORY)],
        initContainers=[container(7, sidecar=True, resource=BATCH_MEMORY), container(100, resource=BATCH_MEMORY)],
    )
    asked = Pod(ObjectMeta(name="a", namespace="b", uid="u"), spec)
    assert memory_requests(effective(asked)).batch_bytes == 12 * MIB


def test_a_limit_alone_is_the_request() -> None:
    resources = ResourceRequirements(limits={NATIVE_CPU: "1500m"})
    spec = PodSpec(containers=[Container("c", resources=resources)])
    asked = Pod(ObjectMeta(name="a", namespace="b", uid="u"), spec)
    assert cpu_requests(effective(asked)).native_millicpu == 1500


@pytest.mark.parametrize("where", ["requests", "limits", "overhead"])
def test_katalysts_resources_are_found_wherever_they_are_named(where: str) -> None:
    named = {NET_BANDWIDTH: "7"}
    resources = None if where == "overhead" else ResourceRequirements(**{where: named})
    spec = PodSpec(containers=[Container("c", resources=resources)], overhead=named if where == "overhead" else None)
    for asked, amounts in ((Pod(ObjectMeta(name="a", namespace="b", uid="u"), spec), {NET_BANDWIDTH: 7}), (pod(), {})):
        assert katalyst_requests(effective(asked)) == amounts


@pytest.mark.parametrize(
    ("each_asks", "n_bytes"),
    [
        (["1Gi", "64e0006"], 1024 * MIB + 64_000_000),
        (["100m", "200m"], 1),  # a sum is rounded up, not each of its parts
        (["10E"], 0),
        (["5E", "5E"], 0),
        (["9223372036854775807", "9223372036854775807", "3"], 1),
        (["16Ei"], 2**63 - 1),
        (["8Ei", "1"], 0),  # negative in Go
    ],
)
def test_containers_are_added_up_as_in_go(each_asks: list[str], n_bytes: int) -> None:
    containers = [
        Container(f"c{at}", resources=ResourceRequirements({NATIVE_MEMORY: each, BATCH_MEMORY: each}))
        for at, each in enumerate(each_asks)
    ]
    asked = Pod(ObjectMeta(name="a", namespace="b", uid="u"), PodSpec(containers=containers))
    found = memory_requests(effective(asked))
    assert (found.native_bytes, found.batch_bytes) == (n_bytes, n_bytes)


def test_an_init_container_of_the_same_pod_is_compared_with_the_number_itself() -> None:
    asked = pod(container(512), main=1024)
    (first,) = asked.spec.initContainers or ()
    huge = msgspec.structs.replace(first, resources=ResourceRequirements({NATIVE_MEMORY: "10E"}))
    asked = msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, initContainers=[huge]))
    assert memory_requests(effective(asked)).native_bytes == 0
