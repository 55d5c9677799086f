"""What git says of this checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def lines(*arguments: str) -> list[str]:
    """Return the lines that git prints; none where it fails, as where there is no history."""
    done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def changed_since(commit: str, until: str = "") -> list[str]:
    """Return the paths that differ between a commit and another, or the files as they are."""
    return lines("diff", "--name-only", "--no-renames", commit, *([until] if until else []))
