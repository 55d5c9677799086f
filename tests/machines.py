"""The virtual machines of the matrix beside the folders that run on this machine.

They take minutes of CPU time and are in no hurry, where live tests need little of it, but at once. So while those run
the machines have one CPU, one machine at a time, as processes of the lowest priority. What is left of them afterwards
has every CPU, and a machine runs on each.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.counted import Counted, died
from tests.leftovers import Watched

_ROOT = Path(__file__).resolve().parents[1]
_NICE = 19


class Machines:
    """Machines that run the host tests beside other folders; what they print is kept.

    Args:
        which: words of `python -m tests.vm`: `first`, `all`.
        reports: the folder for their counts and what they print.
    """

    def __init__(self, which: str, reports: Path) -> None:
        self._counts = reports / "vm.json"
        self._output = reports / "vm.txt"
        self._counts.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.vm", *which.split(), "--counts", str(self._counts)]
        self._watched = Watched(reports / "vm.xml")
        environment = os.environ | self._watched.environment
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=_ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        process = psutil.Process(self._process.pid)
        self._cpus = process.cpu_affinity()
        process.cpu_affinity(self._cpus[-1:])
        process.nice(_NICE)

    def end(self) -> None:
        """End them if they have not ended, and print what they printed."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
            print(f"\n-- vm, interrupted\n{self._output.read_text(errors='replace')}", end="", flush=True)

    def counted(self) -> Counted:
        """Wait for them, print what they printed, return their counts."""
        self._use_every_cpu()
        code = self._process.wait()
        print(self._output.read_text(errors="replace"), end="", flush=True)
        try:
            counted = json.loads(self._counts.read_bytes())
        except (OSError, ValueError):
            return died(f"vm: they ended with {code} and no counts")
        left = [f"vm: left behind: {what}" for what in self._watched.left()]
        total = Counted(**counted)
        total.add(Counted(failed=len(left), names=left))
        return total

    # An affinity is a thread's, and QEMU has one for each CPU that it emulates.
    def _use_every_cpu(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    for thread in each.threads():
                        os.sched_setaffinity(thread.id, self._cpus)
