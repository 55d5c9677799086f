"""Evictions and Events against a server that refuses in every way a real one does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.kube.clients.events import MESSAGE_BYTES
from koordebpf.kube.clients.evictions import KubeActions
from koordebpf.kube.http.transport import open_cluster
from tests.contract.apiserver import Exchange, Server, gives, status, until

PATH = "/api/v1/namespaces/be/pods/spark-1/eviction"
EVENTS = "/api/v1/namespaces/be/events"
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
CONFLICT = "Operation cannot be fulfilled on pods"


@pytest.fixture
def actions(kubeconfig: Path) -> Iterator[KubeActions]:
    actions = KubeActions(open_cluster(kubeconfig), "n1")
    yield actions
    actions.close()


def evict(actions: KubeActions, timeout_s: float = 20.0) -> None:
    actions.evict("be", "spark-1", "uid-1", timeout_s=timeout_s)


def test_eviction_carries_the_uid(server: Server, actions: KubeActions) -> None:
    server.on(PATH, gives(201, {"kind": "Status", "status": "Success"}))
    evict(actions)
    (request,) = server.requests
    assert request.method == "POST"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Bearer sesame"
    assert json.loads(request.body) == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "spark-1", "namespace": "be"},
        "deleteOptions": {"preconditions": {"uid": "uid-1"}},
    }


def test_a_shorter_grace_period_is_asked_for_beside_the_uid(server: Server, actions: KubeActions) -> None:
    server.on(PATH, gives(201, {"kind": "Status", "status": "Success"}))
    actions.evict("be", "spark-1", "uid-1", timeout_s=20.0, grace_s=30)
    (request,) = server.requests
    options = json.loads(request.body)["deleteOptions"]
    assert options == {"preconditions": {"uid": "uid-1"}, "gracePeriodSeconds": 30}


def test_connection_is_used_again(server: Server, actions: KubeActions) -> None:
    server.on(PATH, gives(201, {"kind": "Status"}))
    for _ in range(5):
        evict(actions)
    assert len(server.requests) == 5
    assert server.connections == 1


@pytest.mark.usefixtures("no_jitter")
@pytest.mark.parametrize(
    ("headers", "details", "expected"),
    [
        ({"Retry_After": "10"}, {}, 10.0),
        ({}, {"retryAfterSeconds": 7}, 7.0),
        (
            {},
            {"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods"}]},
            None,
        ),
        ({"Retry_After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
    ],
    ids=["header", "details", "without", "date"],
)
def test_429_is_busy(
    headers: dict[str, str], details: dict[str, object], expected: float | None, server: Server, actions: KubeActions
) -> None:
    server.on(PATH, gives(429, status(429, "TooManyRequests", BUDGET, **details), **headers))
    with pytest.raises(KubeBusy) as caught:
        evict(actions)
    assert caught.value.retry_after_s == expected
    assert caught.value.retry
    assert BUDGET in str(caught.value)
    if "causes" in details:
        assert "web needs 2 healthy pods" in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.usefixtures("no_jitter")
def test_429_of_priority_and_fairness_is_plain_text(server: Server, actions: KubeActions) -> None:
    server.on(PATH, gives(429, b"Too many requests, please try again later.\n", Retry_After="1"))
    with pytest.raises(KubeBusy, match="please try again later") as caught:
        evict(actions)
    assert caught.value.retry_after_s == 1.0


@pytest.mark.usefixtures("no_jitter")
def test_503_is_busy(server: Server, actions: KubeActions) -> None:
    server.on(PATH, gives(503, b"", Retry_After="2"))
    with pytest.raises(KubeBusy, match="503 Service Unavailable") as caught:
        evict(actions)
    assert caught.value.retry_after_s == 2.0


@pytest.mark.parametrize("code", [401, 403])
def test_denied_names_verb_and_resource(code: int, server: Server, actions: KubeActions) -> None:
    details = {"name": "spark-1", "kind": "pods"}
    server.on(PATH, gives(code, status(code, "Forbidden", "no", **details)))
    with pytest.raises(KubeDenied, match="needs RBAC verb create on pods/eviction") as caught:
        evict(actions)
    assert (caught.value.verb, caught.value.resource) == ("create", "pods/eviction")
    assert not caught.value.retry


def test_403_of_an_admission_policy_is_no_matter_of_rbac(server: Server, actions: KubeActions) -> None:
    said = "ValidatingAdmissionPolicy 'a' with binding 'b' denied request: the token names no node"
    details = {"name": "spark-1", "kind": "pods", "causes": [{"message": said}]}
    server.on(PATH, gives(403, status(403, "Forbidden", f'pods "spark-1" is forbidden: {said}', **details)))
    with pytest.raises(
        KubeDenied, match=r"^create pods/eviction: 403 Forbidden: Validating.* names no node$"
    ) as caught:
        evict(actions)
    assert caught.value.by_policy


def test_403_of_a_disruption_budget_is_no_matter_of_rbac(server: Server, actions: KubeActions) -> None:
    said = status(403, "Forbidden", "pdb disruptions allowed is negative", kind="poddisruptionbudget", name="web")
    server.on(PATH, gives(403, said))
    with pytest.raises(KubeBusy, match="negative"):
        evict(actions)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (404, 'pods "spark-1" not found'),
        (409, f'{CONFLICT} "spark-1": Precondition failed: UID in precondition: uid-1, UID in object meta: uid-2'),
        (410, "gone"),
    ],
)
def test_gone(code: int, message: str, server: Server, actions: KubeActions) -> None:
    server.on(PATH, gives(code, status(code, "Whatever", message)))
    with pytest.raises(KubeGone) as caught:
        evict(actions)
    assert caught.value.status == code
    assert message in str(caught.value)
    assert not caught.value.retry


@pytest.mark.parametrize(
    ("code", "message", "retry"),
    [
        (409, f"{CONFLICT}: the object has been modified; please apply your changes to the latest version", True),
        (500, "This pod has more than one PodDisruptionBudget", True),
        (502, "", True),
        (504, "couldn't update PodDisruptionBudget due to conflicts", True),
        (400, "name in URL does not match name in Eviction object", False),
        (422, "invalid", False),
        (302, "", False),
        (499, "a code of a proxy's own", False),
    ],
)
def test_other_errors_tell_whether_to_retry(
    code: int, message: str, retry: bool, server: Server, actions: KubeActions
) -> None:
    server.on(PATH, gives(code, status(code, "Whatever", message)))
    with pytest.raises(KubeError, match=f"create pods/eviction: {code}") as caught:
        evict(actions)
    assert type(caught.value) is (KubeConflict if code == 409 else KubeError)
    assert caught.value.retry is retry
    assert len(server.requests) == 1


def test_redirect_is_not_followed_with_the_token(server: Server, actions: KubeActions) -> None:
    server.on(PATH, gives(307, b"", Location=f"{server.url}/elsewhere"))
    with pytest.raises(KubeError, match="307"):
        evict(actions)
    assert [r.path for r in server.requests] == [PATH]


def holds(exchange: Exchange) -> None:
    exchange.hold()


def half_a_body(exchange: Exchange) -> None:
    exchange.head(201, Content_Length="1000")
    exchange.raw(b"{")
    exchange.hold()


def drips(exchange: Exchange) -> None:
    exchange.head(201, Content_Length="100000")
    while not exchange._server.stopping.wait(0.02):
        exchange.raw(b" ")


@pytest.mark.parametrize("reply", [holds, half_a_body, drips])
def test_time_out_says_that_the_outcome_is_unknown(reply: object, server: Server, actions: KubeActions) -> None:
    server.on(PATH, reply)  # type: ignore[arg-type]
    with pytest.raises(KubeError, match="outcome is unknown") as caught:
        evict(actions, timeout_s=0.3)
    assert type(caught.value) is KubeError
    assert caught.value.retry
    until(lambda: server.requests, "the request")
    assert len(server.requests) == 1


def cuts_before(exchange: Exchange) -> None:
    exchange.cut()


def cuts_inside(exchange: Exchange) -> None:
    exchange.head(201, Content_Length="1000")
    exchange.raw(b'{"kind":')
    exchange.cut()


def speaks_no_http(exchange: Exchange) -> None:
    exchange.raw(b"\x15\x03\x01\x00\x02\x02\x16 not a word of HTTP\r\n\r\n")
    exchange.cut()


@pytest.mark.parametrize("reply", [cuts_before, cuts_inside, speaks_no_http])
def test_broken_connection_is_not_repeated(reply: object, server: Server, actions: KubeActions) -> None:
    server.on(PATH, reply)  # type: ignore[arg-type]
    with pytest.raises(KubeError, match="connection to http://127") as caught:
        evict(actions)
    assert caught.value.retry
    # An eviction that may have been done is the caller's to repeat.
    assert len(server.requests) == 1


def test_server_that_is_not_there(server: Server, actions: KubeActions) -> None:
    server.close()
    with pytest.raises(KubeError, match="Connection refused") as caught:
        evict(actions)
    assert caught.value.retry


def test_names_cannot_leave_their_place_in_the_path(server: Server, actions: KubeActions) -> None:
    with pytest.raises(KubeGone):
        actions.evict("be", "../../secrets/x", "uid", timeout_s=20)
    assert server.requests[0].path == "/api/v1/namespaces/be/pods/..%2F..%2Fsecrets%2Fx/eviction"


def test_close_ends_an_eviction_that_hangs(server: Server, actions: KubeActions) -> None:
    server.on(PATH, holds)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            evict(actions, timeout_s=600)
        except KubeError as e:
            errors.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    while not server.held:
        thread.join(0.005)
    actions.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(errors) == 1
    with pytest.raises(KubeError, match="closed"):
        evict(actions)


def test_event_is_a_warning_on_the_pod(server: Server, actions: KubeActions) -> None:
    server.on(EVENTS, gives(201, {}))
    message = (
        "evict Pod:be/spark-1, reason: evicted, message: trigger by koordlet feature BEMemoryEvict, kill pod: spark-1"
    )
    at = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)
    actions.create_event("be", "spark-1", "uid-1", reason="evictPodSuccess", message=message, at=at, timeout_s=20)
    (request,) = server.requests
    event = json.loads(request.body)
    assert event["metadata"]["namespace"] == "be"
    assert event["metadata"]["name"].startswith("spark-1.")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "be",
        "name": "spark-1",
        "uid": "uid-1",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "evictPodSuccess", message)
    assert event["source"] == {"component": "koordebpf", "host": "n1"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-11-21T12:00:00Z"
    assert event["count"] == 1


def test_event_message_is_cut_between_characters(server: Server, actions: KubeActions) -> None:
    server.on(EVENTS, gives(201, {}))
    at = datetime(2026, 11, 21, tzinfo=UTC)
    actions.create_event("be", "p", "u", reason="evictPodFail", message="x" + "€" * 1000, at=at, timeout_s=20)
    message = json.loads(server.requests[0].body)["message"]
    assert len(message.encode()) <= MESSAGE_BYTES
    assert message == "x" + "€" * ((MESSAGE_BYTES - 1) // 3)


def test_event_that_is_there_already_is_not_repeated(server: Server, actions: KubeActions) -> None:
    server.on(EVENTS, gives(409, status(409, "AlreadyExists", 'events "p.17" already exists')))
    at = datetime(2026, 11, 21, tzinfo=UTC)
    with pytest.raises(KubeError, match="already exists") as caught:
        actions.create_event("be", "p", "u", reason="evictPodFail", message="m", at=at, timeout_s=20)
    assert not caught.value.retry
    assert not isinstance(caught.value, KubeGone)


def test_an_event_may_be_normal_and_say_what_was_done(server: Server, actions: KubeActions) -> None:
    server.on(EVENTS, gives(201, {"kind": "Event"}))
    at = datetime(2026, 11, 26, tzinfo=UTC)
    actions.create_event(
        "be", "p", "u", reason="EvictCreated", message="m", at=at, timeout_s=20, kind="Normal", action="Evicting"
    )
    event = json.loads(server.requests[0].body)
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "EvictCreated", "Evicting")
