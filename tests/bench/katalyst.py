"""Katalyst's eviction manager: from a crossed watermark to the kill, what a round takes, and what the gate costs."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from koordebpf.collect.memory.pressure import PressureFiles
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.cgroup.tables import numa_held
from koordebpf.kube.sources.file import FileSource
from koordebpf.slo.katalyst import QOS_LEVEL
from koordebpf.state.build import view_of_frame
from koordebpf.state.cnr import Cnr
from koordebpf.state.measured import NodeMeasure
from koordebpf.state.pods.requests import RECLAIMED_CPU, RECLAIMED_MEMORY
from koordebpf.strategies.katalyst.decide import GATE, KATALYST_EVICTION
from koordebpf.strategies.katalyst.inner import INNER, InnerSettings
from koordebpf.strategies.katalyst.measure import KatalystMemory
from koordebpf.strategies.katalyst.rounds import ManagerState
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import KatalystMeasured, NumaMemory, SystemMemory
from koordebpf.units import GIB, MIB, PAGE_BYTES
from tests.bench.contenders import THRESHOLD_PERCENT, Koordebpf
from tests.bench.figure import at_most, figure
from tests.bench.nodes import full_node
from tests.bench.reaction import RATES_MIB_S, series, warm
from tests.bench.report import Report
from tests.bench.steady import cpu_s, rollup_mib
from tests.bench.timing import times_ms
from tests.support.agent_process import AgentProcess
from tests.support.values.builders import frame, pod

PODS = 110
_TURNS = 3


class _Katalyst(Koordebpf):
    name = "koordebpf, system-memory-pressure-eviction-plugin"

    def start(self, folder: Path) -> AgentProcess:
        """Start the agent with a watermark, and no threshold of Koordinator's in reach."""
        config = folder / "config.yaml"
        config.write_text(_config(self.node.cgroup.limit_bytes - self.node.threshold_bytes(THRESHOLD_PERCENT)))
        manifest = self.node.cgroup.write_manifest(folder / "pods.json", 90, 85)
        return AgentProcess(self.node.cgroup, manifest, "--config", str(config), audit=folder / "audit.jsonl")


def _config(free_bytes: int) -> str:
    return f"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates: {{BEMemoryEvict: false, {GATE}: true}}
eviction:
  katalyst:
    sockets: ""
    inner:
      systemMemory: {{freeMinimum: {free_bytes}, coolDown: 0s}}
"""


def katalyst(report: Report) -> None:
    """Burst through the watermark, time rounds, then compare agents with the gate on and off."""
    _reaction(report)
    _round(report)
    _cost(report)


def _reaction(report: Report) -> None:
    n = 5 if report.quick else 30
    every: list[float] = []
    with full_node() as node:
        node.cgroup.pods[0]["metadata"].setdefault("annotations", {})[QOS_LEVEL] = "reclaimed_cores"
        warm(node)
        with _Katalyst(node) as contender:
            for rate in RATES_MIB_S:
                every += series(report, contender, rate, n)
            method = contender.method
            report.add(
                figure("watermark crossed → kill, 0.5 to 4 GiB/s", "ms", every, method, reach_p50=10, reach_p99=50)
            )
            for step, samples in contender.steps.items():
                report.add(figure(f"  of it {step}", "ms", samples, "from the audit lines"))


def _round(report: Report) -> None:
    n = 100 if report.quick else 1000
    pods = [pod(f"pod-{number}", anon=20, shmem=0) for number in range(PODS)]
    held = {each.pod.uid: 20 * MIB for each in pods}
    measured = KatalystMeasured(
        SystemMemory(64 * GIB, 20 * GIB, 40 * GIB, 10, 3.0),
        tuple(NumaMemory(number, 32 * GIB, 5 * GIB // PAGE_BYTES, 10, 20, 100, 100, held) for number in (0, 1)),
        Cnr({RECLAIMED_CPU: 10_000, RECLAIMED_MEMORY: 20 * GIB}),
    )
    made = frame(pods, used=100, gates={GATE: True})
    view = view_of_frame(made)
    sections = {
        section: type(each.settings())(is_on=True) if "is_on" in each.settings.__struct_fields__ else each.settings()
        for section, each in INNER.items()
    }
    settings = KatalystSettings(inner=InnerSettings(**sections))
    state = ManagerState()

    def due() -> object:
        return KATALYST_EVICTION.decide(view, measured, state, settings)

    method = f"decide() of the strategy, {len(INNER)} plugins inside, all on, {PODS} pods, two NUMA nodes"
    report.add(figure(f"a round of {len(INNER)} plugins, 110 pods", "ms", times_ms(due, n), method, reach_p99=5))
    after = KATALYST_EVICTION.decide(view, measured, state, settings).state
    between = times_ms(lambda: KATALYST_EVICTION.decide(view, measured, after, settings), n)
    report.add(figure("  the same between two rounds", "ms", between, "as in four of five full measurements"))
    _measuring(report, n)


def _measuring(report: Report, n: int) -> None:
    with full_node() as node, tempfile.TemporaryDirectory() as name:
        source = FileSource((node.cgroup.write_manifest(Path(name) / "pods.json", 90, 85),))
        source.start(lambda: None)
        scope = open_scope(find_memory_hierarchy(), None)  # the machine: a cgroup has no NUMA nodes
        with (
            NodeWatch(scope, source, 1_000_000) as watch,
            contextlib.closing(PressureFiles(scope, watch.index)) as pod_files,
            KatalystMemory(watch, pod_files, lambda _: False, lambda _: False) as collector,
        ):
            of_node = NodeMeasure("machine", total_bytes=64 * GIB, used_bytes=GIB)
            times = times_ms(lambda: collector.measure(of_node, is_round=True), n)
            report.add(figure("  what it is measured from", "ms", times, "meminfo, zoneinfo, watermarks"))
        pods = [path for path in node.cgroup.path.rglob("pod*") if path.is_dir()]
        if len(pods) < PODS - 1:
            raise RuntimeError(f"{len(pods)} of {PODS} pods were found below {node.cgroup.path}")
        version = node.cgroup.version
        times = times_ms(lambda: [numa_held(each, version) for each in pods], max(n // 10, 10))
        report.add(figure("  what each pod holds of a NUMA node", "ms", times, f"memory.numa_stat of {len(pods)} pods"))


def _cost(report: Report) -> None:
    seconds = 10 if report.quick else 60
    cpu: dict[bool, float] = {False: 0, True: 0}
    memory: dict[bool, list[float]] = {False: [], True: []}
    with full_node() as node, tempfile.TemporaryDirectory() as name:
        manifest = node.cgroup.write_manifest(Path(name) / "pods.json", 90, 85)
        config = Path(name) / "config.yaml"
        config.write_text(_config(MIB))
        # In turn, so that what else the machine does is in both.
        for is_on in (False, True) * _TURNS:
            more = ("--config", str(config)) if is_on else ("--feature-gates", "BEMemoryEvict=false")
            with AgentProcess(node.cgroup, manifest, *more, audit=Path(name) / "audit.jsonl") as agent:
                time.sleep(5)
                before = cpu_s(agent.pid)
                time.sleep(seconds)
                cpu[is_on] += cpu_s(agent.pid) - before
                memory[is_on].append(rollup_mib(agent.pid)["Rss"])
    percent = (cpu[True] - cpu[False]) / (seconds * _TURNS) * 100
    method = f"{_TURNS} agents with the gate on and {_TURNS} with it off, {seconds} s each, 110 pods / 330 containers"
    report.add(at_most("what the gate adds in CPU", "%core", percent, 0.1, method))
    more_mib = min(memory[True]) - min(memory[False])
    report.add(at_most("what the gate adds in memory", "MiB", more_mib, 3, f"Rss, the least of {_TURNS}; {method}"))
