"""Change the package at random, one place at a time, and see whether a test notices: `make mutate`.

Each mutant is a copy of the repository with one comparison, condition, bound, order or operator changed (mutant.py). It
runs against the quick tests that import its module directly, then against all others that reach it by imports, of the
folders that need neither root nor a cluster. What survives those runs against the quick tests of the live kernel, one
mutant after the other, where there is root. `python -m tests.mutate [COUNT] [--seed N]` lists the survivors, and what
was killed by room. `--of FILE…`, `--changed` and `--room NAME…` mutate only these.

A test that takes longer than four times the slowest of a run without any mutant is a timeout. Its mutant is tried
once more, alone, with four times that; where it takes longer again, it hangs: neither killed nor survived. What fails
without any mutant is left out, and named. Mutants of tests/mutants.txt change nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests import changed, imports, needs
from tests.mutant import ROOT, Mutant, mutants_of

KNOWN = Path(__file__).with_name("mutants.txt")
FOLDERS = (*needs.PURE, "contract")
KILLED, SURVIVED, HANGS, TIMEOUT = "killed", "survived", "hangs", "timeout"
LIVE = "host"  # the folder of tests that need root and the live kernel: agents and demos of other processes
LEAST_PERCENT, LEAST_OF_ROOM = 90, 80
_A_FILE = 3  # at most so many of one file: the large ones would take all
_OF_ROOM = 4  # at least so many of each room, where it has as many
_LEAST_TEST_S = 20  # the limit of a test, where four times the slowest is less
_START_S = 60  # of Python and of pytest, on a busy machine
_TIMES = 4
_MANY = 4  # modules of contract, which wait two thirds of their time: then in two processes
_running: set[subprocess.Popen[bytes]] = set()


def room_of(path: str) -> str:
    """Return the folder of the package that a module is in; the package itself for one at its top."""
    _, *folders, _ = path.split("/")
    return folders[0] if folders else "koordebpf"


def chosen(count: int, seed: int, paths: Iterable[str]) -> list[Mutant]:
    """Return so many mutants of these modules: of each room by its size, and of each at least some."""
    chance = random.Random(seed)
    rooms: dict[str, list[str]] = defaultdict(list)
    for path in sorted(paths):
        rooms[room_of(path)].append(path)
    sizes = {path: (ROOT / path).stat().st_size for of_room in rooms.values() for path in of_room}
    all_of_them = sum(sizes.values())
    found: list[Mutant] = []
    for _, of_room in sorted(rooms.items()):
        share = round(count * sum(sizes[path] for path in of_room) / max(all_of_them, 1))
        found += _of_room(chance, {path: sizes[path] for path in of_room}, max(share, _OF_ROOM))
    return found


def _of_room(chance: random.Random, sizes: Mapping[str, int], count: int) -> list[Mutant]:
    left: dict[str, list[Mutant]] = {}
    found: list[Mutant] = []
    sizes = {path: size for path, size in sizes.items() if size}
    while sizes and len(found) < count:
        (path,) = chance.choices(list(sizes), list(sizes.values()))
        if path not in left:
            every = [each for each in mutants_of(ROOT / path) if each.key not in known()]
            left[path] = chance.sample(every, min(_A_FILE, len(every)))
        if left[path]:
            found.append(left[path].pop())
        if not left[path]:
            sizes = {each: size for each, size in sizes.items() if each != path}
    return found


@functools.cache
def known() -> frozenset[str]:
    """Return the keys of the mutants that change nothing a caller can see."""
    lines = KNOWN.read_text().splitlines()
    return frozenset(line.partition("  # ")[0] for line in lines if line and not line.startswith("#"))


class Tests:
    """The quick test modules that reach a module, and how long they take without any mutant."""

    def __init__(self, graph: imports.Graph, paths: Collection[str]) -> None:
        self._distances = {path: imports.importers(graph, [path]) for path in paths}
        self.modules = sorted({test for found in self._distances.values() for test in found if _is_quick(test)})
        self.test_s = float(_LEAST_TEST_S)
        self._took_s: dict[str, float] = {}

    def stages(self, path: str) -> list[list[str]]:
        """Return what runs one after the other, the nearest first, those of contract behind the others."""
        found = {test: far for test, far in self._distances[path].items() if test in self.modules}
        nearest = min(found.values(), default=0)
        stages: dict[tuple[bool, bool], list[str]] = defaultdict(list)
        for test, far in sorted(found.items(), key=lambda each: (each[1], each[0])):
            stages[far > nearest, _is_contract(test)].append(test)
        return [stages[which] for which in sorted(stages)]

    def limit_s(self, modules: Iterable[str]) -> float:
        """Return how long a run of these may take."""
        return _START_S + _TIMES * sum(self._took_s.get(each, 0) for each in modules)

    def measure(self, copies: Sequence[Path]) -> list[str]:
        """Run all of them without a mutant; leave out those that fail, and return them."""
        parts = [[each for each in self.modules if _is_contract(each) == contract] for contract in (False, True)]
        with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
            reports = list(pool.map(lambda part, copy: _report(part, copy), parts, copies))
        failed: set[str] = set()
        for name, seconds, is_failed in (case for report in reports for case in report):
            self._took_s[name] = self._took_s.get(name, 0) + seconds
            self.test_s = max(self.test_s, _TIMES * seconds)
            failed |= {name} if is_failed else set()
        self.modules = [each for each in self.modules if each in self._took_s and each not in failed]
        return sorted(failed)


def _is_quick(test: str) -> bool:
    return test.split("/")[1] in FOLDERS


def _is_contract(test: str) -> bool:
    return test.startswith("tests/contract/")


# (module, seconds, whether it failed) of each test
def _report(modules: Sequence[str], copy: Path) -> list[tuple[str, float, bool]]:
    if not modules:
        return []
    path = copy / "report.xml"
    ended(_command(modules, [f"--junitxml={path}", "--timeout=300"], stops=False), copy, 1800)
    cases = ET.parse(path).iter("testcase")
    names = {each.removesuffix(".py").replace("/", "."): each for each in modules}
    found = []
    for case in cases:
        class_name = case.get("classname", "") or case.get("name", "")  # of a module that cannot be collected
        name = next((at for module, at in names.items() if f"{class_name}.".startswith(f"{module}.")), None)
        bad = case.find("failure") is not None or case.find("error") is not None
        found += [(name, float(case.get("time", 0)), bad)] if name else []
    return found


def _command(modules: Sequence[str], options: Sequence[str], *, stops: bool = True) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *options]
    command += ["-x"] if stops else []
    if _is_contract(modules[0]):  # a server that was slow once has found no mutant
        command.append("@tests/again.txt")
        command += ["--numprocesses=2", "--dist=loadfile"] if len(modules) >= _MANY else []
    return ["nice", "-n", "10", *command, *modules]


def _end(folder: str) -> NoReturn:
    for process in list(_running):
        os.killpg(process.pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(128 + signal.SIGTERM)  # threads wait for more


def ended(command: Sequence[str], copy: Path, limit_s: float) -> tuple[int, str] | None:
    """Run a command in a copy; return its exit code and what it printed, None: it did not end in time."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(copy / "bytecode"), "PYTHONPATH": str(copy)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        _running.add(process)
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            _running.discard(process)
    return process.returncode, output.decode(errors="replace")


def judged(mutant: Mutant, copy: Path, tests: Tests, times: int = 1) -> str:
    """Return what became of a mutant in a copy: killed, survived, or a timeout."""
    with mutated(mutant, copy):
        for modules in tests.stages(mutant.path):
            command = _command(modules, [f"--timeout={times * tests.test_s:.0f}"])
            answer = ended(command, copy, times * tests.limit_s(modules))
            if answer is None or (answer[0] and "Timeout (>" in answer[1]):
                return TIMEOUT
            if answer[0] not in (0, 5):  # pytest.ExitCode.NO_TESTS_COLLECTED: all of them are slow
                return KILLED
        return SURVIVED


class LiveTests:
    """The quick tests of the live kernel, as far as they pass without any mutant."""

    def __init__(self, copy: Path) -> None:
        modules = sorted(path.relative_to(copy).as_posix() for path in (copy / "tests" / LIVE).glob("test_*.py"))
        began_s = time.monotonic()
        self.failed = sorted({module for module, _, is_failed in _report(modules, copy) if is_failed})
        self.took_s = time.monotonic() - began_s
        self.modules = [each for each in modules if each not in self.failed]

    def kills(self, mutant: Mutant, copy: Path) -> bool:
        """Tell whether one of them fails with a mutant, twice: a busy machine finds none."""
        with mutated(mutant, copy):
            answer = ended([*_command(self.modules, []), "@tests/again.txt"], copy, _START_S + _TIMES * self.took_s)
            return answer is not None and answer[0] not in (0, 5)


@contextlib.contextmanager
def mutated(mutant: Mutant, copy: Path) -> Iterator[None]:
    """Have the mutant's file in a copy, and at the end the one before."""
    path = copy / mutant.path
    before = path.read_text()
    _write(path, mutant.source)
    try:
        yield
    finally:
        _write(path, before)


# Bytecode is known by the whole second that its module was written in: each has one of its own.
def _write(path: Path, text: str) -> None:
    later_s = int(path.stat().st_mtime) + 1
    path.write_text(text)
    os.utime(path, (later_s, later_s))


def copied(folder: Path) -> Path:
    """Return a copy of the repository, with what was built for it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    for built in ("bpf/build", "tests/workloads/build"):
        if (ROOT / built).is_dir():
            shutil.copytree(ROOT / built, folder / built, dirs_exist_ok=True)
    return folder


def table(found: Mapping[str, Counter[str]]) -> list[str]:
    """Return a row for each room, and one for all: mutants, killed, survived, hangs, percent."""
    rows = [f"{'room':12} {'mutants':>8} {KILLED:>8} {SURVIVED:>9} {HANGS:>6} {'percent':>8}"]
    for room, counts in [*sorted(found.items()), ("all", sum(found.values(), Counter[str]()))]:
        columns = f"{counts.total():8} {counts[KILLED]:8} {counts[SURVIVED]:9} {counts[HANGS]:6}"
        rows.append(f"{room:12} {columns} {percent(counts):7.0f}%")
    return rows


def percent(counts: Counter[str]) -> float:
    """Return how many of those that ended were killed; what hangs is in neither number."""
    ended = counts[KILLED] + counts[SURVIVED]
    return 100 * counts[KILLED] / ended if ended else 100


def is_good(found: Mapping[str, Counter[str]]) -> bool:
    """Tell whether enough were killed, in each room and in all."""
    of_all = percent(sum(found.values(), Counter[str]()))
    return of_all >= LEAST_PERCENT and all(percent(each) >= LEAST_OF_ROOM for each in found.values())


def _asked(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--of", nargs="+", metavar="FILE", help="only of these modules")
    parser.add_argument("--changed", action="store_true", help="only of modules that differ from main")
    parser.add_argument("--room", nargs="+", metavar="NAME", help="only of these folders of the package")
    asked = parser.parse_args(arguments)
    every = [path for path in imports.sources() if path.startswith("koordebpf/")]
    given = [Path(each).resolve().relative_to(ROOT).as_posix() for each in asked.of or ()]
    given += changed.changed() if asked.changed else []
    is_part = asked.of or asked.changed
    asked.paths = [path for path in every if not is_part or path in given]
    if asked.room:
        if unknown := set(asked.room) - set(map(room_of, every)):
            parser.error(
                f"no room {', '.join(sorted(unknown))}; there are: {', '.join(sorted(set(map(room_of, every))))}"
            )
        asked.paths = [path for path in asked.paths if room_of(path) in asked.room]
    return asked


def _judge_all(mutants: Sequence[Mutant], tests: Tests, copies: list[Path]) -> dict[Mutant, str]:
    def judge(mutant: Mutant) -> str:
        copy = copies.pop()
        try:
            return judged(mutant, copy, tests)
        finally:
            copies.append(copy)

    found: dict[Mutant, str] = {}
    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        waiting = {pool.submit(judge, mutant): mutant for mutant in mutants}
        for done in concurrent.futures.as_completed(waiting):
            mutant = waiting[done]
            found[mutant] = done.result()
            _print(f"{len(found):3}/{len(mutants)}", mutant, found[mutant])
    for mutant in [mutant for mutant, result in found.items() if result == TIMEOUT]:
        again = judged(mutant, copies[0], tests, _TIMES)
        found[mutant] = HANGS if again == TIMEOUT else again
        _print("  again", mutant, found[mutant])
    _judge_live([mutant for mutant, result in found.items() if result == SURVIVED], copies[0], found)
    return found


def _judge_live(mutants: Sequence[Mutant], copy: Path, found: dict[Mutant, str]) -> None:
    if not mutants:
        return
    if os.geteuid():
        print("left out: the tests of the live kernel, which need root")
        return
    live = LiveTests(copy)
    print(f"{len(mutants)} survived; the live kernel's tests take {live.took_s:.0f} s without any", flush=True)
    for failed in live.failed:
        print(f"left out, fails without any mutant: {failed}")
    for mutant in mutants:
        if live.kills(mutant, copy):
            found[mutant] = KILLED
        _print("   live", mutant, found[mutant])


def _print(at: str, mutant: Mutant, result: str) -> None:
    print(f"{at} {result}: {mutant.path}:{mutant.line}: {mutant.old} -> {mutant.new}", flush=True)


def main(arguments: list[str]) -> int:
    """Print what became of each mutant, and a table; return 1 where too few were killed."""
    asked, started = _asked(arguments), time.monotonic()
    mutants = chosen(asked.count, asked.seed, asked.paths)
    tests = Tests(imports.graph(imports.sources()), {each.path for each in mutants})
    with tempfile.TemporaryDirectory(prefix="koordebpf-mutate-") as name:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: _end(name))
        copies = [copied(Path(name) / str(at)) for at in range(max(os.cpu_count() or 1, 2))]
        for failed in tests.measure(copies):
            print(f"left out, fails without any mutant: {failed}")
        took = f"{time.monotonic() - started:.0f} s, one test at most {tests.test_s / _TIMES:.0f} s"
        print(
            f"{len(mutants)} mutants; {len(tests.modules)} test modules reach them, without one in {took}", flush=True
        )
        found = _judge_all(mutants, tests, copies)
    by_room: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, result in found.items():
        by_room[room_of(mutant.path)][result] += 1
    print(*table(by_room), f"seed {asked.seed}, {time.monotonic() - started:.0f} s", sep="\n")
    return int(not is_good(by_room))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
