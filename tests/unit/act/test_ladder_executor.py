"""What a rung writes, and what it leaves alone. Directories in place of cgroups: their numbers keep their length."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.act.ladder import LadderExecutor, PodDirectories
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy
from koordebpf.policy.ladder_settings import Rung
from koordebpf.policy.plan import RungAction, RungPlan

V2_FILES = {"memory.high": "9" * 7, "cgroup.freeze": "0", "cgroup.procs": ""}
V1_FILES = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000", "freezer.state": "THAWED", "cgroup.procs": ""}


class Node:
    """A node of one pod, and an executor for it."""

    def __init__(self, folder: Path, version: int, *, enforce: bool = True) -> None:
        self.root = folder / "cgroup"
        self.pod = self.root / "be/podu"
        self.pod.mkdir(parents=True)
        for name, text in (V2_FILES if version == 2 else V1_FILES).items():
            (self.pod / name).write_text(f"{text}\n")
        mount = ControllerMount(version, self.root)
        places = Places({name: mount for name in ("memory", "cpu", "freezer") if version == 1 or name != "freezer"})
        self.audited: list[FileChange] = []
        self.journal = Journal(folder / "journal") if enforce else None
        writer = CgroupWriter(places, self.journal, enforce=enforce, audit=self.audited.append)
        hierarchy = MemoryHierarchy(version, self.root, 0)
        self.ids = {self.pod.stat().st_ino: "be/podu"}
        self.executor = LadderExecutor(
            PodDirectories(hierarchy, self.ids.get), places, writer, None, self.audited.append
        )

    def plan(self, rung: Rung, **amounts: int) -> RungPlan:
        (cgroup_id,) = self.ids
        return RungPlan(rung, True, f"a {rung.value}", (RungAction("u", "default", "pod", cgroup_id, **amounts),))

    def text(self, name: str) -> str:
        return (self.pod / name).read_text().strip()

    def results(self) -> list[tuple[str, WriteResult]]:
        return [(Path(change.path).name, change.result) for change in self.audited]


@pytest.fixture
def made(tmp_path: Path):
    nodes: list[Node] = []

    def make(version: int, *, enforce: bool = True) -> Node:
        nodes.append(Node(tmp_path, version, enforce=enforce))
        return nodes[-1]

    yield make
    for node in nodes:
        node.executor.close(9)
        if node.journal:
            node.journal.close()


Made = Callable[..., Node]


def test_a_brake_is_memory_high_on_v2_and_is_undone(made: Made):
    node = made(2)
    assert node.executor.begin(node.plan(Rung.BRAKE, memory_high_bytes=4096_000, cpu_quota_percent=10), 0)
    assert node.text("memory.high") == "4096000"
    assert [change.reason for change in node.audited] == ["a brake"]
    node.executor.undo(Rung.BRAKE, 1)
    assert node.text("memory.high") == "9999999"
    node.executor.hold(2)
    assert node.text("memory.high") == "9999999"


def test_a_brake_is_a_share_of_the_period_on_v1(made: Made):
    node = made(1)
    assert node.executor.begin(node.plan(Rung.BRAKE, memory_high_bytes=4096_000, cpu_quota_percent=10), 0)
    assert node.text("cpu.cfs_quota_us") == "10000"


@pytest.mark.parametrize("percent", [50, 80])
def test_a_brake_raises_no_limit(made: Made, percent: int):
    node = made(1)
    assert not node.executor.begin(node.plan(Rung.BRAKE, cpu_quota_percent=percent), 0)
    assert node.text("cpu.cfs_quota_us") == "50000"
    assert node.audited == []


def test_a_freeze_started_beside_a_brake_is_undone_alone(made: Made):
    node = made(2)
    node.executor.begin(node.plan(Rung.BRAKE, memory_high_bytes=4096_000), 0)
    assert node.executor.begin(node.plan(Rung.FREEZE), 1)
    assert node.text("cgroup.freeze") == "1"
    node.executor.undo(Rung.FREEZE, 2)
    node.executor.hold(3)
    assert (node.text("cgroup.freeze"), node.text("memory.high")) == ("0", "4096000")
    node.executor.close(4)
    assert node.text("memory.high") == "9999999"
    assert node.journal is not None
    assert node.journal.originals == {}


def test_who_is_paused_already_stays_paused(made: Made):
    node = made(2)
    (node.pod / "cgroup.freeze").write_text("1\n")
    assert not node.executor.begin(node.plan(Rung.FREEZE), 0)
    node.executor.undo(Rung.FREEZE, 1)
    assert node.text("cgroup.freeze") == "1"


def test_the_agent_does_not_freeze_itself(made: Made):
    node = made(2)
    (node.pod / "c1").mkdir()
    (node.pod / "c1/cgroup.procs").write_text(f"{os.getppid()}\n{os.getpid()}\n")
    assert not node.executor.begin(node.plan(Rung.FREEZE), 0)
    assert node.text("cgroup.freeze") == "0"


@pytest.mark.parametrize("rung", [Rung.BRAKE, Rung.RECLAIM, Rung.FREEZE])
def test_a_cgroup_that_is_gone_or_another_one_is_left_alone(made: Made, rung: Rung):
    node = made(2)
    plan = node.plan(rung, memory_high_bytes=4096_000, reclaim_bytes=4096)
    (cgroup_id,) = node.ids
    node.ids.clear()
    assert not node.executor.begin(plan, 0)
    node.ids[cgroup_id] = "be"
    assert not node.executor.begin(plan, 1)
    node.ids[cgroup_id] = "be/removed"
    assert not node.executor.begin(plan, 2)
    assert node.audited == []


def test_a_cgroup_removed_while_it_is_limited_is_reported_once(made: Made):
    node = made(2)
    node.executor.begin(node.plan(Rung.FREEZE), 0)
    for file in node.pod.iterdir():
        file.unlink()
    node.pod.rmdir()
    for now_s in (20, 40, 60):
        node.executor.hold(now_s * 10**9)
    node.executor.undo(Rung.FREEZE, 70 * 10**9)
    assert node.results().count(("cgroup.freeze", WriteResult.GONE)) == 1
    assert WriteResult.REFUSED not in [result for _, result in node.results()]


@pytest.mark.parametrize(("version", "why"), [(1, "cgroup v1 has none"), (2, "since Linux 5.19")])
def test_reclaim_that_is_not_there_is_reported(made: Made, version: int, why: str):
    node = made(version)
    assert not node.executor.begin(node.plan(Rung.RECLAIM, reclaim_bytes=4096), 0)
    assert node.results() == [("memory.reclaim", WriteResult.UNSUPPORTED)]
    assert why in node.audited[0].detail


def test_a_dry_run_reports_and_writes_nothing(made: Made):
    node = made(2, enforce=False)
    (node.pod / "memory.reclaim").touch()
    for rung in (Rung.BRAKE, Rung.RECLAIM, Rung.FREEZE):
        assert node.executor.begin(node.plan(rung, memory_high_bytes=4096_000, reclaim_bytes=4096), 0)
    assert node.results() == [
        ("memory.high", WriteResult.DRY_RUN),
        ("memory.reclaim", WriteResult.DRY_RUN),
        ("cgroup.freeze", WriteResult.DRY_RUN),
    ]
    assert (node.text("memory.high"), node.text("cgroup.freeze")) == ("9999999", "0")
    assert node.text("memory.reclaim") == ""


def test_what_could_not_be_started_is_not_done_later(made: Made):
    node = made(2)
    (node.pod / "cgroup.freeze").unlink()
    assert not node.executor.begin(node.plan(Rung.FREEZE), 0)
    assert node.executor.frozen_ns is None
    (node.pod / "cgroup.freeze").write_text("0\n")
    node.executor.hold(100 * 10**9)
    assert node.text("cgroup.freeze") == "0"


@pytest.mark.parametrize("rung", [Rung.BRAKE, Rung.FREEZE])
def test_a_directory_that_bears_another_pods_uid_is_left_alone(made: Made, rung: Rung) -> None:
    node = made(2)
    plan = node.plan(rung, memory_high_bytes=4096_000)
    action = replace(plan.actions[0], uid="u-2")
    assert node.executor.begin(plan, 1)
    node.executor.undo(rung, 2)
    node.audited.clear()
    assert not node.executor.begin(replace(plan, actions=(action,)), 3)
    assert node.audited == []
