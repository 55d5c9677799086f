"""The ladder between decision and eviction. Directories in place of cgroups: their numbers keep their length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.act.ladder import LadderExecutor, PodDirectories
from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.ladder import Ladder
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.ladder.escalation import escalate
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import Plan
from koordebpf.state.build import view_of_frame
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, frame, ls_pod, pod, supposed

HOG = "uid-spark-hog"
STALE = (ClosedGuard("pods_stale", "the list is old"),)


class Climb:
    """A ladder on a node with one pod that grows; `take` takes a step at so many seconds."""

    def __init__(self, folder: Path, rungs: set[Rung], own_pod_uid: str | None = None) -> None:
        self.settings = LadderSettings(rungs=frozenset(rungs), freeze_max_ns=10 * NS_PER_S)
        self.pod = folder / "cgroup/be/poduid-spark-hog"
        self.pod.mkdir(parents=True)
        for name, text in {"memory.high": "9" * 9, "cgroup.freeze": "0", "cgroup.procs": ""}.items():
            (self.pod / name).write_text(f"{text}\n")
        self.journal = Journal(folder / "journal")
        places = Places({"memory": ControllerMount(2, folder / "cgroup")})
        self.audited: list[FileChange] = []
        writer = CgroupWriter(places, self.journal, enforce=True, audit=self.audited.append)
        hierarchy = MemoryHierarchy(2, folder / "cgroup", 0)
        ids = {self.pod.stat().st_ino: "be/poduid-spark-hog"}
        executor = LadderExecutor(PodDirectories(hierarchy, ids.get), places, writer, None, self.audited.append)
        kill = CgroupExecutor(lambda *_: None, OutcomeQueue(lambda: None))
        self.ladder = Ladder(self.settings, executor, kill=kill)
        self.spared = {own_pod_uid} if own_pod_uid else set()

    def view(self, at_s: float, used: int, pending: tuple[PendingRelease, ...]) -> NodeView:
        hog = pod("hog", anon=300, growth=1e6)
        assert hog.measure is not None
        hog = replace(hog, measure=replace(hog.measure, cgroup_id=self.pod.stat().st_ino))
        view = view_of_frame(frame([ls_pod("web", anon=50), hog], used=used))
        return supposed(view, now_ns=NOW_NS + int(at_s * NS_PER_S), pending=pending)

    def take(
        self,
        at_s: float,
        *,
        used: int = 850,
        guards: tuple[ClosedGuard, ...] = (),
        pending: tuple[PendingRelease, ...] = (),
    ) -> tuple[Plan, tuple[ClosedGuard, ...], bool]:
        """Return the plan to be carried out, the guards before it, and whether it is to be done by a kill."""
        view = self.view(at_s, used, pending)
        plan = decide(view, EvictSettings(ladder=self.settings))
        self.ladder.hold(view.now_ns)
        while True:
            found = escalate(view, plan, guards, self.ladder.memory, self.settings, self.spared)
            if found.step is None or self.ladder.carry_out(found.step, found.memory, view.now_ns):
                return found.plan, found.guards, found.by == "kill"

    @property
    def is_frozen(self) -> bool:
        return (self.pod / "cgroup.freeze").read_text().startswith("1")


@pytest.fixture
def climb(tmp_path: Path) -> Iterator[type[Climb]]:
    made: list[Climb] = []

    def make(*rungs: Rung, own_pod_uid: str | None = None) -> Climb:
        made.append(Climb(tmp_path, set(rungs), own_pod_uid))
        return made[-1]

    yield make  # type: ignore[misc]
    for each in made:
        each.journal.close()


def sentences(guards: tuple[ClosedGuard, ...]) -> list[str]:
    return [guard.sentence for guard in guards]


def test_the_victim_is_held_back_until_the_brake_is_judged(climb):
    node = climb(Rung.BRAKE, Rung.EVICT)
    plan, held, _ = node.take(0)
    assert ([each.candidate.uid for each in plan.victims], sentences(held)) == ([HOG], ["brake is tried first"])
    assert (node.pod / "memory.high").read_text().strip() == str(300 * 95 * (1 << 20) // 100)
    assert node.ladder.due_ns(NOW_NS) == NOW_NS + NS_PER_S
    assert sentences(node.take(0.5)[1]) == ["brake is tried first"]
    plan, held, is_kill = node.take(1)
    assert ([each.candidate.uid for each in plan.victims], held, is_kill) == ([HOG], (), False)
    assert node.ladder.due_ns(NOW_NS + NS_PER_S) is None


def test_what_is_not_possible_here_is_not_waited_for(climb):
    node = climb(Rung.RECLAIM, Rung.FREEZE, Rung.EVICT)
    assert sentences(node.take(0)[1]) == ["freeze is tried first"]
    assert node.is_frozen
    assert [Path(change.path).name for change in node.audited] == ["memory.reclaim", "cgroup.freeze"]


def test_where_nothing_is_possible_the_eviction_follows_at_once(climb):
    node = climb(Rung.RECLAIM, Rung.EVICT)
    plan, held, is_kill = node.take(0)
    assert (len(plan.victims), held, is_kill) == (1, (), False)


def test_with_a_guard_closed_nothing_is_started_and_a_freeze_ends_all_the_same(climb):
    node = climb(Rung.FREEZE, Rung.EVICT)
    assert node.take(0, guards=STALE)[1] == STALE
    assert not node.is_frozen
    node.take(1)
    assert node.is_frozen
    node.take(5, guards=STALE)
    assert node.is_frozen
    node.ladder.thaw_overdue(NOW_NS + 10 * NS_PER_S)
    assert node.is_frozen
    assert node.ladder.due_ns(NOW_NS + 10 * NS_PER_S) == NOW_NS + 11 * NS_PER_S
    node.ladder.thaw_overdue(NOW_NS + 11 * NS_PER_S)
    assert not node.is_frozen


def test_who_is_frozen_is_thawed_before_the_eviction(climb):
    node = climb(Rung.FREEZE, Rung.EVICT)
    node.take(0)
    assert node.is_frozen
    assert node.take(1)[1] == ()
    assert not node.is_frozen


def test_all_is_undone_when_the_shortage_is_over(climb):
    node = climb(Rung.BRAKE)
    node.take(0)
    node.take(1, used=500)
    assert list(node.journal.originals)
    node.take(31, used=500, guards=STALE)
    assert (node.pod / "memory.high").read_text().strip() == "9" * 9
    assert node.journal.originals == {}


def test_without_the_rung_no_pod_is_evicted(climb):
    node = climb(Rung.RECLAIM)
    (guard,) = node.take(0)[1]
    assert guard.code == "ladder"
    assert node.take(5)[1]
    assert [Path(change.path).name for change in node.audited] == ["memory.reclaim"]


def test_this_agent_is_neither_braked_nor_frozen(climb):
    node = climb(Rung.BRAKE, Rung.FREEZE, own_pod_uid=HOG)
    node.take(0)
    node.take(1)
    assert node.audited == []


def test_an_evicted_pod_that_stays_is_killed(climb):
    node = climb(Rung.EVICT, Rung.KILL)
    plan, held, is_kill = node.take(0)
    assert (len(plan.victims), held, is_kill) == (1, (), False)
    evicted = (PendingRelease(uid=HOG, since_ns=NOW_NS, credit_bytes=0),)
    assert node.take(29, pending=evicted)[2] is False
    plan, held, is_kill = node.take(30, pending=evicted)
    assert ([each.candidate.uid for each in plan.victims], held, is_kill) == ([HOG], (), True)
    assert "it was evicted" in plan.sentence
