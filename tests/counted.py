"""How many tests ended how."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Counted:
    """How many tests ended how, and which failed.

    `unsteady`: which failed once and then passed, with how they failed. `items`: the seconds of each item of the ledger
    that passed whole (ledger.py); `in_machines`: the modules that passed in a virtual machine, with its title.
    `reports`: their junit.xml.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    names: list[str] = field(default_factory=list)
    unsteady: dict[str, str] = field(default_factory=dict)
    items: dict[str, float] = field(default_factory=dict)
    in_machines: dict[str, str] = field(default_factory=dict)
    reports: list[Path] = field(default_factory=list)

    def add(self, other: Counted) -> None:
        """Add what another folder had."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.names += other.names
        self.unsteady |= other.unsteady
        self.items |= other.items
        self.in_machines |= other.in_machines
        self.reports += other.reports


def died(why: str) -> Counted:
    """Print why there are no counts; count that as one failure."""
    print(why, flush=True)
    return Counted(failed=1, names=[why])


def twice(names: Iterable[str]) -> list[str]:
    """Return what needed a second try more than once in one run: on two machines, or with other parameters."""
    return [name for name, count in Counter(map(_test, names)).items() if count > 1]


# "host: test_kill::test_it[v1]", "6.1 v2: test_kill::test_it".
def _test(name: str) -> str:
    return re.sub(r"\[.*\]$", "", name.rpartition(": ")[2])
