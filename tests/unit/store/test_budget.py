"""The minute's evictions from one agent to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.state.decision_memory import Budget
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import MINUTE_NS, PastEviction
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.budget import KeptBudget
from tests.support.values.builders import frame, plan_of, pod

SPENT = PastEviction(at_ns=1000, uid="u1", namespace="spark", workload="spark/Job/a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evictions.json"


def interrupted(decided_ns: int, *outcomes: Outcome) -> AuditRecord:
    plan = plan_of(frame([pod("hog", anon=300), pod("calm", anon=10)], used=900))
    line = OpenPlan(plan, node="n1", dry_run=False, seen_ns=None, decided_ns=decided_ns, wall_s=0.0)
    for outcome in outcomes:
        line.add_outcome(outcome)
    return line.record()


def outcome(result: Result) -> Outcome:
    return Outcome("uid-spark-hog", "spark", "hog", "api", result, "why", 2000, sent_ns=2001)


def test_what_was_spent_counts_for_the_next_one_as_long_as_its_minute_lasts(path: Path) -> None:
    KeptBudget(path).keep(Budget((SPENT,)))
    assert KeptBudget(path, now_ns=2000).budget == Budget((SPENT,))
    assert KeptBudget(path, now_ns=2000).budget.left(2000, 1) == 0
    assert KeptBudget(path, now_ns=1000 + MINUTE_NS).budget == Budget()


def test_a_pod_that_a_killed_agent_may_have_evicted_counts_once(path: Path) -> None:
    record = interrupted(2000)
    reported = KeptBudget(path, [record], 3000).budget.evictions
    assert [(each.at_ns, each.uid, each.namespace) for each in reported] == [(2000, "uid-spark-hog", "spark")]
    KeptBudget(path).keep(Budget(reported))
    assert KeptBudget(path, [record], 3000).budget.evictions == reported


@pytest.mark.parametrize(
    ("result", "spent"), [(Result.SENT, 1), (Result.DONE, 1), (Result.REFUSED, 0), (Result.GONE, 0)]
)
def test_who_was_refused_does_not_count(path: Path, result: Result, spent: int) -> None:
    assert len(KeptBudget(path, [interrupted(2000, outcome(result))], 3000).budget.evictions) == spent


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff", b'{"evictions": [1]}', b'{"evictions": [{"at_ns": -1}]}', b'{"later": ' * 20_000],
    ids=["empty", "no text", "a number", "negative", "nested deeply"],
)
def test_what_cannot_be_read_is_as_nothing(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    assert KeptBudget(path, now_ns=2000).budget == Budget()


def test_what_is_from_the_future_is_of_another_boot(path: Path) -> None:
    KeptBudget(path).keep(Budget((SPENT,)))
    assert KeptBudget(path, now_ns=1000).budget == Budget((SPENT,))
    assert KeptBudget(path, now_ns=999).budget == Budget()


def test_it_leaves_a_file_only_where_it_still_counts(path: Path) -> None:
    kept = KeptBudget(path)
    kept.keep(Budget((SPENT,)))
    kept.close(2000)
    assert path.exists()
    kept.close(1000 + MINUTE_NS)
    assert not path.exists()


def test_without_a_file_it_is_kept_for_this_agent_alone() -> None:
    kept = KeptBudget(None)
    kept.keep(Budget((SPENT,)))
    kept.close(1000 + MINUTE_NS)
    assert kept.budget == Budget((SPENT,))
    assert KeptBudget(None, now_ns=2000).budget == Budget()


def test_a_folder_that_is_full_or_gone_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptBudget(tmp_path / "gone" / "evictions.json")
    kept.keep(Budget((SPENT,)))
    assert kept.budget == Budget((SPENT,))
    assert "a start would bring a fresh budget" in caplog.text
