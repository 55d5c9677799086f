"""How many tests ended how."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Counted:
    """How many tests ended how; which failed, which failed once and then passed, and what was left out."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    names: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, other: Counted) -> None:
        """Add what another folder had."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.names += other.names
        self.unsteady += other.unsteady
        self.left_out += other.left_out


def died(why: str) -> Counted:
    """Print why there are no counts; count that as one failure."""
    print(why, flush=True)
    return Counted(failed=1, names=[why])
