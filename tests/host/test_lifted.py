"""CPU limits of a pod that is killed: lifted while it dies, and back where its cgroup survives."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor, UnfinishedKill, finish_kill
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.lifecycle.kill_support import pod_targets
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id, find_controllers
from koordebpf.kernel.cgroup.kill import KillTarget, kill_cgroup
from koordebpf.kernel.cgroup.lifted import CpuLimit, CpuPlace, is_lifted, lift, limits_of, restore_limits
from koordebpf.policy.plan import Candidate, Holding, Victim
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Result
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.host.conftest import remove_cgroup
from tests.host.rigs.cgroups import QUOTA, Cgroups, desired
from tests.support.hierarchies import remove_when_empty
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup

UID = "9b1b0e0e-0000-4000-8000-00000000dead"
HELD_MIB = 192


class LimitedPod:
    """A pod with one container, and a CPU limit on both."""

    def __init__(self, memory: Path, hierarchy: MemoryHierarchy) -> None:
        mount = find_controllers().get("cpu")
        if mount is None:
            pytest.skip(f"{OTHER_MACHINE}it has no cpu controller")
        self.hierarchy = hierarchy
        self.version = mount.version
        self.memory = memory / f"pod{UID}"
        self.cpu = mount.mount_point / self.memory.relative_to(hierarchy.mount_point)
        levels = [hierarchy.mount_point, *reversed(self.memory.relative_to(hierarchy.mount_point).parents)][1:]
        if self.version == 2:
            self.memory.mkdir()
            for level in levels:
                (hierarchy.mount_point / level / "cgroup.subtree_control").write_text("+memory +cpu")
            (self.memory / "cgroup.subtree_control").write_text("+memory +cpu")
        for path in (self.memory / "c", self.cpu / "c"):
            path.mkdir(parents=True, exist_ok=True)
        self.quota = "cpu.cfs_quota_us" if self.version == 1 else "cpu.max"
        self.weight = "cpu.shares" if self.version == 1 else "cpu.weight"
        self.freezer = hierarchy.freezer_mount_point and hierarchy.freezer_mount_point / self.memory.relative_to(
            hierarchy.mount_point
        )
        if self.freezer:
            (self.freezer / "c").mkdir(parents=True)

    def limit(self, percent: int) -> None:
        for path in (self.cpu, self.cpu / "c"):
            (path / self.quota).write_text(str(percent * 1000))
        (self.cpu / self.weight).write_text("2")

    def lift(self) -> None:
        for path in (self.cpu, self.cpu / "c"):
            (path / self.quota).write_text(LIFTED[self.version][0])

    @property
    def place(self) -> CpuPlace:
        same = cgroup_id(self.memory) if self.version == 2 else None
        return CpuPlace(self.cpu, 1 if self.version == 1 else 2, same, (UID,))

    @property
    def target(self) -> KillTarget:
        return KillTarget(self.memory, cgroup_id(self.memory), self.hierarchy.version, self.freezer, (UID,), self.place)

    def texts(self) -> list[str]:
        files = [self.cpu / self.quota, self.cpu / self.weight, self.cpu / "c" / self.quota]
        return [file.read_text().split()[0] for file in files]

    def usage(self) -> int:
        name = "memory.usage_in_bytes" if self.hierarchy.version == 1 else "memory.current"
        return int((self.memory / name).read_text())

    def procs(self) -> list[Path]:
        places = [self.memory, self.cpu, *([self.freezer] if self.freezer else [])]
        return [path / "c" / "cgroup.procs" for path in dict.fromkeys(places)]

    def close(self) -> None:
        remove_cgroup(self.memory, self.hierarchy)
        others = [self.cpu, self.freezer] if self.version == 1 else []  # v2 has one hierarchy
        for base in filter(None, others):
            remove_when_empty(base / "c")
            remove_when_empty(base)
            for path in base.parents:  # as far as they are this test's
                with contextlib.suppress(OSError):
                    path.rmdir()


@pytest.fixture
def pod(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[LimitedPod]:
    made = LimitedPod(memory_cgroup, hierarchy)
    yield made
    made.close()


LIFTED = {1: ["-1", "262144", "-1"], 2: ["max", "10000", "max"]}


def test_limits_are_lifted_and_come_back(pod: LimitedPod) -> None:
    pod.limit(20)
    before = pod.texts()
    limits = limits_of(pod.place)
    assert [(each.below, each.file) for each in limits] == [("", pod.quota), ("", pod.weight), ("c", pod.quota)]
    assert lift(pod.place, limits)
    assert pod.texts() == LIFTED[pod.version] and is_lifted(f"kubepods/pod{UID}/c")
    assert restore_limits(pod.place, limits)
    assert pod.texts() == before and not is_lifted(f"kubepods/pod{UID}/c")


def test_what_another_process_wrote_meanwhile_stays(pod: LimitedPod) -> None:
    pod.limit(20)
    limits = limits_of(pod.place)
    lift(pod.place, limits)
    (pod.cpu / "c" / pod.quota).write_text("10000")
    assert restore_limits(pod.place, limits)
    assert pod.texts() == ["20000", "2", "10000"]


def test_a_pod_without_limits_is_not_written(pod: LimitedPod) -> None:
    (pod.cpu / pod.weight).write_text(LIFTED[pod.version][1])
    assert limits_of(pod.place) == ()


def test_another_pods_directory_is_left_alone(pod: LimitedPod) -> None:
    pod.limit(20)
    limits, before = limits_of(pod.place), pod.texts()
    other = CpuPlace(pod.cpu, pod.place.version, pod.place.cgroup_id, ("another",))
    assert limits_of(other) == ()
    assert not lift(other, limits)
    restore_limits(other, limits)
    assert pod.texts() == before


def test_a_pod_that_is_gone_has_nothing_left(pod: LimitedPod) -> None:
    pod.limit(20)
    place, limits = pod.place, limits_of(pod.place)
    lift(place, limits)
    for path in (pod.cpu / "c", pod.cpu):
        path.rmdir()
    assert restore_limits(place, limits) and limits_of(place) == ()


def test_a_successor_restores_what_a_killed_agent_has_left_lifted(pod: LimitedPod) -> None:
    pod.limit(20)
    before, limits = pod.texts(), limits_of(pod.place)
    lift(pod.place, limits)
    assert finish_kill(UnfinishedKill(UID, "n", "p", 0, pod.target, limits)) is None
    assert pod.texts() == before


def test_a_limit_that_the_kernel_refuses_is_said(pod: LimitedPod) -> None:
    pod.limit(20)
    (pod.cpu / "c" / pod.quota).write_text(LIFTED[pod.version][2])
    limits = (CpuLimit("c", pod.quota, "not a number"),)
    assert not restore_limits(pod.place, limits)


def test_the_writer_limits_no_pod_again_while_it_dies(cgroups: Cgroups, journal: Journal) -> None:
    for path in ("be", "be/pod"):
        cgroups.make(path)
    writer = CgroupWriter(cgroups.places, journal, WriterSettings(refresh_ns=NS_PER_S), enforce=True)
    wanted = desired(cgroups, ("be/pod", QUOTA, 20_000))
    writer.apply(wanted, 0)
    held, quota = cgroups.text("be/pod", QUOTA), cgroups.file("be/pod", QUOTA)
    place = CpuPlace(quota.parent, 1 if cgroups.mounts["cpu"].version == 1 else 2)
    limits = limits_of(place)
    assert lift(place, limits)
    lifted = cgroups.text("be/pod", QUOTA)
    for second in range(2, 6):
        assert writer.apply(wanted, second * NS_PER_S).changes == ()
    # Another value in the meantime is not written either.
    other = desired(cgroups, ("be/pod", QUOTA, 30_000))
    assert writer.apply(other, 6 * NS_PER_S).changes == ()
    assert cgroups.text("be/pod", QUOTA) == lifted != held
    assert restore_limits(place, limits) and cgroups.text("be/pod", QUOTA) == held
    writer.apply(other, 8 * NS_PER_S)
    assert cgroups.text("be/pod", QUOTA).split()[0] == "30000"
    writer.restore(9 * NS_PER_S)
    assert cgroups.text("be/pod", QUOTA).split()[0] in ("-1", "max")


def test_the_executor_lifts_notes_and_restores(pod: LimitedPod) -> None:
    pod.limit(20)
    before, first, noted = pod.texts(), pod.procs()[0], list[UnfinishedKill]()
    holder = Holder(pod.memory / "c", "anon", 16)
    for path in pod.procs()[1:]:
        path.write_text(str(holder.process.pid))
    outcomes = OutcomeQueue(lambda: None)
    executor = CgroupExecutor(lambda *_: pod.target, outcomes, enforce=True, note=noted.append)
    candidate = Candidate(1, UID, "n", "p", pod.target.cgroup_id, 5000, (Holding(MEMORY, 1, 1),))
    try:
        sent = executor.submit(Victim(candidate, "evicted", "m"), decided_ns=time.monotonic_ns())
        assert sent.result is Result.SENT
    finally:
        executor.close()
        holder.stop()
    (final,) = outcomes.drain()
    assert final.result is Result.DONE and first.read_text() == ""
    (kill,) = noted
    assert [each.text.split()[0] for each in kill.limits] == before
    # The pod's cgroup has survived.
    assert pod.texts() == before


def test_a_kill_that_is_refused_leaves_nothing_lifted(pod: LimitedPod) -> None:
    pod.limit(20)
    before, target = pod.texts(), pod.target
    other = replace(target, pod_names=("another",))
    executor = CgroupExecutor(lambda *_: other, OutcomeQueue(lambda: None), enforce=True)
    candidate = Candidate(1, UID, "n", "p", target.cgroup_id, 5000, (Holding(MEMORY, 1, 1),))
    try:
        assert executor.submit(Victim(candidate, "evicted", "m"), decided_ns=0).result is Result.FAILED
    finally:
        executor.close()
    assert pod.texts() == before


_SPINS = "while True: pass"


def _killed(pod: LimitedPod, *, lifts: bool) -> float:
    """Return how long after the kill the memory of a pod with 5 % of a CPU is back, in ms."""
    first, *others = pod.procs()
    pod.lift()  # or filling it takes minutes where the CPU is emulated
    holder = Holder(pod.memory / "c", "anon", HELD_MIB)
    for path in others:
        path.write_text(str(holder.process.pid))
    spins = subprocess.Popen([sys.executable, "-c", _SPINS])
    for path in (first, *others):
        path.write_text(str(spins.pid))
    pod.limit(5)
    time.sleep(0.3)
    limits = limits_of(pod.place)
    began = time.monotonic_ns()
    if lifts:
        lift(pod.place, limits)
    kill_cgroup(pod.target, deadline_ns=began + 60 * NS_PER_S)
    while pod.usage() > 8 * MIB:
        time.sleep(0.0005)
    took = (time.monotonic_ns() - began) / NS_PER_MS
    restore_limits(pod.place, limits)
    holder.stop()
    spins.kill()
    spins.wait()
    return took


@pytest.mark.slow
def test_memory_is_back_no_later_with_limits_lifted(pod: LimitedPod) -> None:
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(6):
        for lifts in (number % 2 == 0, number % 2 == 1):
            took[lifts].append(_killed(pod, lifts=lifts))
    shown = {lifts: [round(each) for each in sorted(values)] for lifts, values in took.items()}
    print(f"\n{os.uname().release}, {HELD_MIB} MiB at 5 % of a CPU, ms: lifted {shown[True]}, not {shown[False]}")
    assert statistics.median(took[True]) < 2 * statistics.median(took[False]) + 50


@pytest.mark.parametrize("lifts", [True, False])
def test_an_agent_finds_a_pods_limits_where_it_is_to_lift_them(
    hierarchy: MemoryHierarchy, node: NodeCgroup, lifts: bool
) -> None:
    node.add_pod("be")
    scope = open_scope(hierarchy, node.path)
    (uid,) = (pod["metadata"]["uid"] for pod in node.pods)
    path = node.pod_paths["be"]
    with NodeWatch(scope, None, 1 << 62) as watch:
        watch.drain()
        target = pod_targets(scope, watch, lifts=lifts)(cgroup_id(path), uid)
    assert target is not None
    mount = find_controllers().get("cpu")
    if not lifts or mount is None:
        assert target.cpu is None
    else:
        assert target.cpu is not None and target.cpu.version == mount.version
        assert target.cpu.path == mount.mount_point / path.relative_to(hierarchy.mount_point)
