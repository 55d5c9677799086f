"""Which tests passed only when they were tried again, over runs: in a file of the user's cache.

`python -m tests.second_tries` lists them. A test that needs it now and then waits for too little, or hides a fault; one
run cannot tell.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_RUNS = 200  # as many are kept: two months of three a day, at most 100 KB
_NAMES = 50  # of one run
_LISTED = 20


def file() -> Path:
    """Return where the runs are written down."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koordebpf" / "second-tries.jsonl"


def twice(names: Iterable[str]) -> list[str]:
    """Return the tests that needed it more than once in one run: on two machines, or with other parameters."""
    return [name for name, count in Counter(map(_test, names)).items() if count > 1]


# "host: test_kill::test_it[v1]", "6.1 v2: test_kill::test_it".
def _test(name: str) -> str:
    return re.sub(r"\[.*\]$", "", name.rpartition(": ")[2])


def remember(names: Sequence[str]) -> None:
    """Add a run in which these needed it, or none.

    Raises:  OSError: the file cannot be written.
    """
    path = file()
    path.parent.mkdir(parents=True, exist_ok=True)
    run = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit(), "again": [*names[:_NAMES]]}
    with path.open("a+") as runs:
        fcntl.flock(runs, fcntl.LOCK_EX)  # another clone may end just now
        runs.seek(0)
        lines = [*runs.read().splitlines(), json.dumps(run)][-_RUNS:]
        runs.seek(0)
        runs.truncate()
        runs.write("\n".join(lines) + "\n")


def listed() -> list[str]:
    """Return a sentence, and a line for each test that needed it in the runs that are kept: most often first."""
    runs = _runs()
    counts = Counter(name for run in runs for name in run["again"])
    if not counts:
        return [f"no test needed a second try in {len(runs)} runs"]
    last = {name: run for run in runs for name in run["again"]}
    lines = [
        f"  {count} × {name}, last {last[name]['at'][:10]} at {last[name]['commit'] or 'no commit'}"
        for name, count in counts.most_common(_LISTED)
    ]
    if len(counts) > _LISTED:
        lines.append(f"  and {len(counts) - _LISTED} more in {file()}")
    return [f"passed only when tried again, in {len(runs)} runs since {runs[0]['at'][:10]}:", *lines]


def _runs() -> list[dict[str, Any]]:
    try:
        lines = file().read_text().splitlines()
    except OSError:
        return []
    runs = []
    for line in lines:
        try:
            run = json.loads(line)
        except ValueError:  # a machine that was switched off meanwhile
            continue
        runs.append(run)
    return runs


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


if __name__ == "__main__":
    print(*listed(), sep="\n")
