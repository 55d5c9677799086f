"""An API server that does not list Pods in protobuf: plugins are given what the agent keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.clients.protobuf import encode
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.plugins.pods import MAGIC, POD_TABLE, PROTOBUF, PodMessages, pod_bytes
from tests.contract.apiserver import Exchange, Reply, Server, gives, pod, status, until

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


def listed(items: Sequence[bytes] = (WHOLE,), more: str = "") -> bytes:
    found = encode(POD_TABLE, "PodList", {"metadata": {"continue": more}, "items": list(items)})
    return MAGIC + encode(POD_TABLE, "Unknown", {"raw": found})


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


def test_a_list_that_is_too_large_is_read_in_pages_and_a_large_pod_costs_its_own_fields_alone(
    server: Server, messages: Callable[[], PodMessages]
) -> None:
    kept = [msgspec.convert(pod(f"p{at:02}", at + 1), Pod, strict=False) for at in range(60)]
    whole = [pod_bytes(each) + b"\xfa\x3f\x03abc" for each in kept]
    # Any tenant may make such pods: with a field of 1.4 MB, as far as their owner alone is concerned.
    large = {at: whole[at] + b"\xfa\x3f\xc0\xb9\x55" + b"x" * 1_400_000 for at in range(0, 60, 2)}
    every = [large.get(at, each) for at, each in enumerate(whole)]

    def answer(exchange: Exchange) -> None:
        query = exchange.request.query
        begin, limit = int(query.get("continue") or 0), int(query.get("limit") or len(every))
        end = min(begin + limit, len(every))
        gives(200, listed(every[begin:end], str(end) if end < len(every) else ""))(exchange)

    server.on("/api/v1/pods", answer)
    made = messages()
    made.of(kept, 1)
    until(lambda: made.of(kept, 1)[kept[1].uid] == whole[1], lambda: f"the list is read: {made.problem}")
    given = made.of(kept, 1)
    for at, each in enumerate(kept):
        assert given[each.uid] == (pod_bytes(each) if at in large else whole[at])
    assert made.problem is None
    assert sum(map(len, given.values())) < 1 << 20
    limits = [int(each.query["limit"]) for each in server.requests if "limit" in each.query]
    assert limits == [100, 25, 6] + [1] * 60
