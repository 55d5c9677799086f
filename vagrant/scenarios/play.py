"""One run of a scenario: a node made of a cgroup, the pods in it, and the real agent that protects it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from koordebpf.demo.node import DemoNode, demo_node
from koordebpf.demo.story import Child
from koordebpf.errors import SupportError
from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.units import MIB, format_bytes
from vagrant.scenarios.cpu import CpuLimits
from vagrant.scenarios.disk import Disk
from vagrant.scenarios.scenario import Expected, Felt, Pod, Scenario, script

# Set where a scenario may do as it likes with the whole machine.
OWN_MACHINE = "KOORDEBPF_OWN_MACHINE"
_MOST_BYTES = 512 * MIB
_LEAST_BYTES = 192 * MIB
_STEP_BYTES = 64 * MIB
_LOADS = Path(__file__).parents[2] / "tests" / "workloads" / "build"
_THRESHOLD = {"enable": True, "memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 75}
_FULL_PERCENT = 95
# How long something may take at most. Why so long: an emulated machine needs 20 s to load the programs.
_START_S = 90.0
_SAID_S = 120.0
_FELT_S = 180.0
_LOOK_S = 300.0
# A process joins its cgroup before it is anything else; it ends with the runner, however that ends. On a machine of few
# CPUs what watches it comes first: a scenario is about memory, and lasts as long as that takes to start.
_IN_CGROUP = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", 'echo $$ >"$1"; shift; exec nice "$@"', "sh")

Say = Callable[[str], None]


def play(name: str, scenario: Scenario, say: Say) -> bool:
    """Play a scenario and say what happens; return whether it went as expected. Nothing of it is left.

    Raises:  SupportError: it cannot run on this machine, or the agent did not start.
    """
    if os.geteuid() != 0:
        raise SupportError("scenarios", "they make cgroups and load programs into the kernel", "Run it as root")
    if scenario.needs_own_machine and OWN_MACHINE not in os.environ:
        raise SupportError(
            name,
            "it fills the memory of the whole machine and changes settings of its kernel",
            f"Set {OWN_MACHINE}=1 on a machine that is there for nothing else",
        )
    if scenario.needs_swap and len(Path("/proc/swaps").read_text().splitlines()) < 2:
        raise SupportError(name, "this machine has no swap", "vagrant/provision/swap.sh or zram.sh gives it some")
    if not (_LOADS / "hog").exists():
        raise SupportError(name, f"{_LOADS} holds no programs", "Run make workloads")
    if scenario.needs_v2 and find_memory_hierarchy().version == 1:
        raise SupportError(name, "this machine has cgroup v1", "Boot with systemd.unified_cgroup_hierarchy=1")
    if scenario.needs_dead_man and not (found := support_of_dead_man()).works:
        raise SupportError(name, found.reason, found.remedy)
    felt = scenario.felt
    is_well = _play_half(name, scenario, say) if felt is None else _play_both(name, scenario, felt, say)
    say(f"{name}: {'as expected' if is_well else 'NOT as expected'}\n")
    return is_well


# The same pods without the strategy, and with it.
def _play_both(name: str, scenario: Scenario, felt: Felt, say: Say) -> bool:
    say(f"{name}: at first without it")
    without = msgspec.structs.replace(scenario, config=felt.without or scenario.config, expects=())
    first, second = Half("before"), Half("after")
    if not _play_half(name, without, say, first):
        return False
    say(f"{name}: and now with it")
    if not _play_half(name, scenario, say, second):
        return False
    before, after = statistics.median(first.felt), statistics.median(second.felt)
    is_better = is_felt(before, after, felt.factor)
    say(
        f"  felt by the pod {felt.by}: {before:g} {felt.unit} without it, {after:g} {felt.unit} with it, median of "
        f"{felt.times} each; {'' if is_better else 'NOT '}better by {felt.factor:g} times"
    )
    return is_better


def is_felt(before: float, after: float, factor: float) -> bool:
    """Tell whether a number is so many times as high before: where both are 0, it is not."""
    return before > after and before >= factor * after


class Half:
    """One of the two times that a scenario is played. `felt`: the numbers that its pod printed.

    Args:
        name: what scripts get as HALF: `before` or `after`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.felt: list[float] = []


def _play_half(name: str, scenario: Scenario, say: Say, half: Half | None = None) -> bool:
    hierarchy = find_memory_hierarchy()
    with (
        demo_node(hierarchy.mount_point, hierarchy.version, _node_bytes(scenario)) as made,
        contextlib.ExitStack() as stack,
    ):
        return _Run(name, scenario, made, say, stack, half or Half("after")).run()


def is_expected(expected: Expected, version: int) -> bool:
    """Tell whether a machine with this version of cgroups says it."""
    return version == 2 or not expected.on_v2


# A cgroup that may have all memory of the machine is never at its limit.
def _node_bytes(scenario: Scenario) -> int:
    with Meminfo() as meminfo:
        found = meminfo.read()
    if scenario.needs_own_machine:
        return found.mem_total_bytes
    available = found.mem_available_bytes
    size = min(_MOST_BYTES, available // 2 // _STEP_BYTES * _STEP_BYTES)
    if size < _LEAST_BYTES:
        raise SupportError(
            "scenarios",
            f"{format_bytes(available)} of memory are available, they need {format_bytes(2 * _LEAST_BYTES)}",
            "End something else first",
        )
    return size


class _Run:
    # One run: its processes, and what was said so far.
    def __init__(
        self, name: str, scenario: Scenario, made: DemoNode, say: Say, stack: contextlib.ExitStack, half: Half
    ) -> None:
        self._name = name
        self._half = half
        self._scenario = scenario
        self._node, self._files, self._run_dir = made
        self._say_line = say
        self._stack = stack
        self._log: list[str] = []
        self._looked: dict[str, str] = {}  # what commands said last
        self._started_s = time.monotonic()
        (self._files / "manifests").mkdir()
        self._disk = self._open_disk()
        has_limits = any(pod.cpu_millicpu for pod in scenario.pods.values())
        self._cpu = stack.enter_context(CpuLimits(made)) if has_limits else None
        self._joins: dict[Path, list[Path]] = {}  # of a container: what a process writes itself to beside memory's

    def run(self) -> bool:
        self._say_line(f"{self._name}: {self._scenario.title}")
        node = "this machine" if self._scenario.needs_own_machine else "a cgroup"
        self._say_line(f"  the node: {node} of {format_bytes(self._node.limit_bytes)}, {self._node.path}")
        containers = {pod: self._make_pod(pod) for pod in self._scenario.pods}
        self._write_manifests()
        self._start_agent()
        for pod, directory in containers.items():
            self._say(f"{pod} begins: {self._scenario.pods[pod].runs}")
            self._start(self._scenario.pods[pod].runs, directory, pod)
        if self._scenario.on_node:
            self._say(f"on the node: {self._scenario.on_node}")
            self._start(self._scenario.on_node, None)
        is_ready = not self._scenario.fills or self._becomes_full()
        if (felt := self._scenario.felt) is not None:
            is_ready &= self._is_printed(felt)
        return self._judge(is_ready)

    def _say(self, text: str) -> None:
        self._say_line(f"  {time.monotonic() - self._started_s:6.2f}  {text}")

    def _open_disk(self) -> Disk | None:
        if self._scenario.disk_mib is None:
            return None
        disk = Disk(self._files, self._scenario.disk_mib, self._node.path, find_memory_hierarchy().mount_point)
        self._stack.callback(disk.close)
        return disk

    def _make_pod(self, name: str) -> Path:
        pod = self._scenario.pods[name]
        limit = None if pod.limit_percent is None else self._node.limit_bytes * pod.limit_percent // 100
        (container,) = self._node.add_pod(name, be=pod.qos == "BE", priority=pod.priority, limit_bytes=limit)
        if pod.batch_percent is not None:
            written = self._node.pods[-1]
            written["metadata"]["labels"]["koordinator.sh/eviction-enabled"] = "true"
            asked = {"kubernetes.io/batch-memory": str(self._percent(pod.batch_percent))}
            written["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
        self._joins[container] = self._give(pod, container)
        return container

    # What a pod has beside memory of the node.
    def _give(self, pod: Pod, container: Path) -> list[Path]:
        main = self._node.pods[-1]["spec"]["containers"][0]
        joins = [self._disk.join(container)] if self._disk is not None else []
        if pod.request_percent is not None:
            main["resources"] = {"requests": {"memory": str(self._percent(pod.request_percent))}}
        if self._cpu is not None and pod.cpu_millicpu is not None:
            cpu = {"cpu": f"{pod.cpu_millicpu}m"}
            main["resources"] = {"requests": cpu, "limits": cpu}
            joins += self._cpu.limit(container, pod.cpu_millicpu)
        return joins

    def _percent(self, percent: int) -> int:
        return self._node.limit_bytes * percent // 100

    # The Node in a file of its own: that is what a scenario's script may change.
    def _write_manifests(self) -> None:
        strategy = {**_THRESHOLD, **self._scenario.threshold}
        more = json.dumps(self._scenario.slo).replace("$DISK", self._disk.path if self._disk else "")
        slo = {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeSLO",
            "metadata": {"name": "node"},
            "spec": {"resourceUsedThresholdWithBE": strategy, **json.loads(more)},
        }
        self._write("pods.json", {"apiVersion": "v1", "kind": "List", "items": [*self._node.pods, slo]})
        if self._scenario.batch_percent is not None:
            allocatable = {"kubernetes.io/batch-memory": str(self._percent(self._scenario.batch_percent))}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}
            self._write("node.json", {**node, "status": {"allocatable": allocatable}})

    def _write(self, name: str, content: dict[str, Any]) -> None:
        (self._files / "manifests" / name).write_text(json.dumps(content))

    def _start_agent(self) -> None:
        config = self._scenario.config
        configured = ["--config", str(script(self._name, config))] if config is not None else []
        self._agent = self._stack.enter_context(
            Child(
                "koordebpf", "run", *self._places(), "--executor", "cgroup", "--enforce", "--listen", "",
                "--run-dir", str(self._run_dir), "--recorder-folder", "none", "--feature-gates", "BECPUSuppress=false",
                *configured, *self._scenario.options, end_signal=signal.SIGTERM,
            )
        )  # fmt: skip
        # A script may have stopped it.
        self._stack.callback(self._agent.resume)
        if not self._wait_for_line(" I watching ", _START_S):
            raise SupportError(
                "agent", "; ".join(self._log) or "it said nothing", "koordebpf doctor shows what works on this host"
            )

    def _places(self) -> list[str]:
        option, path = "--node-cgroup", str(self._node.path)
        if self._scenario.needs_own_machine:
            option, path = "--cgroup-root", f"/{self._node.path.name}"
        return ["--pods", str(self._files / "manifests"), option, path]

    # A script without a container runs on the node.
    def _start(self, runs: str, container: Path | None, pod: str = "") -> None:
        joins = [container / "cgroup.procs", *self._joins.get(container, ())] if container else [Path("/dev/null")]
        environment = os.environ | {
            "NODE_MIB": str(self._node.limit_bytes // MIB),
            "NODE_FILE": str(self._files / "manifests" / "node.json"),
            "LOADS": str(_LOADS),
            "HALF": self._half.name,
            "NODE_CGROUP": str(self._node.path),
            "AGENT_PID": str(self._agent.pid),
            **({"DISK": self._disk.path} if self._disk else {}),
        }
        command = [str(script(self._name, runs))]
        for procs in joins:
            command = [*_IN_CGROUP, str(procs), *command]
        with self._printed(pod).open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, env=environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    # The file with what a pod's script prints; that of a script on the node is "".
    def _printed(self, pod: str) -> Path:
        return self._files / f"printed-{pod}"

    def _becomes_full(self) -> bool:
        until = time.monotonic() + _SAID_S
        while (percent := self._node.usage_bytes() * 100 // self._node.limit_bytes) < _FULL_PERCENT:
            if time.monotonic() > until:
                break
            self._read_agent()
        self._say(f"the node holds {percent} % of its memory")
        return percent >= _FULL_PERCENT

    # Waits for the numbers of the pod that feels it.
    def _is_printed(self, felt: Felt) -> bool:
        until = time.monotonic() + _FELT_S
        while len(found := re.findall(felt.says, self._printed(felt.by).read_text(), re.MULTILINE)) < felt.times:
            if self._agent.exit_code is not None or time.monotonic() > until:
                self._say_line(f"  NOT SAID by the pod {felt.by} {felt.times} times: {felt.says}")
                return False
            self._read_agent()
        self._half.felt += map(float, found[: felt.times])
        self._say(f"{felt.by} felt, {felt.unit}: {', '.join(found[: felt.times])}")
        return True

    # A tenth of a second's worth of what the agent says.
    def _read_agent(self) -> None:
        select.select([self._agent.err], [], [], 0.1)
        for line in self._agent.err.read():
            self._log.append(line.decode(errors="replace"))
            self._say(f"koordebpf: {self._log[-1].split(' ', 2)[-1]}")

    def _wait_for_line(self, pattern: str, seconds: float) -> str | None:
        until = time.monotonic() + seconds
        while True:
            if found := next(filter(None, (re.search(pattern, line) for line in self._log)), None):
                return found[0]
            if self._agent.exit_code is not None or time.monotonic() > until:
                return None
            self._read_agent()

    def _judge(self, is_ready: bool) -> bool:
        lines = [(each, self._find(each)) for each in self._scenario.expects if is_expected(each, self._node.version)]
        self._read_agent()
        said = [line for line in self._log if any(re.search(pattern, line) for pattern in self._scenario.never)]
        # Without what the scenario is about the kernel may be left to help itself.
        oom_kills = 0 if self._half.name == "before" else self._node.oom_kills() or 0
        is_well = is_ready and not said and not oom_kills and self._agent.exit_code is None
        is_well &= all(found for _, found in lines)
        for each, found in lines:
            self._say_line(f"  {'said' if found else 'NOT SAID'} by {self._who(each)}: {found or each.says}")
        for line in said:
            self._say_line(f"  SAID, and not to be: {line}")
        if oom_kills:
            self._say_line(f"  the kernel killed {oom_kills} processes because memory ran out")
        if self._agent.exit_code is not None:
            self._say_line(f"  the agent ended with exit code {self._agent.exit_code}")
        return is_well

    def _who(self, expected: Expected) -> str:
        return f"the pod {expected.by}" if expected.by in self._scenario.pods else f"koordebpf {expected.by}"

    # What was said of it; None: nothing in time.
    def _find(self, expected: Expected) -> str | None:
        if expected.by == "run":
            return self._wait_for_line(expected.says, _SAID_S)
        until = time.monotonic() + _SAID_S
        # One answer may have all that is expected of a command.
        while not (found := re.search(expected.says, self._looked.get(expected.by, ""), re.MULTILINE)):
            if expected.by in self._looked and time.monotonic() > until:
                self._say_line(f"  koordebpf {expected.by} said in the end:\n{self._looked[expected.by]}")
                return None
            self._looked[expected.by] = self._look(expected.by)
        return found[0]

    # What a person would type, while the agent runs.
    def _look(self, command: str) -> str:
        self._read_agent()
        if command in self._scenario.pods:
            return self._printed(command).read_text()
        name, *options = command.split()
        if name != "plan":
            return self._koordebpf(name, *options, *self._places())
        frame = self._koordebpf("top", "--frame", *self._places())
        return self._koordebpf("plan", "-", *options, given=frame)

    def _koordebpf(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "koordebpf", *arguments],
            input=given, capture_output=True, text=True, check=False, timeout=_LOOK_S,
        )  # fmt: skip
        return done.stdout + done.stderr
