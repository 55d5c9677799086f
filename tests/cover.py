"""Which lines and branches of the pure rooms no test reaches: `make cover`.

Runs the folders that need nothing, prints a row for each room, and fails where a room is below the least. With a name
(`python -m tests.cover policy/evict`) it prints the lines that are not reached.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("policy", "state", "slo", "attribution", "act/guards")
FOLDERS = ("unit", "trees", "golden", "scenarios", "properties")
_LEAST_LINES, _LEAST_BRANCHES = 98, 95


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what coverage says of each file, by path below the package."""
    environment = os.environ | {"COVERAGE_FILE": str(folder / "data"), "PYTHONPATH": str(ROOT)}
    coverage = [sys.executable, "-m", "coverage"]
    tests = [str(ROOT / "tests" / name) for name in FOLDERS]
    command = [
        *coverage,
        "run",
        "--branch",
        "--source",
        "koordebpf",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
    ]
    subprocess.run([*command, *tests], cwd=ROOT, env=environment, check=True)
    report = folder / "report.json"
    subprocess.run([*coverage, "json", "-q", "-o", str(report)], cwd=ROOT, env=environment, check=True)
    files: dict[str, dict[str, Any]] = json.loads(report.read_text())["files"]
    return {Path(path).relative_to("koordebpf").as_posix(): found for path, found in files.items()}


def room_of(path: str) -> str | None:
    """Return the pure room that a file is in."""
    return next((room for room in ROOMS if path.startswith(f"{room}/")), None)


def main(arguments: list[str]) -> int:
    """Print the table; return 1 where a room is below the least."""
    with tempfile.TemporaryDirectory() as name:
        files = measured(Path(name))
    if arguments:
        for path, found in files.items():
            if path.startswith(arguments[0]) and (found["missing_lines"] or found["missing_branches"]):
                print(path, "lines", found["missing_lines"], "branches", found["missing_branches"])
        return 0
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path, found in files.items():
        if (room := room_of(path)) is not None:
            summary = found["summary"]
            of_file = [summary[key] for key in ("covered_lines", "num_statements", "covered_branches", "num_branches")]
            sums[room] = [one + other for one, other in zip(sums[room], of_file, strict=True)]
    below = 0
    for room, (lines, of_lines, branches, of_branches) in sorted(sums.items()):
        percents = 100 * lines / of_lines, 100 * branches / max(of_branches, 1)
        is_below = percents[0] < _LEAST_LINES or percents[1] < _LEAST_BRANCHES
        below += is_below
        print(f"{room:12} lines {percents[0]:5.1f} %  branches {percents[1]:5.1f} %{'  too low' if is_below else ''}")
    print(f"at least {_LEAST_LINES} % and {_LEAST_BRANCHES} %")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
