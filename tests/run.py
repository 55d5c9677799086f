"""Run the test folders one after the other, cheapest first, and add them up.

One process a folder: a crash in one loses only that one, and its threads and forks never meet another's.
`python tests/run.py unit golden` runs only these; arguments after `--` go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

TESTS = Path(__file__).parent
REPORTS = TESTS.parent / ".make" / "tests"
# Folder → what it needs, in the order they run.
FOLDERS = {
    "unit": "nothing",
    "trees": "nothing",
    "golden": "nothing",
    "properties": "nothing",
    "scenarios": "nothing",
    "contract": "loopback sockets",
    "host": "root and a memory hierarchy: real BPF on this kernel",
}
_NO_TESTS_COLLECTED = 5  # pytest.ExitCode


def has_memory_hierarchy() -> bool:
    """Tell whether a memory controller is mounted, on v1 or v2."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers")
    if v2.exists() and "memory" in v2.read_text().split():
        return True
    return any(
        line.split()[2] == "cgroup" and "memory" in line.split()[3].split(",")
        for line in Path("/proc/mounts").read_text().splitlines()
    )


def what_host_lacks() -> str | None:
    """Return why the host tests cannot run here and what to do, or None."""
    if os.geteuid() != 0:
        return "needs root; run it with: sudo make test"
    if not has_memory_hierarchy():
        return "needs a mounted memory controller (cgroup v1 or v2); run it on a machine that has one"
    return None


def run_folder(folder: str, arguments: list[str]) -> dict[str, int]:
    """Run one folder's tests; return how many passed, failed and were skipped."""
    report = REPORTS / f"{folder}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(TESTS / folder), *arguments]
    done = subprocess.run(command, cwd=TESTS.parent, check=False)
    if done.returncode == _NO_TESTS_COLLECTED:
        return {"passed": 0, "failed": 0, "skipped": 0}
    try:
        suite = ET.parse(report).getroot()[0]
    except (OSError, ET.ParseError, IndexError):
        # It died before it could report.
        print(f"{folder}: pytest ended with {done.returncode} and no report", flush=True)
        return {"passed": 0, "failed": 1, "skipped": 0}
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    skipped = int(suite.attrib["skipped"])
    passed = int(suite.attrib["tests"]) - failed - skipped
    # Usage errors and interruptions fail no test.
    return {"passed": passed, "failed": failed or int(done.returncode != 0), "skipped": skipped}


def main(arguments: list[str]) -> int:
    """Run the folders named, or all; print the total; return the exit code."""
    folders, for_pytest = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        folders, for_pytest = arguments[:at], arguments[at + 1 :]
    if unknown := sorted(set(folders) - set(FOLDERS)):
        print(f"no test folder {', '.join(unknown)}; there are: {', '.join(FOLDERS)}", file=sys.stderr)
        return 2
    REPORTS.mkdir(parents=True, exist_ok=True)
    lack = what_host_lacks()
    if lack is None:
        # A host test that would skip here fails: see tests/conftest.py.
        os.environ.setdefault("KOORDEBPF_REQUIRE", "host")
    total = {"passed": 0, "failed": 0, "skipped": 0}
    left_out = ""
    begun = time.monotonic()
    for folder in folders or FOLDERS:
        if folder == "host" and lack is not None:
            left_out = f"left out: host: {lack}"
            continue
        print(f"\n== {folder} · needs {FOLDERS[folder]} · {time.monotonic() - begun:.0f} s since the start", flush=True)
        for word, count in run_folder(folder, for_pytest).items():
            total[word] += count
    print(f"\n{time.monotonic() - begun:.0f} s in all")
    if left_out:
        print(left_out)
    print(", ".join(f"{count} {word}" for word, count in total.items()))
    return int(total["failed"] > 0 or total["passed"] == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
