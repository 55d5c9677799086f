"""Pods as protobuf: what the agent keeps of them, with the field numbers of Kubernetes."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.errors import DecodeError
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.plugins.pods import MAGIC, POD_TABLE, pod_bytes, pods_of_list, uid_of


def made(**spec: object) -> Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": "a",
                "namespace": "n",
                "uid": "u",
                "labels": {"k": "v"},
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "deletionTimestamp": "soon",
                "ownerReferences": [{"kind": "Job", "name": "j", "uid": "o", "controller": True}],
            },
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": 1, "memory": "1Gi"}}}],
                **spec,
            },
            "status": {"phase": "Running", "qosClass": "Burstable"},
        },
        Pod,
    )


def test_what_the_agent_keeps_is_there() -> None:
    found = decode(POD_TABLE, "Pod", pod_bytes(made(priority=-5)))
    assert (found["metadata"]["name"], found["metadata"]["namespace"], found["metadata"]["uid"]) == ("a", "n", "u")
    assert found["metadata"]["labels"] == [{"key": "k", "value": "v"}]
    assert found["metadata"]["creationTimestamp"] == {"seconds": 1767323045}
    assert found["metadata"]["ownerReferences"][0]["controller"] is True
    assert found["spec"]["containers"][0]["resources"]["requests"] == [
        {"key": "cpu", "value": {"string": "1"}},
        {"key": "memory", "value": {"string": "1Gi"}},
    ]
    assert found["spec"]["priority"] == -5
    assert found["status"]["phase"] == "Running"


def test_a_time_that_is_none_is_left_out() -> None:
    assert decode(POD_TABLE, "Pod", pod_bytes(made()))["metadata"]["deletionTimestamp"] is None


def test_zero_is_not_absent() -> None:
    zero = decode(POD_TABLE, "Pod", pod_bytes(made(priority=0, terminationGracePeriodSeconds=0)))["spec"]
    absent = decode(POD_TABLE, "Pod", pod_bytes(made()))["spec"]
    assert (zero["priority"], zero["terminationGracePeriodSeconds"]) == (0, 0)
    assert (absent["priority"], absent["terminationGracePeriodSeconds"]) == (None, None)


def test_a_list_gives_each_pod_as_it_is() -> None:
    whole = pod_bytes(made()) + b"\xfa\x3f\x03abc"  # a field that is not known
    raw = encode(POD_TABLE, "PodList", {"items": [whole, encode(POD_TABLE, "Pod", {"status": {"phase": "Failed"}})]})
    assert pods_of_list(MAGIC + encode(POD_TABLE, "Unknown", {"raw": raw})) == ({"u": whole}, "")


@pytest.mark.parametrize("answer", [b"", b'{"kind":"PodList"}', MAGIC + b"\x12\x7f"])
def test_an_answer_that_is_no_such_list_is_an_error(answer: bytes) -> None:
    with pytest.raises(DecodeError):
        pods_of_list(answer)


def test_what_has_no_uid_has_none() -> None:
    assert uid_of(b"") == ""
