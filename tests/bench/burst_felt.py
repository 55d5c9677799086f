"""What a latency-sensitive pod feels in the first 200 ms of its burst, beside best-effort pods that use every CPU."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.burst import burst_node
from tests.bench.figure import figure, percentile
from tests.bench.report import Report
from tests.host.live_agent import LiveAgent
from tests.host.rigs.burst_node import BurstNode
from tests.support.loads.workloads import BUILD

_FIRST_MS, _BURST_MS, _EVERY_MS = 200, 600, 4_000
_PERIOD_US, _WORK_US = 2_000, 800  # on each CPU: two fifths of it
_BLOCKS = 3
# None: no agent.
_WAYS: dict[str, dict[str, object] | None] = {
    "best-effort pods idle": None,
    "no agent": None,
    "a look each second": {"pressure": False, "scheduler": False, "usage": False},
    "by default": {},
}
# As a kubelet weighs them: best-effort pods least, the others by requests of half the node.
_SHARES = {"besteffort": 2, "burstable": 1024}


def burst_felt(report: Report) -> None:
    """Let bursts come in turn with each agent, and with none."""
    bursts = 3 if report.quick else 10
    late: dict[str, list[float]] = {way: [] for way in _WAYS}
    took: dict[str, list[float]] = {way: [] for way in _WAYS}
    with burst_node() as (node, weight):
        for name, shares in _SHARES.items():
            _weigh(node, name, shares)
        for _ in range(_BLOCKS):
            for way, wake in _WAYS.items():
                for late_ms, done_ms in _requests(node, wake, bursts, is_alone=way == "best-effort pods idle"):
                    late[way].append(late_ms)
                    took[way].append(done_ms)
                late_p99, took_p99 = percentile(late[way], 0.99), percentile(took[way], 0.99)
                report.say(f"{way}: p99 {late_p99:.2f} ms late, {took_p99:.2f} until done")
    cpus = len(os.sched_getaffinity(0))
    method = f"first {_FIRST_MS} ms of {bursts * _BLOCKS} bursts on {cpus} CPUs, besteffort cpu.shares 2; {weight}"
    for way in _WAYS:
        report.add(figure(f"request started late, {way}", "ms", late[way], method))
        report.add(figure(f"  due → done ({_WORK_US / 1000} ms of work)", "ms", took[way], method))


def _weigh(node: BurstNode, name: str, shares: int) -> None:
    mount = node.hierarchies.mounts["cpu"]
    directory = mount.mount_point / node.hierarchies.relative(node.node.path / "kubepods" / name)
    if mount.version == 1:
        (directory / "cpu.shares").write_text(str(shares))
    else:
        (directory / "cpu.weight").write_text(str(max(shares * 100 // 1024, 1)))


def _requests(
    node: BurstNode, wake: dict[str, object] | None, bursts: int, *, is_alone: bool
) -> list[tuple[float, float]]:
    with ExitStack() as stack:
        if wake is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            agent = stack.enter_context(LiveAgent(folder, *node.arguments(folder, **wake), keeps_frames=False))
            agent.started()
            time.sleep(2)
            stack.callback(agent.stop)
        for worker in () if is_alone else node.best_effort:
            worker.work((bursts + 1) * _EVERY_MS / 1000)
        (container,) = (each for each in node.node.pod_paths["ls"].iterdir() if each.is_dir())
        joins = [str(each / "cgroup.procs") for each in node.hierarchies.everywhere(container)]
        numbers = (_EVERY_MS, _BURST_MS, _FIRST_MS, _PERIOD_US, _WORK_US, len(node.workers), bursts)
        command = [str(BUILD / "requests"), *map(str, numbers), *joins]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [(int(late) / 1000, int(took) / 1000) for late, took in map(str.split, done.stdout.splitlines())]
