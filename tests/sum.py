"""Add up the counts of several runs: `python tests/sum.py FILE…`. A file that is missing counts as a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_STATES = ("passed", "failed", "skipped")


def main(paths: list[str]) -> int:
    """Print the sum as every run's last line; return the exit code."""
    total = dict.fromkeys(_STATES, 0)
    for path in paths:
        try:
            counts = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            print(f"failed: {path}: {error}")
            counts = {"failed": 1}
        for state in _STATES:
            total[state] += counts.get(state, 0)
    print(", ".join(f"{total[state]} {state}" for state in _STATES))
    return int(total["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
