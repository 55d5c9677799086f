"""The flight recorder: what a busy hour takes of the disk, what it costs, and how fast it is decided again."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import MemoryParts, NodeMeasure, PodMeasure, StallParts
from koordebpf.state.series import kinds
from koordebpf.state.series.kinds import SeriesKey
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.recorder import Recorder
from koordebpf.store.recorder.ring import Run, shards_in
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore, Place, RingStore
from koordebpf.store.recorder.values import Pace
from koordebpf.store.sink import RoundEnded
from koordebpf.tools.recorder.replay import Replay, replayed
from koordebpf.tools.recorder.rounds import DecidesAgain
from koordebpf.units import GIB, MIB, NS_PER_S, PAGE_BYTES
from tests.bench.figure import at_least, at_most, figure
from tests.bench.machine_hour import MachineHour
from tests.bench.nodes import full_node
from tests.bench.report import Report
from tests.bench.seeded_hour import PODS, SeededHour
from tests.bench.steady import cpu_s, rollup_mib
from tests.support.agent_process import AgentProcess
from tests.support.values.builders import PodAndMeasure, ls_pod, pod
from tests.support.values.cpu_nodes import be_tree, cpu_frame
from tests.support.values.machines import machine

_RUN = Run("0123abcd", "node-1")
_BEGIN_NS = 1_800_000_000 * NS_PER_S
_CAPACITY = 128 * GIB
_HOURS = 24


def recorder(report: Report) -> None:
    """Record two busy hours, decide them again, and weigh an agent with the recorder and without."""
    seconds = 300 if report.quick else 3600
    for name, hour in (("of a machine", MachineHour()), ("with a seed", SeededHour())):
        _hour(report, name, hour, seconds)
    _decisions(report, 500 if report.quick else 10_000)
    _agent(report, 15 if report.quick else 60)


class _Hour(Protocol):
    @property
    def pods(self) -> list:  # type: ignore[type-arg]
        """The pods of this second."""

    def samples(self, second: int) -> Iterator[tuple[SeriesKey, float]]:
        """Yield what was used in this second."""


class _Ticks:
    """The rounds of an hour: as an agent's, with the CPUs measured and what best-effort cgroups are held to."""

    def __init__(self, hour: _Hour) -> None:
        self._hour = hour
        self._pods: dict[str, PodAndMeasure] = {}
        self._used: dict[str, float] = {}
        self._template = cpu_frame(machine(cores=32), be_cgroups=be_tree(range(16), pods=PODS // 3, containers=3))
        self._listed: tuple[object, ...] = ()

    def at(self, second: int) -> TickFrame:
        samples = dict(self._hour.samples(second))
        for each in self._hour.pods:
            if each.name not in self._pods:
                make = ls_pod if each.qos == "Burstable" else pod
                self._pods[each.name] = make(each.name)
        listed = tuple(self._pods[each.name].pod for each in self._hour.pods)
        self._listed = self._listed if listed == self._listed else listed
        now_ns = _BEGIN_NS // 1000 + second * NS_PER_S
        cpu, used = {}, 0.0
        measures = []
        for each in self._hour.pods:
            at = int(samples[(kinds.POD_MEMORY, f"uid-{each.name}")])
            measures.append(self._measure(each.name, at, second))
            cpu[measures[-1].uid] = int(1000 * samples[(kinds.POD_CPU, f"uid-{each.name}")])
            used += at
        be = {measure.uid for each, measure in zip(self._hour.pods, measures, strict=True) if each.qos != "Burstable"}
        usage = replace(
            cpu_frame(
                self._template.measured.cpu.topology,
                node_used=sum(cpu.values()),
                be_used=sum(amount for uid, amount in cpu.items() if uid in be),
                used={uid: amount for uid, amount in cpu.items() if uid not in be},
                be_pods_used={uid: amount for uid, amount in cpu.items() if uid in be},
                be_cgroups=(),
            ).measured.cpu,
            be_cgroups=self._template.measured.cpu.be_cgroups,
        )
        measured = replace(
            self._template.measured,
            now_ns=now_ns,
            since_ns=now_ns - 1_000_000,
            node=NodeMeasure("machine", _CAPACITY, int(used), growth_bytes_per_s=used / 1e4 + second),
            pods=tuple(measures),
            cpu=usage,
        )
        frame = replace(self._template, measured=measured, pods=self._listed)
        return TickFrame(
            frame=frame,
            settings=_SETTINGS,
            guards=GuardFacts(now_ns=now_ns, source="api", pods_synced_ns=now_ns),
            has_cpu=True,
        )

    # Sizes are of pages. Each tenth pod stalls.
    def _measure(self, name: str, used: int, second: int) -> PodMeasure:
        before, self._used[name] = self._used.get(name, used), used
        uid = self._pods[name].pod.uid
        pages = used // PAGE_BYTES
        parts = [pages * share // 100 * PAGE_BYTES for share in (18, 52, 9, 12, 1)]
        number = sum(uid.encode())
        return PodMeasure(
            uid=uid,
            cgroup_id=number,
            memory=MemoryParts(
                pages * PAGE_BYTES,
                *parts,
                shmem_bytes=0,
                slab_reclaimable_bytes=pages // 50 * PAGE_BYTES,
                kernel_bytes=pages // 40 * PAGE_BYTES,
            ),
            growth_bytes_per_s=(used - before) * 0.97 + 0.1 if used != before else 0.0,
            stall=StallParts(10 * NS_PER_S, second * number % 9_999_999, number * second % 999_983, second % 97)
            if number % 10 == 0
            else None,
        )


_SETTINGS = TickSettings()
_VIEWLESS: Any = None  # the recorder looks at neither view nor signals


def _hour(report: Report, name: str, hour: _Hour, seconds: int) -> None:
    ticks, again = _Ticks(hour), DecidesAgain()
    rounds = [(tick, again.decide(tick)) for tick in map(ticks.at, range(seconds))]
    report.say(f"{seconds} rounds of an hour {name}")
    method = f"{PODS} pods, CPUs and best-effort cgroups measured, an hour {name}, {seconds} s of it"
    with tempfile.TemporaryDirectory() as folder:
        clock = _Clock()
        recorder = Recorder(RingStore([Place(Path(folder) / "ring", 512 * MIB)], _RUN), clock)
        for second, (tick, decision) in enumerate(rounds):
            clock.wall = _BEGIN_NS / NS_PER_S + second
            recorder.publish(RoundEnded(tick, _VIEWLESS, decision, _VIEWLESS))
            while recorder.counts.rounds <= second:
                time.sleep(0)
        cpu = recorder.counts.cpu_s
        recorder.close()
        ring = Path(folder) / "ring"
        size = {pace: _bytes(shards_in(ring, pace)) for pace in (Pace.SECONDS, Pace.DAY)}
        found = len(Recording(ring))
    if found != seconds:
        raise RuntimeError(f"{found} of {seconds} rounds are there")
    scale = 3600 / seconds
    day = size[Pace.DAY] * scale * _HOURS
    report.add(at_most(f"a round each second, hour {name}", "B", size[Pace.SECONDS] / seconds, None, method))
    whole = (size[Pace.SECONDS] * scale + day) / MIB
    extrapolated = f"{method}; the hour and, extrapolated from it, the day of a round each 5 s"
    report.add(at_most(f"disk of a day, hour {name}", "MiB", whole, 64, extrapolated))
    report.add(at_most(f"recorder's thread, hour {name}", "%core", cpu / seconds * 100, 0.1, method))
    _replay(report, name, rounds, method)


def _replay(report: Report, name: str, rounds: list[tuple[TickFrame, TickDecision]], method: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hour.rounds"
        store, encoder = FileStore(path, _RUN, GIB), RoundEncoder()
        for second, (tick, decision) in enumerate(rounds):
            store.add(encoder.encode(tick, decision, _BEGIN_NS + second * NS_PER_S), b"", [])
        store.close()
        started, totals = time.process_time(), Replay()
        for _ in replayed(Recording(path), totals):
            pass
        spent = time.process_time() - started
    if (totals.rounds, totals.differing) != (len(rounds), 0):
        raise RuntimeError(f"{totals.differing} of {totals.rounds} rounds are decided otherwise than they were")
    each_s = spent / len(rounds)
    report.add(
        at_least(
            f"replay of a round each second, hour {name}",
            "×",
            1 / each_s,
            1000,
            f"{method}; CPU time",
        )
    )
    report.add(at_least(f"replay of a round each 4 ms, hour {name}", "×", 0.004 / each_s, 5, "the same; CPU time"))


def _decisions(report: Report, many: int) -> None:
    from tests.bench.recorder_ticks import ticks_under_pressure

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pressure.rounds"
        ticks_under_pressure(path, many)
        recording, again = Recording(path), DecidesAgain()
        decisions = same = 0
        for each in recording.rounds():
            decisions += each.is_decision
            same += each.is_decision and each.is_same(again.decide(each.tick))
    method = "Agent.tick above the threshold, 110 pods / 330 containers; each decided again out of the recording"
    report.add(at_least("decisions that are the same, bit for bit", "", same, decisions, f"{method}; of {decisions}"))


# In turn, twice: what is measured is less than what differs between two runs.
def _agent(report: Report, seconds: int) -> None:
    rss: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    with full_node() as node, tempfile.TemporaryDirectory() as name:
        manifest = node.cgroup.write_manifest(Path(name) / "pods.json", 70, 65)
        for records in (False, True, True, False):
            folder = str(Path(name) / "kept") if records else "none"
            with AgentProcess(node.cgroup, manifest, "--recorder-folder", folder) as agent:
                time.sleep(35)  # what is kept of the last 30 s is full
                before, started = cpu_s(agent.pid), time.monotonic()
                time.sleep(seconds)
                cpu[records].append((cpu_s(agent.pid) - before) / (time.monotonic() - started) * 100)
                rss[records].append(rollup_mib(agent.pid)["Rss"])
    method = f"110 pods / 330 containers, idle, {seconds} s, smaps_rollup, two runs each with the recorder and without"
    more = statistics.mean(rss[True]) - statistics.mean(rss[False])
    report.add(at_most("what the recorder adds to RSS", "MiB", more, 4, method))
    for records, title in ((True, "with the recorder"), (False, "without it")):
        report.add(figure(f"an agent {title}", "%core", cpu[records], method))


class _Clock:
    wall = 0.0

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall_s(self) -> float:
        return self.wall

    def suspended_ns(self) -> int:
        return 0


def _bytes(shards: list[Path]) -> int:
    return sum(each.stat().st_size + each.with_suffix(".index").stat().st_size for each in shards)
