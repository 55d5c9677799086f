"""Files that change all the time have a line a minute; what came before, and what became of it, is not lost."""

from __future__ import annotations

import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.store import write_budget as module
from koordebpf.store.sink import FileChanged
from koordebpf.store.write_budget import WriteBudget
from koordebpf.units import NS_PER_S

BEGIN = 7_000 * NS_PER_S


def changed(second: float, path: str = "/pod/memory.high", **more: object) -> FileChanged:
    now_ns = BEGIN + int(second * NS_PER_S)
    fields = {"old": "0", "new": str(second), "result": WriteResult.WRITTEN, "reason": "why", "now_ns": now_ns} | more
    return FileChanged(FileChange(path, **fields), second)  # type: ignore[arg-type]


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> WriteBudget:
    """Return one in which files share nothing."""
    monkeypatch.setattr(module, "_MORE_AT_ONCE", 0)
    return WriteBudget()


def recorded(budget: WriteBudget, *events: FileChanged) -> list[FileChanged]:
    found: list[FileChanged] = []
    for event in events:
        found += budget.add(event)
        found += budget.due(event.change.now_ns)
    return found


def test_five_changes_are_recorded_at_once_and_then_one_a_minute_with_the_last_value(budget: WriteBudget) -> None:
    every = [changed(second) for second in range(601)]
    found = recorded(budget, *every)
    assert found[:5] == every[:5]
    assert len(found) == 5 + 10
    assert [round(each.wall_s) for each in found[5:]] == [60 * minute for minute in range(1, 11)]
    assert found[6].change.new == "120"
    assert found[6].change.reason == "why (after 59 changes of the file that are left out)"
    # each is recorded, or one of those that a line counts
    left_out = [int(each.change.reason.split()[2]) for each in found[5:]]
    assert 5 + sum(left_out) + 10 == len(every)


def test_one_that_rests_after_its_last_change_is_recorded_as_it_is_now(budget: WriteBudget) -> None:
    found = recorded(budget, *(changed(second) for second in range(20)))
    assert len(found) == 5
    assert budget.due(BEGIN + 30 * NS_PER_S) == []
    (last,) = budget.due(BEGIN + 61 * NS_PER_S)
    assert (last.change.new, last.wall_s) == ("19", 19)
    assert budget.due(BEGIN + 200 * NS_PER_S) == []


def test_a_single_one_that_was_left_out_comes_as_it_was(budget: WriteBudget) -> None:
    every = [changed(second) for second in range(6)]
    recorded(budget, *every)
    assert budget.due(BEGIN + 61 * NS_PER_S) == every[5:]


def test_that_one_was_refused_or_set_right_is_hidden_by_no_number_of_others(budget: WriteBudget) -> None:
    recorded(budget, *(changed(second) for second in range(60)))
    for more in ({"result": WriteResult.REFUSED}, {"is_correction": True}, {"path": "/other/memory.high"}):
        event = changed(60, **more)  # type: ignore[arg-type]
        assert budget.add(event) == [event]


def test_the_end_of_the_agent_records_what_each_file_has(budget: WriteBudget) -> None:
    recorded(budget, *(changed(second / 10) for second in range(20)))
    (last,) = budget.rest()
    assert last.change.new == "1.9"
    assert budget.rest() == []


def test_after_five_minutes_a_file_has_all_its_changes_again(budget: WriteBudget) -> None:
    recorded(budget, *(changed(second) for second in range(5)))
    assert len(recorded(budget, *(changed(180 + second) for second in range(5)))) == 3
    assert budget.due(BEGIN + 500 * NS_PER_S)
    assert budget.due(BEGIN + 900 * NS_PER_S) == []
    assert budget._files == {}  # nothing is kept of it
    assert len(recorded(budget, *(changed(900 + second) for second in range(9)))) == 5


def test_files_that_come_without_end_are_not_kept(budget: WriteBudget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_FILES", 3)
    recorded(budget, *(changed(0, path="/0") for _ in range(6)))
    found = [each for number in range(1, 4) for each in budget.add(changed(1, path=f"/{number}"))]
    assert [each.change.path for each in found] == ["/1", "/2", "/0", "/3"]  # what was left out of the oldest one
    assert len(budget._files) == 3


def test_two_a_second_are_shared_by_all_files() -> None:
    budget = WriteBudget()
    # GIVEN a quota that follows the load
    every = [changed(second, "/besteffort/cpu.max") for second in range(600)]
    assert recorded(budget, *every) == every
    # WHEN the files of a tenant change as often
    found = [
        each
        for second in range(600, 1200)
        for number in range(20)
        for each in recorded(budget, changed(second, f"/pod{number}/memory.high"))
    ]
    # THEN they have their own, and what all share
    assert len(found) <= 20 * (5 + 10) + 120 + 600 * 2
    assert {each.change.path for each in budget.rest()} <= {each.change.path for each in found}
