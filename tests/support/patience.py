"""How long tests wait for what must happen: six times as long with KOORDEBPF_PATIENCE=6, where the CPU is emulated."""

from __future__ import annotations

import os

_TIMES = float(os.environ.get("KOORDEBPF_PATIENCE", "1"))


def patience(seconds: float) -> float:
    """Return how long to wait here for what takes at most so long on a machine of its own."""
    return seconds * _TIMES
