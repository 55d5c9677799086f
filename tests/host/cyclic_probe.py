"""What latency-sensitive pods feel of their neighbours: the CPU they get, and how late a process of theirs is woken."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.proc.cpu_usage import CgroupCpu
from koordebpf.units import NS_PER_S
from tests.host.rigs.cgroups import BE_ROOT, CpuNode

LS_ROOT = "kubepods/burstable"
_WAKE_UP = """
import json, signal, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
print("ready", flush=True)
sys.stdin.readline()
late, due = [], time.monotonic_ns()
while not stopped:
    due += 1_000_000
    time.sleep(max(due - time.monotonic_ns(), 0) / 1e9)
    now = time.monotonic_ns()
    late.append((now - due) / 1e6)
    due = max(due, now - 1_000_000)
print(json.dumps(late))
"""


class Felt(msgspec.Struct, frozen=True):
    """The CPU that each kind of pod got over the probe's time, and how late each of its wake-ups was."""

    ls_millicpu: int
    be_millicpu: int
    late_ms: list[float]

    @property
    def be_share(self) -> float:
        """Of what both got."""
        return self.be_millicpu / (self.be_millicpu + self.ls_millicpu)


def felt(
    node: CpuNode, path: str, seconds: float, meanwhile: Callable[[], object], *, cpu_s: float = 0, most_s: float = 60
) -> Felt:
    """Let a process of the latency-sensitive cgroup `path` sleep for a millisecond again and again.

    Args:
        node: with a best-effort and a burstable directory.
        path: of the cgroup.
        seconds: for so long at least.
        meanwhile: called about ten times a second.
        cpu_s: until both kinds got so much CPU time, however little the rest of the machine leaves them.
        most_s: for so long at most.
    """
    command = [sys.executable, "-S", "-c", _WAKE_UP]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe,
        CgroupCpu(find_controllers(), node.path(LS_ROOT)) as ls,
        CgroupCpu(find_controllers(), node.path(BE_ROOT)) as be,
    ):
        assert probe.stdin is not None and probe.stdout is not None
        assert probe.stdout.readline() == "ready\n"
        node.join(path, probe.pid)
        start_ns, ls_ns, be_ns = time.monotonic_ns(), ls.used_ns(), be.used_ns()
        probe.stdin.write("\n")
        probe.stdin.flush()
        while True:
            meanwhile()
            time.sleep(0.1)
            elapsed_ns = time.monotonic_ns() - start_ns
            used_ns = ls.used_ns() - ls_ns + be.used_ns() - be_ns
            if elapsed_ns >= seconds * NS_PER_S and (used_ns >= cpu_s * NS_PER_S or elapsed_ns >= most_s * NS_PER_S):
                break
        ls_ns, be_ns = ls.used_ns() - ls_ns, be.used_ns() - be_ns
        probe.terminate()
        late_ms = json.loads(probe.stdout.read())
    return Felt(ls_ns * 1000 // elapsed_ns, be_ns * 1000 // elapsed_ns, late_ms)
