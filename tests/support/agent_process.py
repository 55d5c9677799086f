"""The agent as a user runs it: a process of its own, seen through its log and its audit file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.nodes import NodeCgroup
from tests.support.patience import patience

_ROOT = Path(__file__).parents[2]
_START_S = 30


class AgentProcess:
    """`koordebpf run --enforce` by cgroup on a node cgroup, from its first log line on; SIGTERM ends it.

    Without a manifest `more` says where its pods are from.
    """

    def __init__(self, node: NodeCgroup, manifest: Path | None, *more: str, audit: Path | None = None) -> None:
        self.log: list[str] = []
        self._audit = audit
        self._is_up = threading.Event()
        command = [sys.executable, "-m", "koordebpf", "run", "--node-cgroup", str(node.path)]
        command += ["--pods", str(manifest)] if manifest else []
        command += ["--executor", "cgroup", "--enforce", "--evictions-per-minute", "1000", "--listen", ""]
        command += ["--audit", str(audit)] if audit else []
        # Where an agent has it by default, so that its records cost what they cost there.
        self._run_dir = tempfile.TemporaryDirectory(dir="/run", prefix="koordebpf-agent-")
        command += ["--run-dir", self._run_dir.name, "--recorder-folder", f"{self._run_dir.name}/kept"]
        self.started_ns = time.monotonic_ns()
        self.process = subprocess.Popen([*command, *more], cwd=_ROOT, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if not self._is_up.wait(patience(_START_S)) or self.process.poll() is not None:
            self.close()
            raise RuntimeError("the agent did not start:\n" + "\n".join(self.log))

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            if "watching" in line:
                self.up_ns = time.monotonic_ns()
                self._is_up.set()
        self._is_up.set()

    @property
    def pid(self) -> int:
        return self.process.pid

    def evictions(self) -> list[dict[str, Any]]:
        """Return the audit lines with victims; a node that is found above while it recovers has none."""
        if self._audit is None or not self._audit.exists():
            return []
        *whole, _unfinished = self._audit.read_bytes().split(b"\n")
        lines = [json.loads(line) for line in whole]
        return [line for line in lines if line.get("outcomes")]

    def wait_for_eviction(self, number: int, timeout_s: float = 30) -> dict[str, Any]:
        """Return eviction `number`, counted from 0, once all of its audit lines are there."""
        deadline = time.monotonic() + patience(timeout_s)
        while len(lines := self.evictions()) <= number:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"no eviction {number}; the agent said:\n" + "\n".join(self.log[-20:]))
            time.sleep(patience(0.02))
        return lines[number]

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(patience(10))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        if self.process.stderr:
            self.process.stderr.close()
        self._run_dir.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
