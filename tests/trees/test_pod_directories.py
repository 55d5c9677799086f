"""Which directories are pods', containers' and those of the QoS classes, by both cgroup drivers."""

from __future__ import annotations

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.pod_directories import PodDirectoryCache, pod_directories
from koordebpf.kube.cache.objects import ClusterState, ObjectMeta, Pod, PodStatus
from koordebpf.state.pods.hook_pods import PodDirectory

A, B = "a" * 64, "b" * 64


def index_of(*paths: str, **pods: str) -> CgroupIndex:
    index = CgroupIndex()
    numbers = {"": 1}
    rows = [(1, 0, "")]
    for path in paths:
        numbers[path] = len(numbers) + 1
        rows.append((numbers[path], numbers[path.rpartition("/")[0]], path))
    index.replace_all(rows)
    index.set_pods(made(**pods))
    return index


def made(**pods: str) -> tuple[Pod, ...]:
    return tuple(
        Pod(ObjectMeta(uid, "team", uid), status=PodStatus("Running", qosClass=qos)) for uid, qos in pods.items()
    )


def test_pods_have_their_containers_in_the_order_of_their_paths():
    index = index_of("kubepods", "kubepods/podg", f"kubepods/podg/{B}", f"kubepods/podg/{A}", g="Guaranteed")
    found, classes = pod_directories(index)
    assert found == [PodDirectory("g", "kubepods/podg", {A: f"kubepods/podg/{A}", B: f"kubepods/podg/{B}"})]
    assert list(found[0].containers) == [A, B]
    assert classes == {"Guaranteed": "kubepods"}


@pytest.mark.parametrize("qos", ["Burstable", "BestEffort"])
def test_the_directory_of_all_pods_is_above_that_of_a_class(qos: str):
    level = f"kubepods/{qos.lower()}"
    _, classes = pod_directories(index_of("kubepods", level, f"{level}/podx", x=qos))
    assert classes == {qos: level, "Guaranteed": "kubepods"}


def test_systemd_has_other_names():
    top, level = "kubepods.slice", "kubepods.slice/kubepods-besteffort.slice"
    pod = f"{level}/kubepods-besteffort-podx.slice"
    index = index_of(top, level, pod, f"{pod}/cri-containerd-{A}.scope", x="BestEffort")
    found, classes = pod_directories(index)
    assert found == [PodDirectory("x", pod, {A: f"{pod}/cri-containerd-{A}.scope"})]
    assert classes == {"BestEffort": level, "Guaranteed": top}


def test_a_pod_without_a_directory_and_a_directory_without_a_pod_are_left_out():
    found, classes = pod_directories(index_of("kubepods", "kubepods/podstray", gone="Guaranteed"))
    assert (found, classes) == ([], {})


def test_they_are_made_again_only_where_the_index_or_the_cluster_has_changed():
    index, known = index_of("kubepods", "kubepods/podg", g="Guaranteed"), ClusterView()
    cache = PodDirectoryCache(index, known)
    first = cache.read()
    assert cache.read() is first
    index.add(9, 3, A)
    second = cache.read()
    assert second is not first
    assert second[0][0].containers == {A: f"kubepods/podg/{A}"}
    known.learn(ClusterState(1, 1, pods=made(g="Guaranteed")))
    third = cache.read()
    assert third is not second
    assert third == second
    assert cache.read() is third
