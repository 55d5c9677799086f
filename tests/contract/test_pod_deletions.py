"""Deletions of pods against a server that refuses in the ways a real one does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.api import DeletionExecutor
from koordebpf.errors import KubeBusy, KubeDenied, KubeGone
from koordebpf.kube.clients.deletions import PodDeletions
from koordebpf.kube.http.transport import open_cluster
from koordebpf.policy.plan import Candidate, Victim
from koordebpf.state.outcome import Outcome, Result
from tests.contract.apiserver import Server, gives, status, until

PATH = "/api/v1/namespaces/be/pods/spark-1"


@pytest.fixture
def deletions(kubeconfig: Path) -> Iterator[PodDeletions]:
    deletions = PodDeletions(open_cluster(kubeconfig))
    yield deletions
    deletions.close()


def delete(deletions: PodDeletions, grace_s: int | None = None) -> None:
    deletions.delete("be", "spark-1", "uid-1", timeout_s=20.0, grace_s=grace_s)


@pytest.mark.parametrize(
    ("grace_s", "more"), [(None, {}), (0, {"gracePeriodSeconds": 0}), (7, {"gracePeriodSeconds": 7})]
)
def test_a_deletion_carries_the_uid_and_the_grace_period(
    grace_s: int | None, more: dict[str, int], server: Server, deletions: PodDeletions
) -> None:
    server.on(PATH, gives(200, {"kind": "Pod"}))
    delete(deletions, grace_s)
    (request,) = server.requests
    assert request.method == "DELETE"
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == {
        "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-1"}, **more
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (404, 'pods "spark-1" not found'),
        (409, "Precondition failed: UID in precondition: uid-1, UID in object meta: uid-2"),
    ],
)
def test_a_pod_that_is_gone_or_another_one_by_now(
    code: int, message: str, server: Server, deletions: PodDeletions
) -> None:
    server.on(PATH, gives(code, status(code, "Whatever", message)))
    with pytest.raises(KubeGone):
        delete(deletions)


def test_the_right_that_is_missing_is_named(server: Server, deletions: PodDeletions) -> None:
    server.on(PATH, gives(403, status(403, "Forbidden", "forbidden")))
    with pytest.raises(KubeDenied, match=r"needs RBAC verb delete on pods\)"):
        delete(deletions)


@pytest.mark.usefixtures("no_jitter")
def test_a_busy_server_says_when_to_come_back(server: Server, deletions: PodDeletions) -> None:
    server.on(PATH, gives(429, {}, **{"Retry-After": "7"}))
    with pytest.raises(KubeBusy) as busy:
        delete(deletions)
    assert busy.value.retry_after_s == 7


def outcome_of(deletions: PodDeletions, victim: Victim) -> Outcome:
    outcomes = OutcomeQueue(lambda: None)
    executor = DeletionExecutor(deletions, outcomes, enforce=True)
    try:
        assert executor.submit(victim, 1).result is Result.SENT
        (outcome,) = until(outcomes.drain, "the outcome")
        return outcome
    finally:
        executor.close()


VICTIM = Victim(Candidate(1, "uid-1", "be", "spark-1", 1, 5000, ()), "evicted", "m", grace_s=7, killer="delete")


def test_the_executor_deletes_with_the_victims_grace_period(server: Server, deletions: PodDeletions) -> None:
    server.on(PATH, gives(200, {"kind": "Pod"}))
    outcome = outcome_of(deletions, VICTIM)
    assert (outcome.executor, outcome.result) == ("delete", Result.DONE)
    assert json.loads(server.requests[0].body)["gracePeriodSeconds"] == 7


def test_a_refusal_is_not_sent_again_before_its_time(server: Server, deletions: PodDeletions) -> None:
    server.on(PATH, gives(403, status(403, "Forbidden", "forbidden")))
    outcome = outcome_of(deletions, VICTIM)
    assert outcome.result is Result.REFUSED
    assert outcome.detail.endswith("allow delete on pods")
    assert outcome.retry_at_ns is not None
    assert len(server.requests) == 1
