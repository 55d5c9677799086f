"""Folders side by side: one whose tests use the live kernel at a time, and on the other CPUs those that do not.

Tests of the live kernel wait a third of their time, and measure: the others have the lowest priority beside them. Those
whose tests run in virtual machines take longest: one at a time, from the start, beside all, with a low priority. What a
folder prints is kept, and shown when the folder has ended; meanwhile a line shows how far each is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.leftovers import Watched

_ROOT = Path(__file__).resolve().parents[1]
_LOWEST = ("nice", "-n", "19")
_LOW = ("nice", "-n", "10")  # of what tests wait for, and of those in virtual machines, which take longest
_POLL_S = 0.1
_PROGRESS_S = 30.0  # between two lines, where there is no terminal; on one it is a line that changes
_PERCENT = re.compile(rb"\[ *(\d+)%\]")
_RUNNING = re.compile(rb"::(\S+) $")  # pytest -v, until the test has ended
_LAST_LINES = 60


class Lane:
    """The tests of one folder, or those of it that need the same.

    Args:
        name: as it is shown.
        command: pytest's.
        report: where its junit.xml will be; what it prints is in the file beside it, `.txt`.
        is_live: whether it measures the live kernel: of those one runs at a time, with the usual priority.
        is_machine: whether its tests run in virtual machines: of those one runs at a time, too.
        environment: variables that it gets.
        brings: a command that has to end well before, which is started at once.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        report: Path,
        *,
        is_live: bool = False,
        is_machine: bool = False,
        environment: Mapping[str, str] | None = None,
        brings: Sequence[str] = (),
    ) -> None:
        self.name, self.report, self.brings = name, report, brings
        self.is_live, self.is_machine = is_live, is_machine
        self.output = report.with_suffix(".txt")
        self.command, self.environment = command, environment
        self._bringing: subprocess.Popen[bytes] | None = None
        self.watched: Watched | None = None

    def bring(self) -> None:
        """Start what has to end before the tests start."""
        self.output.write_bytes(b"")
        if self.brings:
            with self.output.open("wb") as output:
                self._bringing = subprocess.Popen(
                    [*_LOW, *self.brings], cwd=_ROOT, stdout=output, stderr=subprocess.STDOUT
                )

    @property
    def is_background(self) -> bool:
        """Tell whether its tests use neither the live kernel nor a virtual machine."""
        return not (self.is_live or self.is_machine)

    @property
    def is_ready(self) -> bool:
        """Tell whether its tests can start, or never will."""
        return self._bringing is None or self._bringing.poll() is not None

    @property
    def brought(self) -> int:
        """Return how what it needs was brought: 0 is well."""
        return self._bringing.returncode if self._bringing else 0

    def start(self, *, is_first: bool) -> None:
        """Start its tests; with a low priority unless it is the first."""
        self.report.unlink(missing_ok=True)
        self.watched = Watched(self.report, self.environment)
        with self.output.open("ab") as output:
            priority = () if is_first else _LOW if self.is_machine else _LOWEST
            self.watched.start([*priority, *self.command], _ROOT, output.fileno())

    def end(self) -> None:
        """Let it clean up, and wait for that; print the end of what it printed."""
        if self._bringing and self._bringing.poll() is None:
            self._bringing.terminate()
            self._bringing.wait()
        if self.watched:
            self.watched.end()
            last = self.output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
            print(f"\n-- {self.name}, interrupted", *last, sep="\n", flush=True)

    @property
    def progress(self) -> str:
        """Return how much of it has run, and which test runs, where it says so."""
        printed = self.output.read_bytes() if self.output.exists() else b""
        percents = [b"0", *_PERCENT.findall(printed)]
        test = _RUNNING.search(printed)
        return f"{int(percents[-1])} % {test[1].decode() if test else ''}".rstrip()


def run(lanes: Sequence[Lane], ended: Callable[[Lane, int], None], when_only_live: Callable[[], None]) -> None:
    """Run all; `ended` gets each with its exit code, `when_only_live` is called when only live ones are left."""
    waiting, running = list(lanes), list[Lane]()
    progress = _Progress()
    are_only_live = False
    for lane in lanes:
        lane.bring()
    try:
        while waiting or running:
            for lane in [lane for lane in running if lane.watched and lane.watched.has_ended]:
                running.remove(lane)
                progress.clear()
                ended(lane, lane.watched.wait() if lane.watched else 1)
            for lane in list(_next(waiting, running)):
                waiting.remove(lane)
                if lane.brought:
                    ended(lane, lane.brought)
                else:
                    lane.start(is_first=lane.is_live or not any(each.is_live for each in lanes))
                    running.append(lane)
            if not are_only_live and not any(lane.is_background for lane in (*waiting, *running)):
                are_only_live = True
                when_only_live()
            progress.show(running, waiting)
            time.sleep(_POLL_S)
    except (KeyboardInterrupt, SystemExit) as why:  # from the terminal they were interrupted too
        for lane in running:
            if isinstance(why, SystemExit) and lane.watched:
                lane.watched.interrupt()
        for lane in (*running, *waiting):
            lane.end()
        raise


# A live one whenever none runs, one of virtual machines likewise; the others on what CPUs a live one leaves.
def _next(waiting: Sequence[Lane], running: Sequence[Lane]) -> Iterator[Lane]:
    cpus = os.cpu_count() or 1
    has_live = any(lane.is_live for lane in running)
    live = next((lane for lane in waiting if lane.is_live), None) if not has_live else None
    if live and live.is_ready and (cpus > 1 or not running):
        has_live = True
        yield live
    has_machine = any(lane.is_machine for lane in running)
    machine = next((lane for lane in waiting if lane.is_machine), None) if not has_machine else None
    if machine and machine.is_ready and (cpus > 1 or not (running or has_live)):
        yield machine
    free = cpus - has_live - sum(lane.is_background for lane in running)
    yield from [lane for lane in waiting if lane.is_background and lane.is_ready][: max(0, free)]


class _Progress:
    """Prints how far the folders are."""

    def __init__(self) -> None:
        self._began_s = self._printed_s = time.monotonic()
        self._is_terminal = sys.stdout.isatty()

    def show(self, running: Sequence[Lane], waiting: Sequence[Lane]) -> None:
        now_s = time.monotonic()
        if now_s - self._printed_s < (1 if self._is_terminal else _PROGRESS_S):
            return
        self._printed_s = now_s
        parts = [f"{lane.name} {lane.progress}" for lane in running]
        parts += [f"{lane.name} waits for what it needs" for lane in waiting if not lane.is_ready]
        line = f"  {now_s - self._began_s:4.0f} s  {', '.join(parts)}"
        print(f"\r{line[:79]:79}" if self._is_terminal else line, end="" if self._is_terminal else "\n", flush=True)

    def clear(self) -> None:
        """Clear the line: something else is printed."""
        if self._is_terminal:
            print(f"\r{'':79}\r", end="", flush=True)
