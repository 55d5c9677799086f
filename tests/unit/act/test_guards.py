"""Every guard, closed and open on both sides of its line."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from koordebpf.policy.guards import GuardLimits, closed_guards, screen, victim_guard
from koordebpf.policy.plan import Candidate, Holding, Victim
from koordebpf.state.amount import MEMORY
from koordebpf.state.decision_memory import Budget
from koordebpf.state.guard_facts import ClosedGuard, GuardFacts
from koordebpf.state.view import PastEviction
from koordebpf.units import NS_PER_S

NOW = 1_000 * NS_PER_S
LIMITS = GuardLimits()


def facts(**changes: Any) -> GuardFacts:
    return GuardFacts(**{"now_ns": NOW, "source": "api", "pods_synced_ns": NOW, **changes})


def eviction(at_ns: int, uid: str = "u") -> PastEviction:
    return PastEviction(at_ns=at_ns, uid=uid, namespace="be")


def victim(name: str = "spark-1", namespace: str = "be", priority: int | None = 5000) -> Victim:
    candidate = Candidate(
        rank=1, uid=f"u-{name}", namespace=namespace, name=name, cgroup_id=1, priority=priority,
        holdings=(Holding(MEMORY, 1, 1),), koordinator_credit_bytes=1,
    )  # fmt: skip
    return Victim(candidate=candidate, reason="evicted", message="m")


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, []),
        ({"pods_synced_ns": None}, ["no_pod_view"]),
        ({"pods_synced_ns": NOW - 30 * NS_PER_S}, []),
        ({"pods_synced_ns": NOW - 30 * NS_PER_S - 1}, ["pods_stale"]),
        ({"pods_synced_ns": NOW - 31 * NS_PER_S, "source": "kubelet"}, ["pods_stale"]),
        ({"pods_synced_ns": 0, "source": "file"}, []),
        ({"pods_synced_ns": 0, "source": "file", "source_problem": "half written"}, ["source_unreadable"]),
        ({"records": 99, "lost_records": 1}, []),
        ({"records": 98, "lost_records": 2}, ["records_lost"]),
        ({"records": 0, "lost_records": 1}, ["records_lost"]),
        ({"clock_jump_ns": 5 * NS_PER_S}, []),
        ({"clock_jump_ns": 6 * NS_PER_S}, ["clock_jump"]),
        ({"clock_jump_ns": -6 * NS_PER_S}, ["clock_jump"]),
        ({"running_pods": 2, "running_pods_without_cgroup": 1}, []),
        ({"running_pods": 3, "running_pods_without_cgroup": 2}, ["node_disagrees"]),
        ({"running_pods": 0, "running_pods_without_cgroup": 0}, []),
        ({"node_problem": "/proc/meminfo: MemTotal is 0"}, ["node_implausible"]),
        ({"pods_synced_ns": None, "clock_jump_ns": 9 * NS_PER_S}, ["no_pod_view", "clock_jump"]),
    ],
)
def test_node_guards(changes: dict[str, Any], codes: list[str]) -> None:
    assert [guard.code for guard in closed_guards(facts(**changes), LIMITS)] == codes


def test_lost_records_are_those_of_the_window_in_which_they_count() -> None:
    (closed,) = closed_guards(facts(records=98, lost_records=2), LIMITS)
    assert closed.sentence == "2 of 100 kernel records lost within 10 s > 1%"


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (victim(), None),
        (victim(namespace="kube-system"), "protected_namespace"),
        (victim(priority=2_000_000_000), "system_critical"),
        (victim(priority=1_999_999_999), None),
        (victim(priority=None), None),
        (victim("me"), "own_pod"),
    ],
)
def test_pods_that_are_never_evicted(pod: Victim, code: str | None) -> None:
    guard = victim_guard(pod, own_pod_uid="u-me")
    assert (guard.code if guard else None) == code


def test_a_round_stops_at_its_limit_and_says_so() -> None:
    result = screen([victim(f"p{n}") for n in range(7)], (), Budget(), LIMITS, now_ns=NOW)
    assert len(result.allowed) == 5
    assert [guard.code for _, guard in result.held] == ["round_full"] * 2


def test_the_minutes_budget_is_spent_and_comes_back() -> None:
    budget = Budget()
    for n in range(8):
        budget = budget.spend(eviction(NOW + n))
    result = screen([victim(f"p{n}") for n in range(4)], (), budget, LIMITS, now_ns=NOW + 9)
    assert [v.candidate.name for v in result.allowed] == ["p0", "p1"]
    assert {guard.code for _, guard in result.held} == {"budget_spent"}
    assert budget.left(NOW + 61 * NS_PER_S, LIMITS.evictions_per_minute) == 10
    assert len(budget.spend(eviction(NOW + 61 * NS_PER_S)).evictions) == 1


def test_a_protected_pod_leaves_its_place_to_the_next() -> None:
    result = screen([victim("a", namespace="kube-system"), victim("b")], (), Budget(), LIMITS, now_ns=NOW)
    assert [v.candidate.name for v in result.allowed] == ["b"]


def test_a_protected_pod_is_called_protected_in_a_full_round_too() -> None:
    pods = [*(victim(f"p{n}") for n in range(5)), victim("dns", namespace="kube-system")]
    (held,) = screen(pods, (), Budget(), LIMITS, now_ns=NOW).held
    assert held[1].code == "protected_namespace"
    spent = Budget()
    for n in range(10):
        spent = spent.spend(eviction(NOW + n))
    (held,) = screen(pods[-1:], (), spent, LIMITS, now_ns=NOW + 11).held
    assert held[1].code == "protected_namespace"


def test_a_closed_node_guard_holds_everyone() -> None:
    guard = ClosedGuard("pods_stale", "old")
    result = screen([victim("a"), victim("b")], (guard,), Budget(), LIMITS, now_ns=NOW)
    assert result.allowed == ()
    assert [held for _, held in result.held] == [guard, guard]


def test_a_refused_eviction_gives_its_budget_back() -> None:
    limits = GuardLimits(evictions_per_minute=2)
    first, second, later = eviction(5, "a"), eviction(5, "b"), eviction(7, "c")
    budget = Budget().spend(first).spend(second).spend(later)
    assert budget.left(8, limits.evictions_per_minute) == 0
    assert budget.refund("a", 5) == Budget((second, later))
    assert budget.refund("a", 7) == budget


@pytest.mark.parametrize(
    ("useless", "ago_s", "limits", "is_closed"),
    [
        (2, 0, LIMITS, False),
        (3, 0, LIMITS, True),
        (3, 59, LIMITS, True),
        (3, 60, LIMITS, False),
        (4, 61, LIMITS, False),
        (1, 1, GuardLimits(useless_after=1), True),
        (0, 1, GuardLimits(useless_after=0), False),
        (99, 1, GuardLimits(useless_after=None), False),
    ],
)
def test_evictions_that_do_not_help_stop_for_a_while(
    useless: int, ago_s: int, limits: GuardLimits, is_closed: bool
) -> None:
    guards = closed_guards(facts(useless_evictions=useless, useless_ns=NOW - ago_s * NS_PER_S), limits)
    assert [guard.code for guard in guards] == ["evictions_useless"] * is_closed
    if is_closed:
        assert f"none for another {limits.useless_pause_ns // NS_PER_S - ago_s} s" in guards[0].sentence


def test_no_setting_reaches_the_last_look_before_the_executor() -> None:
    assert list(inspect.signature(victim_guard).parameters) == ["victim", "own_pod_uid"]
