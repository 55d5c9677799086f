"""Plugins that register, die and return for a minute leave nothing behind, and hold no round up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from koordebpf.strategies.katalyst.outside import PluginCaller
from koordebpf.strategies.katalyst.registry import PluginRegistry
from tests.contract.apiserver import until
from tests.support.patience import patience

COUNT = 50
SECONDS = float(os.environ.get("KOORDEBPF_PLUGIN_CHURN_S", "60"))
_PODS = {f"uid-{number}": bytes([10, 7, 42, 5, *f"u-{number:03}".encode()]) for number in range(110)}


class Churn:
    """Plugins in a process of their own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.support.churning_plugins", str(folder), str(COUNT)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def all(self) -> None:
        self._command("all")

    def none(self) -> None:
        self._command("none")

    def _command(self, line: str) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == line

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()


class Manager:
    """A registry and a caller, as a manager has them."""

    def __init__(self, folder: Path) -> None:
        self.woken = threading.Event()
        self.caller = PluginCaller(self.woken.set, 0.8)
        self.registry = PluginRegistry(folder, (), lambda: None)
        self.number = 0

    def poll(self) -> None:
        for change in self.registry.poll():
            if change.socket is None:
                self.caller.deregister(change.name)
            else:
                self.caller.register(change.name, change.socket)

    def round(self) -> tuple[float, int]:
        """Make a round; return the seconds that it took, and how many plugins answered."""
        self.poll()
        self.number += 1
        self.woken.clear()
        began_s = time.monotonic()
        self.caller.ask_thresholds(self.number, _PODS)
        assert self.woken.wait(patience(10))
        found = self.caller.poll()
        assert found is not None
        return time.monotonic() - began_s, sum(each.threshold is not None for each in found.answers)

    def close(self) -> None:
        self.registry.close()
        self.caller.close()


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - of procfs


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 240)
def test_fifty_that_come_and_die_leave_no_descriptor_thread_or_endpoint(tmp_path: Path) -> None:
    before = held()
    churn = Churn(tmp_path)
    manager = Manager(tmp_path)
    took_s: list[float] = []
    answered: list[int] = []
    try:
        ends_s = time.monotonic() + SECONDS
        while time.monotonic() < ends_s:
            seconds, count = manager.round()
            took_s.append(seconds)
            answered.append(count)
            time.sleep(0.2)
        # WHEN all of them stay, THEN all of them answer
        churn.all()
        until(lambda: manager.round()[1] == COUNT, "every plugin answers", timeout_s=90)
        assert len(manager.caller.names) == COUNT
        # AND when all of them leave, none is left
        churn.none()

        def is_empty() -> bool:
            manager.poll()
            return manager.caller.names == ()

        until(is_empty, lambda: f"no endpoint is left, but {manager.caller.names}")
    finally:
        manager.close()
        churn.close()
    until(lambda: held() <= before, lambda: f"descriptors and threads {before}, but {held()}")
    took_s.sort()
    print(
        f"{len(took_s)} rounds of up to {max(answered)} plugins: p50 {took_s[len(took_s) // 2] * 1000:.0f} ms,"
        f" p99 {took_s[len(took_s) * 99 // 100] * 1000:.0f} ms, longest {took_s[-1] * 1000:.0f} ms"
    )
    assert max(answered) > COUNT // 4
    assert took_s[-1] < patience(3)  # 0.3 s on a quiet machine
