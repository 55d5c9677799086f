"""Who reacts to a hog: the agent, a bare Python loop, earlyoom and nohang, each as the process its users run.

A contender says how its crossing is to be marked (by the hog itself, at the byte), when it saw it and when its decision
left.
earlyoom and nohang look at the whole machine: they run in a pid namespace of their own, where there is nothing else to
kill than the hog.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil

from tests.bench.debian import find_program, nohang_conf
from tests.bench.machine import meminfo_kib
from tests.bench.nodes import GIB, FullNode, wait_until_below
from tests.bench.report import CannotMeasure
from tests.support.agent_process import AgentProcess
from tests.support.loads.workloads import Hog

THRESHOLD_PERCENT = 25
_MUST_STAY_FREE_KIB = 8 << 20
_KIB_PER_MIB = 1 << 10


class Contender:
    """One that decides. `decided` is called once for each burst, with the hog's own story."""

    name: ClassVar[str]
    method: ClassVar[str]

    def __init__(self, node: FullNode) -> None:
        self.node = node
        self._stack = contextlib.ExitStack()
        try:
            self.open()
        except BaseException:
            self._stack.close()
            raise

    def open(self) -> None:
        """Start it."""
        raise NotImplementedError

    def burst(self, rate_mib_s: int, *, huge: bool) -> Hog:
        """Start a hog that marks this contender's crossing."""
        raise NotImplementedError

    def decided(self, story: dict[str, int]) -> tuple[int, int]:
        """Return when it saw the crossing, and when its decision left; KeyError: it never did."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until the next burst may begin."""
        wait_until_below(self.node.usage_file, GIB // 4)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _hog(self, rate_mib_s: int, huge: bool, *mark: str | int | Path, before: tuple[str, ...] = ()) -> Hog:
        # Half of the node's memory is its cap, whatever happens.
        cap_mib = self.node.cgroup.limit_bytes // 2 >> 20
        return Hog(
            self.node.hog,
            cap_mib,
            *mark,
            *self.node.hog_joins_too,
            rate_mib_s=rate_mib_s,
            hold_s=3,
            huge=huge,
            before=before,
        )


class Koordebpf(Contender):
    name = "koordebpf"
    method = (
        "koordebpf run --enforce by cgroup, 110 pods / 330 containers; from the hog's own mark at the byte"
        " to outcome.sent_ns of the audit line, when every process had its signal"
    )
    options: ClassVar[tuple[str, ...]] = ()

    def open(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.agent = self._stack.enter_context(self.start(folder))
        self._bursts = 0
        self.steps: dict[str, list[float]] = {"crossed → seen": [], "seen → decided": [], "decided → sent": []}

    def start(self, folder: Path) -> AgentProcess:
        """Start the agent, with its files in a folder."""
        manifest = self.node.cgroup.write_manifest(folder / "pods.json", THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        return AgentProcess(self.node.cgroup, manifest, *self.options, audit=folder / "audit.jsonl")

    def burst(self, rate_mib_s: int, *, huge: bool) -> Hog:
        mark = self.node.usage_at(self.node.threshold_bytes(THRESHOLD_PERCENT))
        return self._hog(rate_mib_s, huge, "--mark-file", self.node.usage_file, "--mark-bytes", mark)

    def decided(self, story: dict[str, int]) -> tuple[int, int]:
        line = self.agent.wait_for_eviction(self._bursts)
        self._bursts += 1
        (outcome,) = line["outcomes"]
        if outcome["uid"] != self.node.hog_uid:
            raise RuntimeError(f"{outcome['name']} was evicted, not the hog")
        times = line["latencies"]
        sent_ns, decided_ns = int(outcome["sent_ns"]), int(line["decided_ns"])
        seen_ns = decided_ns - int(times["seen_to_decided_ns"] or 0)
        spans = (max(seen_ns - story.get("mark", seen_ns), 0), decided_ns - seen_ns, sent_ns - decided_ns)
        for samples, span_ns in zip(self.steps.values(), spans, strict=True):
            samples.append(span_ns / 1e6)
        return seen_ns, sent_ns


class BareLoop(Contender):
    name = "bare Python loop"
    method = "tests/bench/bare_loop.py on the same cgroups: no pods, no policy, kills the biggest; to its kill"

    def open(self) -> None:
        threshold = self.node.threshold_bytes(THRESHOLD_PERCENT)
        command = [sys.executable, "-m", "tests.bench.bare_loop", str(self.node.cgroup.path), str(threshold)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._stack.callback(_stop, self._process)
        self._line()

    def burst(self, rate_mib_s: int, *, huge: bool) -> Hog:
        mark = self.node.threshold_bytes(THRESHOLD_PERCENT)
        return self._hog(rate_mib_s, huge, "--mark-file", self.node.usage_file, "--mark-bytes", mark)

    def decided(self, story: dict[str, int]) -> tuple[int, int]:
        _, sent_ns, seen_ns = self._line().split()
        return int(seen_ns), int(sent_ns)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bare loop ended")
        return line


class _WholeMachine(Contender):
    # One that reads MemAvailable. Its threshold is 1.5 GiB below what is available when it starts; the hog looks at
    # MemAvailable itself, so that what the rest of the machine does moves the mark along with the threshold.

    program: ClassVar[str]
    max_available_kib: int | None = None  # its threshold may not be higher

    def open(self) -> None:
        self.executable = find_program(self.program)
        self._hold_ballast()
        available_kib = meminfo_kib("MemAvailable")
        self.threshold_kib = min(available_kib - (3 << 19), self.max_available_kib or available_kib) >> 10 << 10
        if self.threshold_kib - (2 << 20) < _MUST_STAY_FREE_KIB:
            raise CannotMeasure(f"{self.name} needs 12 GiB of available memory, here are {available_kib >> 20} GiB")
        log = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *self.command()]
        self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._stack.callback(_stop, self._process)
        time.sleep(1)
        children = psutil.Process(self._process.pid).children()
        if self._process.poll() is not None or not children:
            log.seek(0)
            raise CannotMeasure(f"{self.name} does not run here: {log.read().decode(errors='replace')[-300:]}")
        self._init = children[0].pid
        # Killed before its parent, which reaps it.
        self._stack.callback(children[0].kill)

    def command(self) -> list[str]:
        raise NotImplementedError

    def _hold_ballast(self) -> None:
        if self.max_available_kib is None:
            return
        # What is to be held so that the threshold is low enough for it.
        too_much_mib = (meminfo_kib("MemAvailable") - self.max_available_kib - (3 << 19)) // _KIB_PER_MIB + 512
        if too_much_mib > 12_000:
            raise CannotMeasure(f"{self.name} takes no threshold above half of the memory, and too much is free")
        for mib in (min(too_much_mib, 6000), too_much_mib - 6000):
            if mib > 0:
                ballast = Hog(self.node.ballast, mib, hold_s=600, huge=True)
                self._stack.callback(ballast.stop)
                ballast.wait_for("done")

    def settle(self) -> None:
        super().settle()
        deadline = time.monotonic() + 20
        while meminfo_kib("MemAvailable") < self.threshold_kib + (1 << 19):
            if time.monotonic() > deadline:
                raise CannotMeasure(f"{self.name}: something else took the memory that it was to see eaten")
            time.sleep(0.05)

    def burst(self, rate_mib_s: int, *, huge: bool) -> Hog:
        before = ("nsenter", "--target", str(self._init), "--pid", "--")
        return self._hog(rate_mib_s, huge, "--mark-available-kib", self.threshold_kib, before=before)

    def decided(self, story: dict[str, int]) -> tuple[int, int]:
        return story["term"], story["term"]


class Earlyoom(_WholeMachine):
    name = "earlyoom"
    program = "earlyoom"
    method = "Debian's earlyoom -M, whole machine; from the hog's own sight of MemAvailable to its SIGTERM received"

    def command(self) -> list[str]:
        return [str(self.executable), "-M", str(self.threshold_kib), "-r", "3600", "-p"]


class Nohang(_WholeMachine):
    name = "nohang"
    program = "nohang"
    method = "Debian's nohang with its own configuration but for the threshold and post_soft_action_delay; as earlyoom"

    def open(self) -> None:
        self.max_available_kib = meminfo_kib("MemTotal") // 2
        super().open()

    def command(self) -> list[str]:
        text = nohang_conf(self.executable).read_text()
        text = re.sub(
            r"(?m)^soft_threshold_min_mem .*", f"soft_threshold_min_mem = {self.threshold_kib // _KIB_PER_MIB} M", text
        )
        text = re.sub(r"(?m)^post_soft_action_delay .*", "post_soft_action_delay = 0.1", text)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "nohang.conf").write_text(text)
        return [str(self.executable), "--monitor", "--config", str(folder / "nohang.conf")]

    def settle(self) -> None:
        super().settle()
        time.sleep(1)


def _stop(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()
