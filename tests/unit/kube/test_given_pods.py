"""Pods as bytes of core/v1: what is read of them, and that nothing else changes anything."""

from __future__ import annotations

import os

import pytest

from koordebpf.errors import DecodeError
from koordebpf.kube.cache.objects import (
    Container,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    OwnerReference,
    ResourceRequirements,
    Volume,
)
from koordebpf.kube.plugins.given_source import GivenPods, given_pod
from tests.support.plugin_pods import POD, QOS, plugin_pod


def test_what_a_decision_needs_is_read() -> None:
    data = plugin_pod(
        "u1",
        "reclaimed_cores",
        priority=-7,
        labels=[{"key": "app", "value": "x"}],
        ownerReferences=[{"kind": "ReplicaSet", "name": "r", "uid": "o"}],
        creationTimestamp={"seconds": 1_700_000_000},
        deletionTimestamp={"seconds": 1_700_000_001},
    )
    pod = given_pod(data)
    assert (pod.uid, pod.key, pod.spec.priority, pod.status.phase) == ("u1", "team/u1", -7, "Running")
    assert pod.metadata.annotations == {QOS: "reclaimed_cores"}
    assert pod.metadata.labels == {"app": "x"}
    assert pod.metadata.ownerReferences == [OwnerReference("ReplicaSet", "r", "o")]
    assert pod.metadata.creationTimestamp == "2023-11-14T22:13:20Z"
    assert pod.metadata.deletionTimestamp == "2023-11-14T22:13:21Z"
    assert pod.spec.containers == [Container("main", ResourceRequirements(requests={"memory": "64Mi"}))]


def test_a_volume_in_memory_and_one_of_the_host_are_read() -> None:
    volumes = [
        {"name": "a", "volumeSource": {"emptyDir": {"medium": "Memory", "sizeLimit": {"string": "1Gi"}}}},
        {"name": "b", "volumeSource": {"hostPath": {"path": "/dev/shm"}}},
        {"name": "c", "volumeSource": {}},
    ]
    data = POD(metadata={"uid": "u"}, spec={"volumes": volumes, "hostIPC": True}).SerializeToString()
    pod = given_pod(data)
    assert pod.spec.hostIPC
    assert pod.spec.volumes == [
        Volume("a", emptyDir=EmptyDirVolumeSource("Memory", "1Gi")),
        Volume("b", hostPath=HostPathVolumeSource("/dev/shm")),
        Volume("c"),
    ]


def test_what_is_absent_is_not_zero() -> None:
    pod = given_pod(plugin_pod("u1", request=None))
    assert pod.spec.priority is None
    assert pod.spec.terminationGracePeriodSeconds is None
    assert pod.metadata.deletionTimestamp is None
    assert given_pod(plugin_pod("u1", priority=0)).spec.priority == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "without a metadata.uid"),
        (POD(metadata={"name": "x"}).SerializeToString(), "without a metadata.uid"),
        (plugin_pod("u1")[:20], "ends after"),
        (b"\xff" * 20, "more than ten bytes"),
        (POD(metadata={"uid": "u", "creationTimestamp": {"seconds": 1 << 60}}).SerializeToString(), "the time"),
    ],
)
def test_what_is_no_pod_is_an_error(data: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        given_pod(data)


def test_random_bytes_are_an_error_or_a_pod_and_nothing_else() -> None:
    whole = plugin_pod("u1", "shared_cores", priority=3)
    for _ in range(3000):
        data = bytearray(whole)
        data[os.urandom(1)[0] % len(data)] = os.urandom(1)[0]
        try:
            given_pod(bytes(data))
        except DecodeError:
            continue


def test_the_pods_of_the_last_request_are_known_and_a_bad_one_harms_no_other() -> None:
    source = GivenPods()
    assert source.state().version == 0
    one, two = plugin_pod("one"), plugin_pod("two")
    assert source.replace([one, b"\xff", two]) == ("one", None, "two")
    state = source.state()
    assert [pod.uid for pod in state.pods] == ["one", "two"]
    (problem,) = state.problems
    assert "cannot be read" in problem
    # AND the same pods are no news, fewer are
    source.replace([one, b"\xff", two])
    assert source.state().version == state.version
    assert source.state().pods[0] is state.pods[0]
    source.replace([two])
    assert source.state().version == state.version + 1


def test_a_request_without_pods_says_nothing_of_them() -> None:
    source = GivenPods()
    source.replace([plugin_pod("one")])
    assert source.replace([]) == ()
    assert len(source.state().pods) == 1


def test_a_question_about_some_pods_changes_none() -> None:
    source = GivenPods()
    source.replace([plugin_pod("one"), plugin_pod("two")])
    assert source.uids([plugin_pod("two"), b"?"]) == ("two", None)
    assert len(source.state().pods) == 2


def test_more_pods_than_a_node_has_are_refused() -> None:
    with pytest.raises(DecodeError, match="more than 2000"):
        GivenPods().replace([b""] * 2001)
