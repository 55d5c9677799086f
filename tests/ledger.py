"""What takes long to test, when it last passed, and what a merge is tested with: a function of the commit alone.

An item is a module with slow tests, a module of tests/node or tests/browser, or a virtual machine. Beside `make test` a
merge runs what it owns (modules that changed or import what changed, machines by `MACHINES`), the nearest first until
their seconds are spent, and the items whose turn it is: each has one turn of `TURNS`, by which its ledger counts
merges. So each item runs at least once in so many merges. Turns take about as long as each other; `--spread` sees to it
where items take longer than they did. No clock decides, and what is not run is named.

`python -m tests.ledger` prints the items, those that never passed first; `--select` what this commit is tested with;
`--second-tries` what passed only when it was tried again. `--take`, once before a merge, takes the results of the runs
on this machine into tests/ledger.json, gives new items the emptiest turn, and counts one merge more: commit the file.
After a merge that was refused, `--take --again` counts none. A date fails nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tests import git, imports

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "ledger.json"
TURNS = 8
# What a merge owns at most: seconds of modules that run one after the other, and machines.
OWNED_S = 240.0
OWNED_MACHINES = 1
_UNKNOWN_S = {"machines": 250.0, "nodes": 400.0, "here": 30.0}  # by kind, of an item that has not run yet
_NEAR = 1  # imports between a test module and what it tests
# Where what changed lies → the machines on which it may behave differently, the most telling first.
MACHINES = {
    "bpf/": ("5.10 v2", "7 v2", "6.1 v2"),
    "koordebpf/kernel/bcc/": ("6.1 bcc",),
    "koordebpf/kernel/": ("5.10 v2", "7 v2"),
    "koordebpf/act/writer/": ("6.12 writes",),
    "koordebpf/collect/": ("6.1 v1", "6.12 v2"),
    "koordebpf/jobs/": ("6.1 v1", "6.12 v2"),
    "koordebpf/strategies/": ("6.1 v1", "6.12 v2"),
    "koordebpf/strategies/cpu_suppress/": ("6.12 writes",),
    "tests/vm/": ("6.1 v2",),
}
_MOST_RUNS = 200  # kept until they are taken


class Entry(msgspec.Struct):
    """Of one item: its turn, the seconds that it took, and the last commit at which it passed, with the day.

    `seconds`: of a machine those that it had a CPU, of a module those of its tests with their fixtures.
    `machine`: the virtual machine that it passed in, of a module of which this kernel skips every slow test.
    """

    turn: int
    seconds: float = 0.0
    commit: str | None = None
    day: str | None = None
    machine: str = ""


class SecondTry(msgspec.Struct):
    """Of a test that passed when it was tried again: how often, when last, and how it had failed then."""

    count: int
    commit: str
    day: str
    cause: str


class Ledger(msgspec.Struct):
    """What tests/ledger.json holds."""

    merges: int = 0
    items: dict[str, Entry] = {}
    second_tries: dict[str, SecondTry] = {}

    @property
    def turn(self) -> int:
        """The turn of this merge."""
        return self.merges % TURNS


class Run(msgspec.Struct):
    """One run of tests on this machine: seconds of the items that passed whole, and how what was tried twice failed.

    `in_machines`: the modules that passed in a virtual machine, with its title.
    """

    commit: str
    at: str
    passed: dict[str, float] = {}
    again: dict[str, str] = {}
    in_machines: dict[str, str] = {}


@dataclass(frozen=True)
class Selection:
    """The items that a merge runs, by why, and those that it leaves to other merges."""

    owned: tuple[str, ...]
    turn: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def all(self) -> frozenset[str]:
        """What runs."""
        return frozenset((*self.owned, *self.turn, *self.new))


def select(ledger: Ledger, items: Iterable[str], owned: Mapping[str, int]) -> Selection:
    """Return what a merge runs.

    Args:
        ledger: as committed.
        items: all there are.
        owned: the items that the merge owns, with how near they are: the lowest first.
    """
    known = sorted(items)
    new = tuple(item for item in known if item not in ledger.items)
    turn = tuple(item for item in known if item in ledger.items and ledger.items[item].turn == ledger.turn)
    left_s, left_machines, mine = OWNED_S, OWNED_MACHINES, list[str]()
    for item in sorted((item for item in owned if item in ledger.items), key=lambda item: (owned[item], item)):
        if item in turn:
            continue
        if is_machine(item):
            fits, left_machines = left_machines > 0, left_machines - 1
        else:
            fits = (seconds := _seconds(ledger, item)) <= left_s
            left_s -= seconds if fits else 0
        mine += [item] if fits else []
    runs = {*mine, *turn, *new}
    return Selection(tuple(mine), turn, new, tuple(item for item in known if item not in runs))


def longest_first(ledger: Ledger, items: Iterable[str]) -> list[str]:
    """Return items as they fill CPUs best: the one that took longest first."""
    return sorted(items, key=lambda item: (-_seconds(ledger, item), item))


def _seconds(ledger: Ledger, item: str) -> float:
    return ledger.items[item].seconds if item in ledger.items else _UNKNOWN_S[_kind(item)]


def is_machine(item: str) -> bool:
    """Tell whether an item is a virtual machine, by its title, or else a module, by its path."""
    return not item.startswith("tests/")


def owned_by(paths: Iterable[str], graph: imports.Graph) -> dict[str, int]:
    """Return the items that these changed paths own: the title of a machine or the path of a test module → how near."""
    changed = sorted(paths)
    near = {path: far for path, far in imports.importers(graph, changed).items() if far <= _NEAR}
    for path in changed:
        for folder, machines in MACHINES.items():
            if path.startswith(folder):
                near |= {title: min(at, near.get(title, at)) for at, title in enumerate(machines)}
    return near


def taken(ledger: Ledger, items: Iterable[str], runs: Sequence[Run]) -> Ledger:
    """Return the ledger with the results of runs, without items that are gone, with turns for new ones, a merge on."""
    found = {item: ledger.items[item] for item in sorted(items) if item in ledger.items}
    seconds = {item: _UNKNOWN_S[_kind(item)] for item in set(items) - found.keys()}
    seconds |= {item: run_s for run in runs for item, run_s in run.passed.items() if item in seconds}
    for item in sorted(seconds, key=lambda item: (-seconds[item], item)):
        found[item] = Entry(_emptiest(found, _kind(item)), seconds[item])
    for run in sorted(runs, key=lambda run: run.at):
        for item, run_s in run.passed.items():
            if item in found:
                found[item] = Entry(found[item].turn, round(run_s, 1), run.commit, run.at[:10])
        for item, machine in run.in_machines.items():
            if item in found and (found[item].commit is None or found[item].machine):
                found[item] = Entry(found[item].turn, 0.0, run.commit, run.at[:10], machine)
    return Ledger(ledger.merges + 1, dict(sorted(found.items())), tried_again(ledger, runs))


def tried_again(ledger: Ledger, runs: Sequence[Run]) -> dict[str, SecondTry]:
    """Return what passed only when it was tried again, in a ledger and in runs that it has not."""
    tries = dict(ledger.second_tries)
    for run in sorted(runs, key=lambda run: run.at):
        for test, cause in run.again.items():
            count = tries[test].count if test in tries else 0
            tries[test] = SecondTry(count + 1, run.commit, run.at[:10], cause)
    return dict(sorted(tries.items()))


# Machines, nodes in guests and what uses this machine run at the same time: of each, every turn has as many seconds.
def _kind(item: str) -> str:
    return "machines" if is_machine(item) else "nodes" if item.startswith("tests/node/") else "here"


def _emptiest(entries: Mapping[str, Entry], kind: str) -> int:
    sums = dict.fromkeys(range(TURNS), 0.0)
    for item, entry in entries.items():
        sums[entry.turn] += entry.seconds if _kind(item) == kind else 0
    return min(sums, key=lambda turn: (sums[turn], turn))


def spread(ledger: Ledger) -> Ledger:
    """Return the ledger with turns given again, by the seconds that are known now."""
    found: dict[str, Entry] = {}
    for item in longest_first(ledger, ledger.items):
        entry = ledger.items[item]
        found[item] = msgspec.structs.replace(entry, turn=_emptiest(found, _kind(item)))
    return Ledger(ledger.merges, dict(sorted(found.items())), ledger.second_tries)


def items() -> list[str]:
    """Return every item of the checkout."""
    from tests.vm.matrix import MATRIX

    modules = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if _takes_long(path)]
    return [*(path.relative_to(ROOT).as_posix() for path in modules), *(variant.title for variant in MATRIX)]


def _takes_long(path: Path) -> bool:
    return path.relative_to(ROOT).parts[1] in ("node", "browser") or "mark.slow" in path.read_text()


def read() -> Ledger:
    """Return what is committed."""
    return msgspec.json.decode(FILE.read_bytes(), type=Ledger) if FILE.exists() else Ledger()


def write(ledger: Ledger) -> None:
    """Write it: a line an item, for git."""
    FILE.write_text(json.dumps(msgspec.to_builtins(ledger), indent=1, ensure_ascii=False) + "\n")


def changed() -> list[str]:
    """Return what differs from the last merge but this one; where git has no history, nothing.

    What changes the ledger and counts no merge is none.
    """
    merges = git.lines("log", "--format=%H", "-2", '-G"merges":', "--", FILE.relative_to(ROOT).as_posix())
    return git.changed_since(merges[-1], "HEAD") if len(merges) > 1 else []


def selection() -> Selection:
    """Return what this commit is tested with beside `make test`."""
    paths = changed()
    gone = {path: "" for path in paths if path.endswith(".py")}
    return select(read(), items(), owned_by(paths, imports.graph(gone | imports.sources())))


def never_passed() -> list[str]:
    """Return the items that passed neither by the ledger nor in the runs that it has not."""
    known = taken(read(), items(), recorded())
    return [item for item, entry in known.items.items() if entry.commit is None]


def runs_file() -> Path:
    """Return where the runs are until they are taken."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koordebpf" / "runs.jsonl"


def print_selection(chosen: Selection, ledger: Ledger) -> None:
    """Print what runs, why, and what does not."""
    print(f"merge {ledger.merges}, turn {ledger.turn + 1} of {TURNS}")
    for why, names in (("owned by what changed", chosen.owned), ("in turn", chosen.turn), ("new", chosen.new)):
        seconds = sum(_seconds(ledger, name) for name in names)
        print(f"{why}: {len(names)}, {seconds:.0f} s")
        print(*(f"  {name}" for name in names), sep="\n", end="\n" if names else "")
    print(f"left to the next {TURNS - 1} merges: {len(chosen.left)}")


def print_items(ledger: Ledger, names: Iterable[str]) -> None:
    """Print a row an item, those that never passed first, then the oldest."""
    entries = {name: ledger.items.get(name, Entry(turn=0)) for name in names}
    for name, entry in sorted(entries.items(), key=lambda each: (each[1].day or "", each[0])):
        place = f", in {entry.machine}" if entry.machine else ""
        print(f"{entry.day or 'never':10}  {(entry.commit or '')[:8]:8}  {entry.seconds:6.0f} s  {name}{place}")
    print(f"{len(entries)} items, {sum(entry.day is None for entry in entries.values())} never passed")


def print_second_tries(tries: Mapping[str, SecondTry]) -> None:
    """Print each test that passed only when it was tried again, the most often first, with the last cause."""
    print(f"passed only when tried again: {len(tries)} tests")
    for name, each in sorted(tries.items(), key=lambda found: (-found[1].count, found[0])):
        print(f"  {each.count} × {name}, last {each.day} at {each.commit}: {each.cause or 'no cause is known'}")


def main(arguments: list[str]) -> int:
    """Print what is asked for, or take results."""
    parser = argparse.ArgumentParser(prog="python -m tests.ledger", description=__doc__.splitlines()[0])
    parser.add_argument("--select", action="store_true", help="print what this commit is tested with")
    parser.add_argument("--take", action="store_true", help="take the results of runs on this machine, count a merge")
    parser.add_argument("--again", action="store_true", help="with --take: the merge before was refused, count none")
    parser.add_argument("--spread", action="store_true", help="give every item another turn, by what each takes")
    parser.add_argument("--second-tries", action="store_true", help="print what passed only when it was tried again")
    asked = parser.parse_args(arguments)
    if asked.again and not asked.take:
        parser.error("--again is for --take")
    if asked.second_tries:
        print_second_tries(tried_again(read(), recorded()))
    elif asked.take:
        runs = recorded()
        ledger = taken(read(), items(), runs)
        if asked.again:
            ledger.merges -= 1
        write(ledger)
        runs_file().unlink(missing_ok=True)
        print(f"took {len(runs)} runs; commit {FILE.relative_to(ROOT)}")
    elif asked.spread:
        write(spread(read()))
        print(f"commit {FILE.relative_to(ROOT)}")
    elif asked.select:
        print_selection(selection(), read())
    else:
        print_items(read(), items())
    return 0


def second_tries(unsteady: Mapping[str, str]) -> list[str]:
    """Return a line for each test that passed when it was tried again, with its cause, and how often that happened."""
    known = tried_again(read(), recorded())
    lines = []
    for name, cause in unsteady.items():
        count = known[name].count if name in known else 1
        lines.append(f"failed once, passed when tried again: {name}, {count} × so far: {cause or 'no cause is known'}")
    return lines


def recorded() -> list[Run]:
    """Return the runs on this machine that no ledger has taken; a line that was cut is passed over."""
    try:
        lines = runs_file().read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Run))
        except msgspec.MsgspecError:
            continue
    return found


def record(passed: Mapping[str, float], again: Mapping[str, str], in_machines: Mapping[str, str] | None = None) -> None:
    """Add a run of this checkout to those that wait to be taken.

    Raises:  OSError: the file cannot be written.
    """
    (commit, *_) = [*git.lines("rev-parse", "--short", "HEAD"), ""]
    run: dict[str, Any] = {"commit": commit, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    path = runs_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        *(path.read_text().splitlines() if path.exists() else []),
        json.dumps(run | {"passed": passed, "again": again, "in_machines": in_machines or {}}),
    ]
    path.write_text("\n".join(lines[-_MOST_RUNS:]) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
