"""An API server that does not list Pods in protobuf: plugins are given what the agent keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.clients.protobuf import encode
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.plugins.pods import MAGIC, POD_TABLE, PROTOBUF, PodMessages, pod_bytes
from tests.contract.apiserver import Reply, Server, gives, pod, status, until

ONE = msgspec.convert(pod("one", 1), Pod, strict=False)
WHOLE = pod_bytes(ONE) + b"\xfa\x3f\x03abc"  # with a field that the agent does not know


@pytest.fixture
def messages(server: Server, kubeconfig: Path) -> Iterator[Callable[[], PodMessages]]:
    opened: list[PodMessages] = []

    def make() -> PodMessages:
        opened.append(PodMessages(open_cluster(kubeconfig), "n1", rest_s=0.02))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def listed() -> bytes:
    return MAGIC + encode(POD_TABLE, "Unknown", {"raw": encode(POD_TABLE, "PodList", {"items": [WHOLE]})})


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (gives(403, status(403, "Forbidden", "no")), "list pods"),
        (gives(406, status(406, "NotAcceptable", "only JSON")), "only JSON"),
        (gives(200, {"kind": "PodList"}), "the answer begins with"),
        (gives(200, MAGIC + b"\x12\x7f"), "ends after"),
    ],
)
def test_what_the_agent_keeps_is_given_until_there_is_a_list(
    server: Server, messages: Callable[[], PodMessages], reply: Reply, why: str
) -> None:
    server.on("/api/v1/pods", reply)
    made = messages()
    assert made.of([ONE], 1) == {ONE.uid: pod_bytes(ONE)}
    until(lambda: made.problem is not None, "a problem")
    assert why in str(made.problem)
    assert made.of([ONE], 1) == {ONE.uid: pod_bytes(ONE)}
    server.on("/api/v1/pods", gives(200, listed()))
    until(lambda: made.of([ONE], 1) == {ONE.uid: WHOLE}, "the list is asked for again")
    until(lambda: made.problem is None, "no problem")
    assert server.requests[-1].headers["accept"] == PROTOBUF
    assert server.requests[-1].query == {"fieldSelector": "spec.nodeName=n1", "resourceVersion": "0"}


def test_a_list_is_asked_for_where_pods_have_changed_alone(server: Server, messages: Callable[[], PodMessages]) -> None:
    server.on("/api/v1/pods", gives(200, listed()))
    made = messages()
    for version in (1, 1, 1):
        made.of([ONE], version)
    until(lambda: made.of([ONE], 1) == {ONE.uid: WHOLE}, "a list")
    asked = len(server.requests)
    made.of([ONE], 1)
    made.of([ONE], 2)
    until(lambda: len(server.requests) > asked, "a second list")
    assert len(server.requests) == asked + 1 == 2
