"""A node with idle pods and one that grows, and its agent, which takes what is idle or does not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from koordebpf.kernel.host.uncharged import zram_use
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.units import MIB
from tests.bench.steady import cpu_s
from tests.host.live_agent import LiveAgent
from tests.support.nodes import NodeCgroup

_LOADS = Path(__file__).parents[1] / "workloads/build"
NODE_MIB, THRESHOLD_PERCENT = 512, 60  # 307 MiB
IDLE_MIB, CACHE_MIB, WORKS_MIB = 160, 96, 16
RATE_MIB_S, STEP_PERCENT = 4, 10
REST_S = 6.0  # the strategy's interval
_LEAST_TAKEN = MIB
_LOWEST_NICE = 19
_CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates: {{ProactiveReclaim: {gate}}}
strategies: {{proactiveReclaim: {{stepPercent: {step}}}}}
"""
# Anonymous memory of which a third cannot be compressed. A line of input: it uses all of it, and says how long it took.
_HOLDER = """
import mmap, os, sys, time
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
size = int(sys.argv[2]) << 20
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
page = (os.urandom(mmap.PAGESIZE // 3) + bytes(range(256)) * 16)[:mmap.PAGESIZE]
for at in range(0, size, 1 << 20):
    memory[at : at + (1 << 20)] = page * ((1 << 20) // mmap.PAGESIZE)
print("ready", flush=True)
while sys.stdin.readline():
    began = time.monotonic()
    for at in range(0, size, 1 << 20):
        memory[at : at + (1 << 20) : mmap.PAGESIZE]
    print((time.monotonic() - began) * 1000, flush=True)
"""
# Works on its memory five times a second.
_WORKER = """
import mmap, os, sys, time
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
memory = mmap.mmap(-1, int(sys.argv[2]) << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:: mmap.PAGESIZE] = b"1" * (len(memory) // mmap.PAGESIZE)
print("ready", flush=True)
while True:
    memory[:: mmap.PAGESIZE]
    time.sleep(0.2)
"""
_READER = 'echo $$ >"$1"; head -c "$3" /dev/zero >"$2"; sync "$2"; cat "$2" >/dev/null; echo ready; exec sleep 600'


class Half(msgspec.Struct, frozen=True):
    """One half of a pair.

    `evicted`    pods.
    `used_mib`   of the node beside page cache, before the pod grows; `end_mib`: at the end.
    `rates`      MiB taken from both idle pods a second, of each interval in which something was.
    `stalled`    pod → the share of time that it stalled in full, in percent.
    `agent`, `thread` percent of a CPU, in all of that time; `thread` 0: there is none.
    `back_ms`    until the idle pod has used all of its memory again; None: it was evicted.
    """

    evicted: int
    used_mib: float
    end_mib: float
    taken_mib: float
    rates: list[float]
    swapped_mib: float
    zram_mib: float
    stalled: dict[str, float]
    agent: float
    thread: float
    back_ms: float | None


class IdleNode(contextlib.ExitStack):
    """A node of 512 MiB and its agent. `fill` makes its pods, `empty` removes them.

    Args:
        memory_root: of cgroup v2.
        folder: for files, on a disk: page cache is of one.
        is_on: ProactiveReclaim.
    """

    def __init__(self, memory_root: Path, folder: Path, *, is_on: bool) -> None:
        super().__init__()
        folder.mkdir()
        self._folder, self._loads = folder, dict[str, subprocess.Popen[bytes]]()
        self._node = self.enter_context(NodeCgroup(memory_root, 2, NODE_MIB * MIB))
        self.callback(self._end_loads)
        config = folder / "config.yaml"
        config.write_text(_CONFIG.format(gate=str(is_on).lower(), step=STEP_PERCENT))
        given = "--pods", self._manifest(), "--node-cgroup", self._node.path, "--config", config
        arguments = *given, "--executor", "cgroup", "--enforce"
        self._agent = self.enter_context(LiveAgent(folder, *arguments, keeps_frames=False))

    def becomes_ready(self) -> Self:
        """Wait for its agent."""
        self._agent.becomes_ready()
        return self

    def fill(self) -> None:
        """Make pods: one idles with anonymous memory, one with page cache, one is latency-sensitive and works."""
        container = {name: self._node.add_pod(name)[0] for name in ("idle", "cache")}
        container["works"] = self._node.add_pod("works", be=False)[0]
        container["grows"] = self._node.add_pod("grows", priority=5000)[0]
        join = {name: each / "cgroup.procs" for name, each in container.items()}
        self._grows_in = join["grows"]
        self._start("idle", sys.executable, "-S", "-c", _HOLDER, join["idle"], IDLE_MIB)
        self._start("works", sys.executable, "-S", "-c", _WORKER, join["works"], WORKS_MIB)
        file = self._folder / "file"
        self._start("cache", "sh", "-c", _READER, "sh", join["cache"], file, CACHE_MIB * MIB)
        for name, each in self._loads.items():
            assert each.stdout is not None
            if not any(line.startswith(b"ready") for line in iter(each.stdout.readline, b"")):
                raise RuntimeError(f"the load {name} ended before it was ready")
        self._manifest()
        self._watch = _Watch(self._node, self._agent.process.pid)

    def look(self) -> None:
        """Read what the idle pods hold."""
        self._watch.look()

    def grow(self, mib: int) -> None:
        """Let the fourth pod grow."""
        joins = "--cgroup", self._grows_in, "--hold", 600
        self._start("grows", _LOADS / "hog", "--mib", mib, "--rate-mib-s", RATE_MIB_S, *joins)

    def empty(self) -> Half:
        """Return what happened since `fill`; then the idle pod uses its memory again, and all pods are removed."""
        killed = [pod for pod, each in self._loads.items() if each.poll() is not None]
        measured = self._watch.ends(len(killed))
        if "idle" not in killed:
            self._loads["grows"].kill()
            self._loads["grows"].wait()
            measured = msgspec.structs.replace(measured, back_ms=self._used_again_ms())
        self._end_loads()
        (self._folder / "file").unlink()
        for pod in list(self._node.pod_paths):
            self._node.remove_pod(pod)
        self._manifest()
        return measured

    def _manifest(self) -> Path:
        return self._node.write_manifest(self._folder / "pods.json", THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)

    def _start(self, name: str, *command: object) -> None:
        pipe = subprocess.PIPE
        self._loads[name] = subprocess.Popen(list(map(str, command)), stdin=pipe, stdout=pipe)

    def _end_loads(self) -> None:
        for each in self._loads.values():
            each.kill()
            with contextlib.suppress(BrokenPipeError):
                each.communicate()
        self._loads.clear()

    def _used_again_ms(self) -> float:
        idle = self._loads["idle"]
        assert idle.stdin is not None and idle.stdout is not None
        idle.stdin.write(b"\n")
        idle.stdin.flush()
        return float(idle.stdout.readline())


class _Watch:
    """Reads of the pods and the agent, from its making to `ends`."""

    def __init__(self, node: NodeCgroup, pid: int) -> None:
        self._pods, self._pid = node.pod_paths, pid
        self._node, self._used_mib = node, _used_mib(node)
        self._began = time.monotonic()
        self._stalled_us = self._stalls()
        self._cpu_s, self._thread_s = cpu_s(pid), _reclaimer_cpu_s(pid)
        self._held = [(self._began, self._held_bytes())]

    def look(self) -> None:
        self._held.append((time.monotonic(), self._held_bytes()))

    def ends(self, evicted: int) -> Half:
        """Return what happened."""
        elapsed = time.monotonic() - self._began
        stalls = self._stalls()
        (stored, held), swapped = zram_use(), int((self._pods["idle"] / "memory.swap.current").read_text())
        return Half(
            evicted=evicted,
            used_mib=self._used_mib,
            end_mib=_used_mib(self._node),
            taken_mib=(self._held[0][1] - self._held[-1][1]) / MIB,
            rates=list(_rates(self._held)),
            swapped_mib=swapped / MIB,
            zram_mib=held / MIB if stored else 0.0,
            stalled={pod: (us - self._stalled_us[pod]) / elapsed / 1e4 for pod, us in stalls.items()},
            agent=(cpu_s(self._pid) - self._cpu_s) / elapsed * 100,
            thread=(_reclaimer_cpu_s(self._pid) - self._thread_s) / elapsed * 100,
            back_ms=None,
        )

    def _held_bytes(self) -> int:
        return sum(int((self._pods[pod] / "memory.current").read_text()) for pod in ("idle", "cache"))

    def _stalls(self) -> dict[str, int]:
        stalls = {}
        for pod in ("idle", "cache", "works"):
            with contextlib.closing(PressureFile(self._pods[pod] / "memory.pressure")) as file:
                full = file.read().full
                stalls[pod] = 0 if full is None else full.total_us
        return stalls


# As the agent counts it: page cache is not used.
def _used_mib(node: NodeCgroup) -> float:
    rows = dict(line.split() for line in (node.path / "memory.stat").read_text().splitlines())
    return (node.usage_bytes() - sum(int(rows[f"{kind}active_file"]) for kind in ("", "in"))) / MIB


# By interval of the strategy; the ones in which nothing was taken do not count.
def _rates(held: list[tuple[float, int]]) -> Iterator[float]:
    at, before = held[0]
    for now, size in held[1:]:
        if now - at >= REST_S:
            if before - size >= _LEAST_TAKEN:
                yield (before - size) / MIB / (now - at)
            at, before = now, size


# The agent's one thread with the lowest priority; schedstat counts ns.
def _reclaimer_cpu_s(pid: int) -> float:
    total = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if os.getpriority(os.PRIO_PROCESS, int(task.name)) == _LOWEST_NICE:
            total += int((task / "schedstat").read_text().split()[0]) / 1e9
    return total
