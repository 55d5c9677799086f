"""A burst of latency-sensitive work until the agent holds best-effort pods to less: by each thing that wakes it."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.proc.psi import NODE_CPU_PRESSURE, PsiTrigger
from koordebpf.store.write_log import WRITE_LINE, AuditedWrite
from tests.bench.figure import figure
from tests.bench.report import CannotMeasure, Report
from tests.host.live_agent import LiveAgent
from tests.host.rigs.burst_node import BurstNode
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

_BLOCKS = 2  # of each in turn, so that a machine that gets busier favours none
_BURST_S = 1.5
_CALM_S = 2.5  # the burst is over and out of every window
_BEFORE_S = 0.5  # best-effort pods are at work before the burst
_GIVE_UP_S = 5.0
_MIN_PERCENT = 40  # of the node that best-effort pods keep, so that they soon have all again
_CALM_US = 120_000  # of 130,000 that are theirs in peace on two CPUs, for each two CPUs

# What wakes → the setting, and what is promised.
_WAYS: dict[str, tuple[dict[str, object], float | None]] = {
    "poll each second": ({"pressure": False, "scheduler": False, "usage": False}, None),
    "pressure trigger": ({"pressure": True, "scheduler": False, "usage": False}, None),
    "scheduler events": ({"pressure": False, "scheduler": True, "usage": False}, 100),
    "usage looks, by default": ({}, 100),
}


def burst(report: Report) -> None:
    """Begin to work beside best-effort pods again and again, with agents that are woken by different things."""
    n = 2 if report.quick else 10
    samples: dict[str, list[float]] = {way: [] for way in _WAYS}
    with burst_node() as (node, weight):
        granted = _granted(node)
        for _ in range(_BLOCKS):
            for way, (wake, _) in _WAYS.items():
                found = bursts(node, wake, n)
                report.say(f"{way}: {' '.join(f'{each:.0f}' for each in found)} ms")
                samples[way] += found
    for way, (_, reach) in _WAYS.items():
        how = f"{granted}; " if way == "pressure trigger" else ""
        method = f"{how}from telling a sleeper to work to the quota's write; {weight}"
        report.add(figure(f"LS burst → BE held, {way}", "ms", samples[way], method, reach_p99=reach))


@contextlib.contextmanager
def burst_node() -> Iterator[tuple[BurstNode, str]]:
    """Yield a node and, in words, the weight that it has among the machine's other loads.

    Raises:  CannotMeasure: its CPUs cannot be limited here.
    """
    hierarchy = find_memory_hierarchy()
    try:
        with (
            NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as cgroup,
            contextlib.closing(BurstNode(cgroup)) as node,
        ):
            # An emulated agent is twenty times as slow, and has such a machine to itself.
            yield node, node.hierarchies.outweigh() if patience(1) == 1 else "emulated"
    except (KeyError, OSError) as error:
        raise CannotMeasure(f"no cpu hierarchy that can be written: {error}") from None


def bursts(node: BurstNode, wake: dict[str, object], n: int, *more: str) -> list[float]:
    """Begin a burst so often, with one agent; return the milliseconds until it held best-effort pods."""
    with TemporaryDirectory() as folder:
        arguments = (*node.arguments(Path(folder), min_percent=_MIN_PERCENT, **wake), *more)
        with LiveAgent(Path(folder), *arguments, keeps_frames=False) as agent:
            samples = []
            for _ in range(n):
                samples.append(_once(node, agent))
                time.sleep(_CALM_S)
            agent.stop()
    return samples


def cuts_of_a_burst(node: BurstNode, wake: dict[str, object], n: int) -> list[list[tuple[float, float]]]:
    """Begin a burst so often, with one agent; return the cuts of each: milliseconds from its begin, and the quota."""
    with TemporaryDirectory() as folder:
        arguments = node.arguments(Path(folder), min_percent=_MIN_PERCENT, **wake)
        with LiveAgent(Path(folder), *arguments, keeps_frames=False) as agent:
            found = []
            for _ in range(n):
                start_s = _begin(node, agent)
                time.sleep(_BURST_S)
                cuts = (_cut(line) for line in agent.audit.read_bytes().splitlines() if WRITE_LINE in line)
                inside = [each for each in cuts if each and start_s < each[0] < start_s + _BURST_S]
                found.append([((at_s - start_s) * 1000, quota) for at_s, quota in inside])
                time.sleep(_CALM_S)
            agent.stop()
    return found


def _once(node: BurstNode, agent: LiveAgent) -> float:
    start_s = _begin(node, agent)
    while time.time() - start_s < _GIVE_UP_S:
        time.sleep(0.05)
        # By the agent's own clock: who waits for it here is kept from the CPU by the burst.
        for line in agent.audit.read_bytes().splitlines():
            if WRITE_LINE in line and (cut := _cut(line)) is not None and cut[0] > start_s:
                return (cut[0] - start_s) * 1000
    return _GIVE_UP_S * 1000  # not at all: it counts as the longest


# Once best-effort pods have their CPU again and work: when it was.
def _begin(node: BurstNode, agent: LiveAgent) -> float:
    deadline = time.monotonic() + patience(30)
    while node.quota_us() < _CALM_US * len(node.workers) // 2:
        if time.monotonic() > deadline:
            raise RuntimeError(f"best-effort pods do not get their CPU back:\n{agent.log}")
        time.sleep(0.05)
    time.sleep(0.5 + random.random())  # any moment of the agent's second
    for worker in node.best_effort:
        worker.work(_BEFORE_S + _BURST_S)
    time.sleep(_BEFORE_S)
    start_s = time.time()
    for worker in node.workers:
        worker.work(_BURST_S)
    return start_s


# When a quota was made smaller, and to what; None: it was not.
def _cut(line: bytes) -> tuple[float, float] | None:
    written = msgspec.json.decode(line, type=AuditedWrite)
    change = written.change
    if change.old is None or change.new is None or _quota_us(change.new) >= _quota_us(change.old):
        return None
    return datetime.fromisoformat(written.time).timestamp(), _quota_us(change.new)


def _quota_us(text: str) -> float:
    number = text.split(maxsplit=1)[0]
    return math.inf if number in ("-1", "max") else int(number)


def _granted(node: BurstNode) -> str:
    is_v1 = node.node.version == 1
    whose = "the machine's" if is_v1 else "the burstable directory's"
    path = NODE_CPU_PRESSURE if is_v1 else node.node.path / "kubepods/burstable/cpu.pressure"
    try:
        with PsiTrigger(path, stall_us=2000) as trigger:
            return f"{whose}, the kernel grants a window of {trigger.window_us // 1000} ms"
    except SupportError as error:
        return f"none is granted ({error.reason}), so it polls"
