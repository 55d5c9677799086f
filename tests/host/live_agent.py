"""`koordebpf run` as a process with any arguments, seen as an operator sees it: log, audit file, probes and metrics."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.contract.apiserver import until
from tests.support.patience import patience
from tests.support.ports import free_ports
from tests.support.replay import replay, replay_recording

ROOT = Path(__file__).parents[2]


def left_in(folder: Path) -> list[str]:
    """Return what agents left in their run directory, but for the cgroup root: the next agent is to take the same."""
    return [path.name for path in folder.rglob("run/*/*") if path.name != "cgroup-root"]


class LiveAgent:
    """An agent that writes its log and audit into `folder`. Leaving the context kills what still runs of it.

    Every round of it is decided again then, from the frame that it kept of it: the decision must be the same.

    Args:
        folder: for what it writes.
        arguments: of `koordebpf run`.
        before: a command that it is an argument of.
        output: its standard output and error are this descriptor, in place of the log.
        keeps_frames: False where its cost is measured.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        before: Sequence[str] = (),
        output: int | None = None,
        keeps_frames: bool = True,
    ) -> None:
        self.port, self.probe_port = free_ports(2)
        self.audit = folder / f"audit-{self.port}"
        self._log = folder / f"log-{self.port}"
        command = [*before, sys.executable, "-m", "koordebpf", "run", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--probe-listen", f"127.0.0.1:{self.probe_port}"]
        self.frames = folder / f"frames-{self.port}"
        command += ["--frames", str(self.frames)] if keeps_frames else []
        self.recorded = folder / f"recorder-{self.port}"
        command += ["--recorder-folder", str(self.recorded) if keeps_frames else "none"]
        self.run_dir = folder / "run"
        command += ["--audit", str(self.audit), "--run-dir", str(self.run_dir), *map(str, arguments)]
        with self._log.open("wb") as log:
            out = log.fileno() if output is None else output
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def said(self, text: str, timeout_s: float = 30) -> str:
        """Wait until the log has `text`; return the line."""

        def find() -> str | None:
            found = next((line for line in self.log.splitlines() if text in line), None)
            assert found or self.process.poll() is None, f"the agent ended without saying {text!r}:\n{self.log}"
            return found

        try:
            return str(until(find, text, timeout_s))
        except TimeoutError:
            raise AssertionError(f"the agent did not say {text!r}:\n{self.log}") from None

    def started(self) -> Self:
        self.said(" I watching ")
        return self

    def get(self, path: str) -> tuple[int, str]:
        while True:
            try:
                return self._get(path)
            except (http.client.RemoteDisconnected, ConnectionResetError):
                time.sleep(0.05)  # it closes the connections of a peer that asks as often as tests do

    def _get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=patience(10)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except urllib.error.URLError as absent:
            return 0, str(absent)

    def readiness(self) -> tuple[int, list[str]]:
        """Return the status of /readyz and the reasons it gives; status 0: connection refused."""
        code, body = self.get("/readyz")
        return code, json.loads(body)["reasons"] if code else []

    def becomes_ready(self) -> Self:
        until(lambda: self.readiness() == (200, []), lambda: f"ready, but: {self.readiness()}\n{self.log}", 60)
        return self

    def refuses(self, reason: str, timeout_s: float = 30) -> None:
        """Wait until /readyz answers 503 with a reason that has these words."""
        try:
            until(lambda: any(reason in text for text in self.readiness()[1]), reason, timeout_s)
        except TimeoutError:
            raise AssertionError(f"/readyz says {self.readiness()}, not {reason!r}:\n{self.log}") from None
        assert self.readiness()[0] == 503

    def metric(self, name: str) -> float:
        """Return one sample, labels and all as /metrics writes it; 0 where there is none yet."""
        _, body = self.get("/metrics")
        return next((float(line.rpartition(" ")[2]) for line in body.splitlines() if line.startswith(f"{name} ")), 0.0)

    def lines(self) -> list[dict[str, Any]]:
        """Return the audit's whole lines: the last one may be on its way."""
        *whole, _unfinished = (self.audit.read_bytes() if self.audit.exists() else b"").split(b"\n")
        return [json.loads(line) for line in whole]

    def plans(self) -> list[dict[str, Any]]:
        """Return the audit lines of plans that had victims."""
        return [line for line in self.lines() if line.get("outcomes")]

    def has_plan(self, number: int = 1) -> dict[str, Any]:
        """Wait for the audit line `number`, counted from 1; return it."""
        try:
            until(lambda: len(self.plans()) >= number, "audit line")
        except TimeoutError:
            raise AssertionError(f"no audit line {number}:\n{self.log}") from None
        return self.plans()[number - 1]

    def stop(self, by: signal.Signals = signal.SIGTERM, timeout_s: float = 10) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(by)
        return self.process.wait(patience(timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if error is None:
            replay(self.frames)
            replay_recording(self.recorded / "recorder")
