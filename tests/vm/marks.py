"""A pytest plugin for guests: tells the kernel's log which test runs."""

from __future__ import annotations

from pathlib import Path

_KMSG = Path("/dev/kmsg")
WORD = "koordebpf test:"


def pytest_runtest_logstart(nodeid: str) -> None:
    _KMSG.write_text(f"{WORD} {nodeid}\n")
