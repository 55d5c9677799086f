"""What plugins outside get of their candidates: PodDisruptionBudgets, and evictions of the last hours."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.kube.cache.objects import (
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.requests import PodTerms
from koordebpf.state.view import NodeView, PastEviction, PodView
from koordebpf.strategies.katalyst.requests import BUCKET_NS, KEPT_NS, Past, with_settled
from koordebpf.strategies.katalyst.rounds import RemoteCall, records_of, with_records
from koordebpf.strategies.katalyst.values import EvictionRecord, TopAsk
from koordebpf.units import NS_PER_S
from tests.support.values.builders import frame, supposed

WEB, WALL_S = "ns/ReplicaSet/web", 1_700_000_000.0
EMPTY = view_of_frame(frame([]))
START_NS = 100 * BUCKET_NS


def pod(name: str, app: str | None = "web", phase: str = "Running") -> PodView:
    labels = {"app": app} if app else {}
    terms = PodTerms(labels=labels, workload=f"ns/ReplicaSet/{app}" if app else None)
    return PodView(name, "ns", name, phase, False, "Burstable", "", 0, None, False, terms=terms)


def budget(name: str, app: str = "web", namespace: str = "ns", **status: int) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        ObjectMeta(name=name, namespace=namespace),
        PodDisruptionBudgetSpec(selector={"matchLabels": {"app": app}}),
        PodDisruptionBudgetStatus(**status),
    )


def view(*pods: PodView, after_ns: int = 0, **more: Any) -> NodeView:
    known: dict[str, Any] = {"podDisruptionBudgets": (), "wall_s": WALL_S + after_ns / NS_PER_S, **more}
    return supposed(EMPTY, pods=pods, now_ns=START_NS + after_ns, **known)


def past_of(*at_ns: int, workload: str | None = WEB) -> tuple[PastEviction, ...]:
    return tuple(PastEviction(START_NS + each, f"u{each}", "ns", workload) for each in at_ns)


def test_a_pod_has_the_numbers_of_its_budget_and_another_none() -> None:
    pdbs = (
        budget("web", disruptionsAllowed=1, currentHealthy=4, desiredHealthy=3, expectedPods=5),
        budget("elsewhere", namespace="other"),
    )
    pods = (pod("a"), pod("b", "db"), pod("bare", None))
    assert records_of(view(*pods, podDisruptionBudgets=pdbs), Past(), {"a", "b", "bare"}) == (
        EvictionRecord("a", True, (), 1, 4, 3, 5),
        EvictionRecord("b"),
        EvictionRecord("bare"),
    )


def test_of_two_budgets_none_allows_anything_as_the_api_server_refuses_such_a_pod() -> None:
    pdbs = (
        budget("one", disruptionsAllowed=2, currentHealthy=9),
        budget("two", disruptionsAllowed=1, currentHealthy=4),
    )
    (record,) = records_of(view(pod("a"), podDisruptionBudgets=pdbs), Past(), {"a"})
    assert (record.has_pdb, record.disruptions_allowed, record.current_healthy) == (True, 0, 4)


def test_what_is_not_known_of_budgets_is_no_record() -> None:
    assert records_of(view(pod("a"), podDisruptionBudgets=None), Past(), {"a"}) == ()
    seen = view(pod("a"), podDisruptionBudgets=None, after_ns=NS_PER_S, evictions=past_of(0))
    (record,) = records_of(seen, Past(), {"a"})
    assert (record.has_pdb, len(record.buckets)) == (False, 1)


def test_numbers_that_the_wire_cannot_have_are_bounded() -> None:
    pdbs = (budget("web", disruptionsAllowed=-3, currentHealthy=2**40, desiredHealthy=-1, expectedPods=2**31),)
    (record,) = records_of(view(pod("a"), podDisruptionBudgets=pdbs), Past(), {"a"})
    numbers = (record.disruptions_allowed, record.current_healthy, record.desired_healthy, record.expected_pods)
    assert numbers == (0, 2**31 - 1, 0, 2**31 - 1)


def test_evictions_of_the_workload_are_in_buckets_of_ten_minutes() -> None:
    past = Past()
    for at_s in range(0, 1300, 10):
        at_ns = at_s * NS_PER_S
        recent = [each for each in (0, 5, 700, 1290) if 0 <= at_s - each < 60]
        seen = view(pod("a"), after_ns=at_ns, evictions=past_of(*(each * NS_PER_S for each in recent)))
        past = with_settled(past, seen)
    (record,) = records_of(seen, past, {"a"})
    start_s = int(WALL_S)
    found = [(each.time_s - start_s, each.duration_s, each.count) for each in record.buckets]
    assert found == [(0, 600, 2), (600, 600, 1), (1200, 600, 1)]


def test_an_eviction_that_was_refused_is_not_counted() -> None:
    sent = view(pod("a"), after_ns=NS_PER_S, evictions=past_of(0))
    past = with_settled(Past(), sent)
    assert records_of(sent, past, {"a"})[0].buckets
    for at_s in (20, 45, 90):
        refused = view(pod("a"), after_ns=at_s * NS_PER_S)
        past = with_settled(past, refused)
    assert records_of(refused, past, {"a"})[0].buckets == ()


def test_what_is_older_than_two_hours_is_forgotten() -> None:
    past = with_settled(Past(), view(after_ns=50 * NS_PER_S, evictions=past_of(0)))
    assert past.counts
    assert with_settled(past, view(after_ns=KEPT_NS - 1)).counts
    assert with_settled(past, view(after_ns=KEPT_NS)).counts == ()


def test_an_eviction_is_counted_once_however_often_it_is_seen() -> None:
    past = Past()
    for at_s in range(41, 60):
        past = with_settled(past, view(after_ns=at_s * NS_PER_S, evictions=past_of(0)))
    assert [each.count for each in past.counts] == [1]


@pytest.mark.parametrize("more", [{"wall_s": None}, {"evictions": past_of(0, workload=None)}])
def test_without_the_time_or_a_workload_there_are_no_buckets(more: dict[str, Any]) -> None:
    (record,) = records_of(view(pod("a"), **{"evictions": past_of(0), **more}), Past(), {"a"})
    assert record.buckets == ()


def test_each_plugin_gets_the_records_of_its_own_candidates() -> None:
    asks = (TopAsk("p", "s", 1, ("a", "gone")), TopAsk("q", "s", 0, ("b",)))
    call = with_records(RemoteCall(1, ("a", "b"), asks), view(pod("a"), pod("b")), Past())
    assert call.asks is not None
    assert [[each.uid for each in ask.records] for ask in call.asks] == [["a"], ["b"]]
