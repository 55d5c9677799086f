"""Minutes of `koordebpf run --enforce` on a busy node: it evicts, and must not grow. `make soak`.

    python -m tests.host.soak --minutes 10 [--late] [--kubepods]

A node cgroup of 768 MiB, in which hogs grow over the threshold and are evicted, a pod thrashes in its own limit, the
whole node reclaims, pods come and end, and the file source is rewritten each second. Every ten seconds one line: RSS,
fds, threads and CPU of the agent. Exit code 1 if its memory grew, or its fds or threads, after the first two minutes,
if an eviction failed, if less than half of the crossings led to one, or if the dead man's switch, which counts, fired.

With `--late` the agent is stopped for two seconds at random moments at which the node is far below its threshold, while
page cache floods the node or a pod thrashes in its own limit. A best-effort pod holds memory, so that there is a
victim. Exit code 1 also if the switch was never armed meanwhile, had no late stall, or spared no pod: it shows nothing.
With `--kubepods` it is kubepods that has the limit, and the node a little more, which its pods never meet.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.bench.figure import percentile
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import BUILD, Hog, Holder
from tests.support.nodes import MIB, NodeCgroup

NODE_MIB = 768
STEADY_PODS = 30
PASSING_PODS = 10
WARM_S = 120
ENFORCE = ("--enforce", "--executor", "cgroup", "--evictions-per-minute", "1000")
# On kernels that have it: an agent that runs beside a storm is never late enough.
CONFIG = """\
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
deadMan: {action: count}
"""
MORE_MIB = 32  # than kubepods, with `--kubepods`
HOGS_MIB = (360, 320)  # over the threshold, up to 88 % of the node
RESIDENT_MIB = 250  # 33 % of the node, with `--late`
LATE_HOGS_MIB = (220, 200)  # the same 88 % with it
STOP_S = 2.0
CALM_MIB = NODE_MIB // 2  # in use at most when the agent is stopped; the threshold is 70 %
SAMPLE_S = 10
MAX_GROWTH_BYTES = 1 * MIB  # between the medians of the first and the last third


def run(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a load in the container that is the last argument."""
    *given, container = arguments
    command = [str(BUILD / program), *map(str, given), f"{container}/cgroup.procs"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


class Load:
    """What happens on the node: one step a second."""

    def __init__(self, node: NodeCgroup, manifest: Path, seed: int, hogs_mib: tuple[int, int] = HOGS_MIB) -> None:
        self._node = node
        self._hogs_mib = hogs_mib
        self._manifest = manifest
        self._random = random.Random(seed)
        self._hogs: list[Hog] = []
        self._thrash: subprocess.Popen[bytes] | None = None
        self._born = 0
        self._passing: list[str] = []
        self._containers = {f"hog-{n}": node.add_pod(f"hog-{n}", priority=5000 + n)[0] for n in range(2)}
        (self._own_limit,) = node.add_pod("own-limit", limit_bytes=16 * MIB)
        for n in range(STEADY_PODS):
            node.add_pod(f"steady-{n}", be=n % 2 == 0)
        self.crossings = self.created = self.writes = self.reclaims = 0
        self._write()

    def step(self, second: int) -> None:
        self._end_hogs()
        if second % 10 == 0:
            for name, mib in zip(self._containers, self._hogs_mib, strict=True):
                self._grow(name, mib)
            self.crossings += 1
        if second % 20 == 15:  # the node's own limit: reclaim at it is "global"
            self._read_files()
        if second % 15 == 5 and (self._thrash is None or self._thrash.poll() is not None):
            self._thrash = run("thrash", "/var/tmp", "48", "2", self._own_limit)
        self._come_and_go()
        self._write()

    def _grow(self, name: str, mib: int) -> None:
        self._hogs.append(Hog(self._containers[name], mib, rate_mib_s=self._random.choice([100, 200, 400]), hold_s=1))

    def _end_hogs(self) -> None:
        for hog in [hog for hog in self._hogs if hog.process.poll() is not None]:
            hog.stop()
            self._hogs.remove(hog)

    def _read_files(self) -> None:
        run("cacheflood", "/var/tmp", "900", "2", self._containers["hog-0"]).wait()
        self.reclaims += 1

    def _come_and_go(self) -> None:
        if len(self._passing) >= PASSING_PODS:
            name = self._passing.pop(0)
            path = self._node.pod_paths.pop(name)
            for child in path.iterdir():
                if child.is_dir():
                    child.rmdir()
            path.rmdir()
            self._node.pods[:] = [pod for pod in self._node.pods if pod["metadata"]["name"] != name]
        self._born += 1
        self._passing.append(f"passing-{self._born}")
        self._node.add_pod(self._passing[-1], containers=self._random.randint(1, 3))
        self.created += 1

    def _write(self) -> None:
        self._node.write_manifest(self._manifest, threshold_percent=self._random.choice([70, 72]), lower_percent=65)
        self.writes += 1

    @property
    def is_calm(self) -> bool:
        """Whether no hog runs."""
        self._end_hogs()
        return not self._hogs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hog in self._hogs:
            hog.stop()
        if self._thrash is not None:
            self._thrash.kill()
            self._thrash.wait()


class Stops:
    """Stops the agent for `STOP_S` when no hog runs: once in ten seconds, at a random moment."""

    def __init__(self, load: Load, node: NodeCgroup, agent: LiveAgent, seed: int) -> None:
        self._load, self._node, self._agent = load, node, agent
        self._random = random.Random(seed)
        # Of the pods that hold memory it is evicted last.
        (self._resident,) = node.add_pod("resident", priority=5999)
        (self._flooded,) = node.add_pod("flooded", be=False)
        (self._own_limit,) = node.add_pod("own-limit-late", limit_bytes=16 * MIB)
        self._holder = Holder(self._resident, "anon", RESIDENT_MIB, "--hold", "600")
        self._loads: list[subprocess.Popen[bytes]] = []
        self._at = 5
        self.stops = self.armed = self.floods = self.passed_over = self.held_again = 0
        self.most_in_use = 0.0

    def step(self, second: int) -> None:
        if second % 10 == 3:
            self._at = self._random.choice([4, 5, 6])
        if second % 10 == self._at:
            self._stop()

    def _stop(self) -> None:
        if self._holder.process.poll() is not None:
            self._holder = Holder(self._resident, "anon", RESIDENT_MIB, "--hold", "600")
            self.held_again += 1
        self._loads = [each for each in self._loads if each.poll() is None]
        if not self._load.is_calm or self._in_use_mib() > CALM_MIB or self._loads:
            self.passed_over += 1
            return
        self.armed += self._agent.metric("koordebpf_dead_man_armed") == 1
        self._loads.append(run("thrash", "/var/tmp", "48", "3", self._own_limit))
        if self._random.random() < 0.75:
            self._loads.append(run("cacheflood", "/var/tmp", "900", "4", self._flooded))
            self.floods += 1
        time.sleep(self._random.uniform(0, 1))
        self._agent.process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_S)
        in_use_mib = self._in_use_mib()
        self._agent.process.send_signal(signal.SIGCONT)
        self.most_in_use = max(self.most_in_use, in_use_mib)
        self.stops += 1

    # As the kernel has it now: without what is easily reclaimed.
    def _in_use_mib(self) -> float:
        stat = dict(line.split() for line in (self._node.path / "memory.stat").read_text().splitlines())
        prefix = "total_" if self._node.version == 1 else ""
        cache = sum(int(stat[f"{prefix}{name}"]) for name in ("inactive_file", "active_file"))
        return (self._node.usage_bytes() - cache) / MIB

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.stop()
        for each in self._loads:
            each.kill()
            each.wait()

    def concluded(self, late: float, spared: float) -> list[str]:
        """Print what was done, return why it shows nothing; nothing is good."""
        print(
            f"agent stopped {self.stops} times for {STOP_S:g} s, {self.armed} times armed, {self.floods} times with a"
            f" flood; {self.most_in_use:.0f} MiB in use at most at a stop's end; passed over {self.passed_over}"
            f" times; held again {self.held_again} times"
        )
        wrong = [] if self.armed else ["the dead man's switch was never armed when the agent was stopped"]
        wrong += [] if late else ["no task stalled while the heartbeat was late"]
        return wrong + ([] if spared else ["no pod was spared"])


def sample(process: psutil.Process) -> dict[str, Any]:
    with process.oneshot():
        cpu = process.cpu_times()
        return {
            "rss": process.memory_info().rss,
            "fds": process.num_fds(),
            "threads": process.num_threads(),
            "cpu_s": cpu.user + cpu.system,
        }


def verdict(samples: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong; nothing is good."""
    third = max(len(samples) // 3, 1)
    first, last = samples[:third], samples[-third:]
    wrong = []
    grown = statistics.median(s["rss"] for s in last) - statistics.median(s["rss"] for s in first)
    if grown > MAX_GROWTH_BYTES:
        wrong.append(f"its memory grew by {grown / MIB:.1f} MiB")
    for what in ("fds", "threads"):  # one that is open for a moment is in few samples
        if (low := statistics.median_high(s[what] for s in first)) < (high := statistics.median(s[what] for s in last)):
            wrong.append(f"its {what} grew from {low} to {high:g}")
    return wrong


def concluded(agent: LiveAgent, load: Load, samples: list[dict[str, float]], stops: Stops | None) -> list[str]:
    """End the agent, print what came of it all, return what is wrong; nothing is good."""
    outcomes = [(plan, outcome) for plan in agent.plans() for outcome in plan["outcomes"]]
    kinds = Counter(outcome["result"] for _, outcome in outcomes)
    # To who is gone none is sent.
    sent = [(plan, outcome) for plan, outcome in outcomes if outcome["sent_ns"] is not None]
    late_ms = [(outcome["sent_ns"] - plan["decided_ns"]) / 1e6 for plan, outcome in sent]
    records = agent.metric("koordebpf_records_total")
    fired, late, spared = (
        agent.metric(f"koordebpf_dead_man_{name}")
        for name in ('fired_total{mode="count"}', "late_stalls_total", "spared_total")
    )
    code = agent.stop()
    print(
        f"{load.crossings} crossings, {load.reclaims} floods of page cache, {load.created} pods created,"
        f" {load.writes} rewrites; {records:.0f} kernel records, {len(outcomes)} evictions: {dict(kinds)}"
    )
    if late_ms:
        print(f"decision to kill: p50 {percentile(late_ms, 0.5):.2f} ms, p99 {percentile(late_ms, 0.99):.2f} ms")
    print(f"dead man's switch: fired {fired:.0f}, late stalls {late:.0f}, spared {spared:.0f}")
    wrong = verdict(samples) if samples else [f"no sample after {WARM_S} s: give it more minutes"]
    wrong += [f"exit code {code}"] if code else []
    wrong += [f"the dead man's switch fired {fired:.0f} times while the agent ran"] if fired else []
    wrong += stops.concluded(late, spared) if stops else []
    wrong += ["a traceback in its log"] if "Traceback" in agent.log else []
    expected = {"done", "gone", "held"} if stops else {"done", "gone"}  # what is old after a stop holds an eviction
    wrong += [] if set(kinds) <= expected else [f"outcomes {dict(kinds)}"]
    wrong += [] if kinds["done"] * 2 >= load.crossings else [f"{kinds['done']} evictions only"]
    return wrong


def soak(minutes: float, seed: int, *, late: bool, at_kubepods: bool) -> int:
    hierarchy = find_memory_hierarchy()
    with (
        tempfile.TemporaryDirectory() as folder,
        NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node,
    ):
        if at_kubepods:
            node.set_limit(node.path, (NODE_MIB + MORE_MIB) * MIB)
            node.set_limit(node.path / "kubepods", NODE_MIB * MIB)
        manifest, config = Path(folder) / "pods.json", Path(folder) / "config.yaml"
        config.write_text(CONFIG)
        with (
            Load(node, manifest, seed, LATE_HOGS_MIB if late else HOGS_MIB) as load,
            LiveAgent(
                Path(folder),
                *("--config", config, "--pods", manifest, "--node-cgroup", node.path),
                *ENFORCE,
                keeps_frames=False,
            ) as agent,
            contextlib.ExitStack() as stack,
        ):
            agent.becomes_ready()
            stops = stack.enter_context(Stops(load, node, agent, seed)) if late else None
            process = psutil.Process(agent.process.pid)
            started_s, samples, cpu_s = time.monotonic(), [], sample(process)["cpu_s"]
            print("   s  RSS MiB  fds  threads  CPU %  ticks  failed  lost", flush=True)
            for second in range(int(minutes * 60)):
                load.step(second)
                if stops:
                    stops.step(second)
                time.sleep(max(0.0, started_s + second + 1 - time.monotonic()))
                if (second + 1) % SAMPLE_S:
                    continue
                now = sample(process)
                failed, lost = (
                    agent.metric("koordebpf_failed_ticks_total"),
                    agent.metric("koordebpf_lost_records_total"),
                )
                ticks = agent.metric("koordebpf_ticks_total")
                percent = (now["cpu_s"] - cpu_s) / SAMPLE_S * 100
                cpu_s = now["cpu_s"]
                print(
                    f"{second + 1:4d}  {now['rss'] / MIB:7.1f}  {now['fds']:3d}  {now['threads']:7d}  {percent:5.1f}"
                    f"  {ticks:5.0f}  {failed:6.0f}  {lost:4.0f}",
                    flush=True,
                )
                if second + 1 > WARM_S:
                    samples.append(now)
            wrong = concluded(agent, load, samples, stops)
            print("; ".join(wrong) or "it did not grow")
            return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.host.soak", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--late", action="store_true", help="stop the agent for a moment, again and again")
    parser.add_argument("--kubepods", action="store_true", help="kubepods has the limit in place of the node")
    given = parser.parse_args()
    return soak(given.minutes, given.seed, late=given.late, at_kubepods=given.kubepods)


if __name__ == "__main__":
    sys.exit(main())
