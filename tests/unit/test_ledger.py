"""What a merge is tested with: everything within eight merges, what changed at once, by the commit alone."""

from __future__ import annotations

import pytest

from tests import imports, ledger
from tests.ledger import TURNS, Entry, Ledger, Run, SecondTry, select, taken

MODULES = [f"tests/host/test_{number:02}.py" for number in range(30)]
MACHINES = [f"6.{number} v2" for number in range(11)]
ITEMS = [*MODULES, *MACHINES]


@pytest.fixture
def full() -> Ledger:
    seconds = {item: 10.0 + number for number, item in enumerate(ITEMS)}
    return taken(Ledger(), ITEMS, [Run("abc", "2026-11-28T10:00:00+00:00", seconds)])


def test_every_item_runs_within_eight_merges(full):
    found = full
    ran = set[str]()
    for _ in range(TURNS):
        ran |= select(found, ITEMS, {}).all
        found = taken(found, ITEMS, [])
    assert ran == set(ITEMS)


def test_also_those_that_come_and_go_between(full):
    found, added = full, "tests/host/test_new.py"
    left = [item for item in ITEMS if item != MODULES[3]]
    ran = set[str]()
    for merge in range(TURNS):
        now = left if merge < 2 else [*left, added]
        ran |= select(found, now, {}).all
        found = taken(found, now, [])
    assert ran == {*left, added}
    assert MODULES[3] not in found.items


def test_turns_take_about_as_long_as_each_other(full):
    for names in (MODULES, MACHINES):
        sums = [sum(full.items[name].seconds for name in names if full.items[name].turn == at) for at in range(TURNS)]
        assert max(sums) - min(sums) <= max(full.items[name].seconds for name in names)


def test_given_again_they_do_so_for_each_kind(full):
    nodes = [f"tests/node/test_{number:02}.py" for number in range(14)]
    for names in (MODULES, MACHINES, nodes):
        full.items |= {name: Entry(turn=0, seconds=20.0 + 7 * at) for at, name in enumerate(names)}
    found = ledger.spread(full)
    assert found.items.keys() == full.items.keys()
    for names in (MODULES, MACHINES, nodes):
        sums = [sum(found.items[name].seconds for name in names if found.items[name].turn == at) for at in range(TURNS)]
        assert max(sums) - min(sums) <= max(found.items[name].seconds for name in names)
    assert ledger.spread(found) == found


def test_the_same_commit_is_tested_with_the_same(full):
    owned = {MODULES[9]: 1, MACHINES[0]: 0}
    assert select(full, ITEMS, owned) == select(full, reversed(ITEMS), dict(reversed(owned.items())))


def test_what_changed_runs_at_once_the_nearest_first_until_its_seconds_are_spent(full):
    slow = {name: Entry(turn=1, seconds=110) for name in MODULES[:3]}
    found = Ledger(0, {**full.items, **slow, **{name: Entry(turn=1) for name in MACHINES}})
    owned = {MODULES[0]: 1, MODULES[1]: 0, MODULES[2]: 0, **dict.fromkeys(MACHINES, 0)}
    chosen = select(found, ITEMS, owned)
    assert {*MODULES[1:3]} == {name for name in chosen.owned if not ledger.is_machine(name)}
    assert sum(map(ledger.is_machine, chosen.owned)) == ledger.OWNED_MACHINES
    assert MODULES[0] in chosen.left


def test_machines_run_the_longest_first_however_they_are_given(full):
    assert ledger.longest_first(full, reversed(MACHINES)) == MACHINES[::-1]
    assert ledger.longest_first(full, [MODULES[0], MACHINES[0], "6.99 v2"]) == ["6.99 v2", MACHINES[0], MODULES[0]]


def test_what_is_new_runs_before_it_has_a_turn():
    chosen = select(Ledger(), ITEMS, {})
    assert set(chosen.new) == set(ITEMS) and not chosen.left


def test_a_module_that_this_kernel_skips_passes_where_a_machine_runs_it(full):
    here, elsewhere = MODULES[:2]
    entry = full.items[elsewhere]
    before = Ledger(0, {**full.items, elsewhere: Entry(entry.turn)})
    run = Run("new", "2026-11-30T10:00:00+00:00", in_machines={here: MACHINES[0], elsewhere: MACHINES[1]})
    found = taken(before, ITEMS, [run])
    assert found.items[elsewhere] == Entry(entry.turn, 0.0, "new", "2026-11-30", MACHINES[1])
    assert found.items[here] == full.items[here], "what machines run of it, too, is no more than that"
    again = Run("newer", "2026-12-01T10:00:00+00:00", in_machines={elsewhere: MACHINES[2]})
    assert taken(found, ITEMS, [again]).items[elsewhere].machine == MACHINES[2]


def test_a_result_is_taken_with_its_commit_and_a_failure_keeps_the_older_one(full):
    runs = [
        Run("old", "2026-11-29T10:00:00+00:00", {MODULES[0]: 5.0}),
        Run("new", "2026-11-30T10:00:00+00:00", {MODULES[1]: 7.25, "tests/host/test_gone.py": 1.0}),
    ]
    found = taken(full, ITEMS, list(reversed(runs)))
    turn = full.items[MODULES[0]].turn
    assert found.items[MODULES[0]] == Entry(turn, 5.0, "old", "2026-11-29")
    assert (found.items[MODULES[1]].seconds, found.items[MODULES[1]].commit) == (7.2, "new")
    assert found.items[MODULES[2]] == full.items[MODULES[2]]
    assert "tests/host/test_gone.py" not in found.items
    assert found.merges == full.merges + 1


def test_second_tries_are_counted_with_their_last_cause(full):
    runs = [Run("a", "2026-11-29", again={"host: x": "early"}), Run("b", "2026-11-30", again={"host: x": "late"})]
    assert taken(full, ITEMS, runs).second_tries == {"host: x": SecondTry(2, "b", "2026-11-30", "late")}


def test_what_owns_what():
    sources = {
        "koordebpf/act/writer/one.py": "",
        "koordebpf/act/two.py": "from koordebpf.act.writer import one\n",
        "tests/host/test_one.py": "from koordebpf.act.writer import one\n",
        "tests/host/test_two.py": "from koordebpf.act import two\n",
        "tests/host/test_three.py": "",
    }
    found = ledger.owned_by(["koordebpf/act/writer/one.py", "tests/host/test_three.py"], imports.graph(sources))
    assert found == {"tests/host/test_one.py": 1, "tests/host/test_three.py": 0, "6.12 writes": 0}
    assert next(iter(ledger.owned_by(["bpf/oom.bpf.c"], {}))) == "5.10 v2"


def test_owners_name_machines_that_there_are():
    from tests.vm.matrix import MATRIX

    titles = {variant.title for variant in MATRIX}
    assert {title for titles_of in ledger.MACHINES.values() for title in titles_of} <= titles


def test_runs_wait_until_they_are_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ledger.recorded() == []
    ledger.record({"6.1 v2": 300.0}, {})
    with ledger.runs_file().open("a") as file:
        file.write('{"commit": "cut off\n')
    ledger.record({}, {"host: x": "why"})
    assert [(run.passed, run.again) for run in ledger.recorded()] == [({"6.1 v2": 300.0}, {}), ({}, {"host: x": "why"})]


def test_it_is_read_as_it_was_written(tmp_path, monkeypatch, full):
    monkeypatch.setattr(ledger, "FILE", tmp_path / "ledger.json")
    assert ledger.read() == Ledger()
    ledger.write(full)
    assert ledger.read() == full


@pytest.mark.parametrize(("options", "merges"), [((), 2), (("--again",), 1)])
def test_results_are_taken_once_for_a_merge_that_was_refused(tmp_path, monkeypatch, full, options, merges):
    monkeypatch.setattr(ledger, "FILE", tmp_path / "ledger.json")
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "items", lambda: ITEMS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ledger.write(full)
    ledger.record({MODULES[0]: 7.0}, {})
    assert ledger.main(["--take", *options]) == 0
    found = ledger.read()
    assert (found.merges, found.items[MODULES[0]].seconds) == (merges, 7.0)
    assert ledger.recorded() == []


def test_again_is_for_taking_alone():
    with pytest.raises(SystemExit):
        ledger.main(["--again"])
