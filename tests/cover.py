"""Which lines and branches no test reaches: `make cover`, and with `LIVE=1` what host and cluster tests reach.

Runs the tests that need nothing and import a module of a pure room, and prints a row for each room; with --gate it
fails where a room is below the least. What other tests reach on their way to something else is not counted. With a name
(`python -m tests.cover policy/evict`) it prints the lines that are not reached. With --live it runs the quick tests of
the live kernel and of a real cluster instead, counts the agents that they start too, and prints the rooms that act: a
test that fails under its cost is no failure here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import slipcover

from tests import imports, needs

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "koordebpf"
LIVE_ROOMS = {room: (f"{room}/*",) for room in ("agent", "act", "kube")}
FOLDERS = needs.PURE
LIVE_FOLDERS = ("host", "cluster")
_LEAST_LINES, _LEAST_BRANCHES = 98, 95
# Python imports it at its start: each process below a test is measured, and writes what it reached when it ends. By its
# path: tests copy the package, and run the copy.
_MEASURE = """\
import atexit, json, os, tempfile
import slipcover

package, folder = {package!r}, {folder!r}
measured = slipcover.Slipcover(branch=True)
slipcover.ImportManager(measured, slipcover.FileMatcher([package])).__enter__()


@atexit.register
def write():
    os.chdir("/")  # the folder that it is in may be gone
    reached = measured.get_coverage()
    reached["files"] = {{"/" + path: found for path, found in reached["files"].items()}}
    descriptor, _ = tempfile.mkstemp(".json", dir=folder)  # the kernel gives a pid again
    with open(descriptor, "w") as file:
        json.dump(reached, file)
"""

Files = dict[str, dict[str, Any]]  # what slipcover says of each file, by path below the package
Rooms = Mapping[str, Sequence[str]]  # patterns of paths below the package, by room


def pure_rooms() -> Rooms:
    """Return the rooms that the contract in pyproject.toml keeps pure, with those that only read."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (modules,) = (each["source_modules"] for each in contracts if each["name"] == "What decides is pure")
    rooms: dict[str, list[str]] = {"slo": ["slo/*"], "attribution": ["attribution/*"]}
    for module in modules:
        _, *names = module.split(".")
        rooms.setdefault(names[0], []).append(f"{'/'.join(names)}{'.py' if len(names) > 1 else '/*'}")
    return rooms


def room_of(path: str, rooms: Rooms) -> str | None:
    """Return the room of a file, by its path below the package; None: it is in none of these."""
    return next((room for room, patterns in rooms.items() if any(fnmatch(path, each) for each in patterns)), None)


def tests_of(rooms: Rooms) -> list[str]:
    """Return the test modules of `FOLDERS` that import a module of these rooms themselves."""
    sources = imports.sources()
    modules = [
        path for path in sources if room_of(path.removeprefix("koordebpf/"), rooms) and path.startswith("koordebpf/")
    ]
    found = imports.importers(imports.graph(sources), modules)
    return sorted(path for path, far in found.items() if far <= 1 and path.split("/")[1] in FOLDERS)


def environment(folder: Path) -> dict[str, str]:
    """Return what processes have to get so that what they reach is written to a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_MEASURE.format(package=str(PACKAGE), folder=str(folder)))
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def measure(folder: Path, tests: Sequence[str], *, must_pass: bool = True) -> None:
    """Run tests, all but slow ones; what they reach, with the processes that they start, is in the folder.

    Raises:  SystemExit: one fails that must pass.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    # Its plugin is there for xdist alone, and is imported before pytest could rewrite it.
    command += ["-p", "no:slipcover", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    done = subprocess.run([*command, *tests], cwd=ROOT, env=os.environ | environment(folder), check=False)
    if must_pass and done.returncode:
        raise SystemExit(f"pytest ended with {done.returncode}: nothing is measured")


def measured(folder: Path) -> Files:
    """Return what was reached, by what is in a folder."""
    total = slipcover.Slipcover(branch=True, source=[PACKAGE]).get_coverage()
    for path in folder.glob("*.json"):
        slipcover.merge_coverage(total, json.loads(path.read_bytes()))
    return {Path(path).resolve().relative_to(PACKAGE).as_posix(): found for path, found in total["files"].items()}


def sums_of(files: Mapping[str, dict[str, Any]], rooms: Rooms) -> dict[str, list[int]]:
    """Return lines reached, lines, branches reached and branches of each room."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path, found in files.items():
        if (room := room_of(path, rooms)) is not None:
            has = found["summary"]
            lines, branches = has["covered_lines"], has["covered_branches"]
            of_file = [lines, lines + has["missing_lines"], branches, branches + has["missing_branches"]]
            sums[room] = [one + other for one, other in zip(sums[room], of_file, strict=True)]
    return sums


def print_rooms(sums: Mapping[str, Sequence[int]], *, has_least: bool) -> int:
    """Print a row for each room; return how many are below the least."""
    below = 0
    for room, (lines, of_lines, branches, of_branches) in sorted(sums.items()):
        percents = 100 * lines / of_lines, 100 * branches / max(of_branches, 1)
        is_below = has_least and (percents[0] < _LEAST_LINES or percents[1] < _LEAST_BRANCHES)
        below += is_below
        print(f"{room:12} lines {percents[0]:5.1f} %  branches {percents[1]:5.1f} %{'  too low' if is_below else ''}")
    return below


def main(arguments: list[str]) -> int:
    """Print the table; with --gate return 1 where a room is below the least."""
    parser = argparse.ArgumentParser(prog="python -m tests.cover", description=__doc__.splitlines()[0])
    parser.add_argument("room", nargs="?", help="print the lines of these files that are not reached")
    parser.add_argument("--gate", action="store_true", help="fail where a room is below the least")
    parser.add_argument("--live", action="store_true", help="measure agent, act and kube over host and cluster (root)")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="run these instead")
    options = parser.parse_args(arguments)
    tests = options.tests or ([f"tests/{name}" for name in LIVE_FOLDERS] if options.live else tests_of(pure_rooms()))
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), tests, must_pass=not options.live)
        files = measured(Path(name))
    if options.room:
        for path, found in files.items():
            if path.startswith(options.room) and (found["missing_lines"] or found["missing_branches"]):
                print(path, "lines", found["missing_lines"], "branches", found["missing_branches"])
        return 0
    if options.live:
        return print_rooms(sums_of(files, LIVE_ROOMS), has_least=False)
    below = print_rooms(sums_of(files, pure_rooms()), has_least=True)
    print(f"at least {_LEAST_LINES} % and {_LEAST_BRANCHES} %")
    return int(options.gate and below > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
