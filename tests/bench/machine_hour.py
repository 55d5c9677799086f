"""An hour of a real machine, second by second, as a node with 110 pods.

Recorded on a machine with two CPUs that compiled, ran tests and emulated other machines: of each session and program
the CPU time and the resident memory of its processes, by /proc/PID/stat, once a second. A pod is a place at which
programs run, as a build agent is: 37 of the hour itself and as many of 20 and of 40 minutes later, but the last.

`python -m tests.bench.machine_hour FILE [SECONDS]` records another one.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from koordebpf.state.series import kinds
from koordebpf.state.series.kinds import SeriesKey
from koordebpf.units import GIB
from tests.bench.seeded_hour import PODS, PlayedPod

RECORDED = Path(__file__).with_name("machine_hour.json.gz")
_APART_S = 1200
_SHIFTS, _PLACES = 3, 37

_Moment = dict[str, tuple[int, int]]  # program → millicores, KiB


class MachineHour:
    """Plays it from its begin, again and again: `samples(second)` has each value, `pods` stay the same."""

    def __init__(self) -> None:
        with gzip.open(RECORDED) as lines:
            self._moments: list[_Moment] = [json.loads(line) for line in lines]
        self.pods = [_pod(f"p{number:03}") for number in range(PODS)]

    def samples(self, second: int) -> Iterator[tuple[SeriesKey, float]]:
        """Yield the usage of the node, the system and pods."""
        used = [[0, 0] for _ in self.pods]
        for shift in range(_SHIFTS):
            of_then = self._moments[(second + shift * _APART_S) % len(self._moments)]
            for name, (millicpu, kib) in of_then.items():
                place = shift * _PLACES + int(name) % _PLACES
                if place < len(used):
                    used[place][0] += millicpu
                    used[place][1] += kib
        yield (kinds.SYSTEM_CPU,), 0.5
        yield (kinds.SYSTEM_MEMORY,), float(2 * GIB)
        for pod, (millicpu, kib) in zip(self.pods, used, strict=True):
            yield (kinds.POD_CPU, f"uid-{pod.name}"), millicpu / 1000
            yield (kinds.POD_MEMORY, f"uid-{pod.name}"), float(kib << 10)
        yield (kinds.NODE_CPU,), 0.5 + sum(each[0] for each in used) / 1000
        yield (kinds.NODE_MEMORY,), 2 * GIB + float(sum(each[1] for each in used) << 10)


# Each third is a batch pod.
def _pod(name: str) -> PlayedPod:
    is_batch = sum(name.encode()) % 3 == 0
    return PlayedPod(name, *(("BestEffort", 5500) if is_batch else ("Burstable", 9000)))


def record(path: Path, seconds: int) -> None:
    """Record this machine. Programs are numbered: their names are left out."""
    numbers: dict[tuple[str, str], str] = {}
    before, last_s = _ticks(), time.monotonic()
    with gzip.open(path, "wt") as out:
        for second in range(1, seconds + 1):
            time.sleep(max(last_s + 1 - time.monotonic(), 0))
            now_s, now = time.monotonic(), _ticks()
            used: dict[str, list[int]] = {}
            for process, (ticks, pages, program) in now.items():
                name = numbers.setdefault(program, f"{len(numbers)}")
                sums = used.setdefault(name, [0, 0])
                gained = ticks - before.get(process, (0, 0, program))[0] if second > 1 else 0
                sums[0] += round(gained / os.sysconf("SC_CLK_TCK") / (now_s - last_s) * 1000)
                sums[1] += pages * os.sysconf("SC_PAGE_SIZE") >> 10
            out.write(json.dumps(used, separators=(",", ":")) + "\n")
            before, last_s = now, now_s


# PID and start time → CPU ticks, resident pages, session and program.
def _ticks() -> dict[tuple[str, str], tuple[int, int, tuple[str, str]]]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if fields[21] != "0":  # kernel threads have no memory
            program = fields[3], name.partition("(")[2]
            found[path.parent.name, fields[19]] = int(fields[11]) + int(fields[12]), int(fields[21]), program
    return found


if __name__ == "__main__":
    record(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3600)
