"""Proactive reclaim beside none, in turn: evictions avoided, what it takes and how fast, stalls, and what it costs."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.host.zram import zram_use
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.units import MIB
from tests.bench.figure import Figure, at_least, at_most, figure, percentile
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import cpu_s
from tests.host.live_agent import LiveAgent
from tests.support.nodes import NodeCgroup

_LOADS = Path(__file__).parents[1] / "workloads/build"
_NODE_MIB, _THRESHOLD_PERCENT = 512, 60  # 307 MiB
_IDLE_MIB, _CACHE_MIB, _WORKS_MIB = 160, 96, 16
_GROWS_MIB = (112, 132, 152)  # in turn
_RATE_MIB_S = 4
_IDLE_S, _SETTLES_S = 60.0, 5.0  # a node that is too full evicts within a second
_LOOK_S = 0.5
_REST_S = 6.0  # the strategy's interval
_LEAST_TAKEN = MIB
_LOWEST_NICE = 19
_MOST_STALLED_PERCENT, _MOST_CPU_PERCENT = 0.1, 1.0
_STEP_PERCENT = 10
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


class _Half(msgspec.Struct, frozen=True):
    """One half of a pair.

    `evicted`    pods.
    `used_mib`   of the node beside page cache, before the pod grows.
    `rates`      MiB taken from both idle pods a second, of each interval in which something was.
    `stalled`    pod → the share of time that it stalled in full, in percent.
    `agent`, `thread` percent of a CPU, in all of that time; `thread` 0: there is none.
    `back_ms`    until the idle pod has used all of its memory again; None: it was evicted.
    """

    evicted: int
    used_mib: float
    taken_mib: float
    rates: list[float]
    swapped_mib: float
    zram_mib: float
    stalled: dict[str, float]
    agent: float
    thread: float
    back_ms: float | None


def proactive(report: Report) -> None:
    """Take KOORDEBPF_PAIRS pairs (20)."""
    hierarchy = find_memory_hierarchy()
    if hierarchy.version == 1 or len(Path("/proc/swaps").read_text().splitlines()) < 2:
        raise CannotMeasure("memory.reclaim needs cgroup v2, and idle anonymous memory swap")
    pairs = 2 if report.quick else int(os.environ.get("KOORDEBPF_PAIRS", "20"))
    report.say(f"1 MiB compressed with zlib: {_yardstick_ms():.1f} ms; the same elsewhere says how slow this CPU is")
    found: dict[bool, list[_Half]] = {False: [], True: []}
    try:
        for number in range(pairs):
            for is_on in (False, True):
                half = _half(hierarchy.mount_point, _grows(number), is_on=is_on)
                found[is_on].append(half)
                report.say(f"{_grows(number)} MiB, gate {'on' if is_on else 'off'}: {_said(half)}")
    except (SupportError, OSError) as error:
        raise CannotMeasure(f"needs a memory hierarchy that can be written: {error}") from None
    _add(report, found[False], found[True])


def _grows(pair: int) -> int:
    return _GROWS_MIB[pair % len(_GROWS_MIB)]


def _said(half: _Half) -> str:
    stalled = ", ".join(f"{name} {share:.3f}" for name, share in half.stalled.items())
    back = "" if half.back_ms is None else f", used again in {half.back_ms:.0f} ms"
    return (
        f"{half.evicted} evicted, {half.used_mib:.0f} MiB used before, {half.taken_mib:.0f} taken, "
        f"{half.swapped_mib:.0f} in swap, {half.zram_mib:.1f} in zram{back}; full stall {stalled} %; "
        f"agent {half.agent:.2f}, its reclaimer {half.thread:.2f} % of a CPU"
    )


def _half(memory_root: Path, grows_mib: int, *, is_on: bool) -> _Half:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as name,
        NodeCgroup(memory_root, 2, _NODE_MIB * MIB) as node,
        contextlib.ExitStack() as stack,
    ):
        folder, loads = Path(name), dict[str, subprocess.Popen[bytes]]()
        (idle,), (cache,) = node.add_pod("idle"), node.add_pod("cache")
        (works,), (grows,) = node.add_pod("works", be=False), node.add_pod("grows", priority=5000)
        start = _starter(stack)
        loads["idle"] = start(sys.executable, "-S", "-c", _HOLDER, idle / "cgroup.procs", _IDLE_MIB)
        loads["works"] = start(sys.executable, "-S", "-c", _WORKER, works / "cgroup.procs", _WORKS_MIB)
        loads["cache"] = start("sh", "-c", _READER, "sh", cache / "cgroup.procs", folder / "file", _CACHE_MIB * MIB)
        for each in loads.values():
            _waits_for(each, b"ready")
        manifest, config = folder / "pods.json", folder / "config.yaml"
        node.write_manifest(manifest, _THRESHOLD_PERCENT, _THRESHOLD_PERCENT - 5)
        config.write_text(_CONFIG.format(gate=str(is_on).lower(), step=_STEP_PERCENT))
        given = "--pods", manifest, "--node-cgroup", node.path, "--config", config, "--executor", "cgroup"
        with LiveAgent(folder, *given, "--enforce", keeps_frames=False) as agent:
            agent.becomes_ready()
            watch = _Watch(node, agent.process.pid)
            watch.wait(_IDLE_S)
            joins = "--cgroup", grows / "cgroup.procs", "--hold", 600
            loads["grows"] = start(_LOADS / "hog", "--mib", grows_mib, "--rate-mib-s", _RATE_MIB_S, *joins)
            watch.wait(grows_mib / _RATE_MIB_S + _SETTLES_S)
            killed = [pod for pod, each in loads.items() if each.poll() is not None]
            measured = watch.ends(len(killed))
            agent.stop()
        return measured if "idle" in killed else replace(measured, back_ms=_used_again_ms(loads["idle"]))


def _starter(stack: contextlib.ExitStack) -> Callable[..., subprocess.Popen[bytes]]:
    def start(*command: object) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        started = subprocess.Popen(list(map(str, command)), stdin=pipe, stdout=pipe)
        stack.callback(started.communicate)
        stack.callback(started.kill)
        return started

    return start


def _waits_for(load: subprocess.Popen[bytes], word: bytes) -> None:
    assert load.stdout is not None
    if not any(line.startswith(word) for line in iter(load.stdout.readline, b"")):
        raise RuntimeError(f"{load.args!r} ended before it was {word.decode()}")


def _used_again_ms(idle: subprocess.Popen[bytes]) -> float:
    assert idle.stdin is not None and idle.stdout is not None
    idle.stdin.write(b"\n")
    idle.stdin.flush()
    return float(idle.stdout.readline())


class _Watch:
    """Reads of the pods and the agent, from its making to `ends`."""

    def __init__(self, node: NodeCgroup, pid: int) -> None:
        self._pods, self._pid = node.pod_paths, pid
        self._used_mib = _used_mib(node)
        self._began = time.monotonic()
        self._stalled_us = self._stalls()
        self._cpu_s, self._thread_s = cpu_s(pid), _reclaimer_cpu_s(pid)
        self._held = [(self._began, self._held_bytes())]

    def wait(self, seconds: float) -> None:
        """Look at what the idle pods hold, again and again for so long."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            time.sleep(min(_LOOK_S, until - now))
            self._held.append((time.monotonic(), self._held_bytes()))

    def ends(self, evicted: int) -> _Half:
        """Return what happened."""
        elapsed = time.monotonic() - self._began
        stalls = self._stalls()
        (stored, held), swapped = zram_use(), int((self._pods["idle"] / "memory.swap.current").read_text())
        return _Half(
            evicted=evicted,
            used_mib=self._used_mib,
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
        if now - at >= _REST_S:
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


def _yardstick_ms() -> float:
    text = bytes(range(256)) * 4096
    took = []
    for _ in range(5):
        began = time.perf_counter()
        zlib.compress(text)
        took.append((time.perf_counter() - began) * 1000)
    return min(took)


def _add(report: Report, off: list[_Half], on: list[_Half]) -> None:
    sizes = ", ".join(map(str, _GROWS_MIB))
    method = (
        f"pods idle with {_IDLE_MIB} MiB anonymous and {_CACHE_MIB} MiB page cache, a latency-sensitive one works on "
        f"{_WORKS_MIB}; after {_IDLE_S:g} s one grows {_RATE_MIB_S} MiB/s to {sizes} in turn; "
        f"threshold {_NODE_MIB * _THRESHOLD_PERCENT // 100} MiB; stepPercent {_STEP_PERCENT}"
    )
    both = list(zip(off, on, strict=True))
    crossed = [(number, after) for number, (before, after) in enumerate(both) if before.evicted]
    avoided = [not after.evicted for _, after in crossed]
    row = at_least("evictions avoided, share of those without", "", statistics.fmean(avoided or [0]), 0.5, method)
    report.add(replace(row, n=len(crossed)))
    for mib in _GROWS_MIB:
        of_it = [not after.evicted for number, after in crossed if _grows(number) == mib]
        if of_it:
            report.add(_once(f"… of a pod that grows to {mib} MiB", "", statistics.fmean(of_it), len(of_it)))
    for halves, what in ((off, "gate off"), (on, "gate on")):
        report.add(figure(f"pods evicted, {what}", "pods", [each.evicted for each in halves], "that were killed"))
        for pod, who in (("idle", "idle pod"), ("cache", "page cache's pod"), ("works", "latency-sensitive pod")):
            stalled = [each.stalled[pod] for each in halves]
            most = _MOST_STALLED_PERCENT if what == "gate on" else None
            row = at_most(f"full stall, {who}, {what}", "%", percentile(stalled, 0.5), most, "memory.pressure; median")
            report.add(replace(row, n=len(halves), p99=percentile(stalled, 0.99), worst=max(stalled)))
        report.add(figure(f"the agent, {what}", "%core", [each.agent for each in halves], "in all of that time"))
        if back := [each.back_ms for each in halves if each.back_ms is not None]:
            report.add(figure(f"idle pod uses all of its memory again, {what}", "ms", back, "after the agent's end"))
    thread = [each.thread for each in on]
    row = at_most("the thread that reclaims", "%core", percentile(thread, 0.5), _MOST_CPU_PERCENT, "schedstat; median")
    report.add(replace(row, n=len(on), p99=percentile(thread, 0.99), worst=max(thread)))
    report.add(figure("taken from both idle pods", "MiB", [each.taken_mib for each in on], "memory.current"))
    if rates := [rate for each in on for rate in each.rates]:
        report.add(figure("taken while it trims", "MiB/s", rates, f"by interval of {_REST_S:g} s with ≥ 1 MiB"))
    report.add(figure("of the idle pod in swap", "MiB", [each.swapped_mib for each in on], "memory.swap.current"))
    report.add(figure("zram holds for it", "MiB", [each.zram_mib for each in on], "mm_stat; of a node this counts"))


def _once(name: str, unit: str, value: float, n: int) -> Figure:
    return replace(at_most(name, unit, value, None, "the same"), n=n)
