"""Each outcome is told once, however often it was tried, and what a killed agent left is told by the next."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from koordebpf.act.outcome import Outcome, Result
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.agent.reporter import Reporter
from koordebpf.decide.plan import Plan
from koordebpf.decide.reconcile.values import DesiredState
from koordebpf.decide.suppress.round import SuppressPlan
from koordebpf.decide.suppress.state import SuppressState
from koordebpf.report.audit import AuditLog, AuditRecord
from koordebpf.report.events import EventPoster
from koordebpf.report.explain import decode_audit
from koordebpf.report.http import Health
from koordebpf.report.in_flight import InFlight
from koordebpf.report.metrics import AgentMetrics
from koordebpf.state.view import PendingRelease
from tests.builders import frame, plan_of, pod

RETRIES = 20
RECORDED = frame([pod("hog", anon=300), pod("calm", anon=10)], used=900)
HOG = "uid-spark-hog"


class Taken:
    """An API server that takes every Event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def create_event(
        self, namespace: str, name: str, uid: str, *, reason: str, message: str, at: datetime, timeout_s: float
    ) -> None:
        self.events.append((reason, message))

    def close(self) -> None:
        """Nothing waits here."""


class Agent:
    """A reporter with everything that it tells, in `folder`; `tick` is what the agent does with one plan."""

    def __init__(self, folder: Path) -> None:
        self.api, self.metrics, self.path = Taken(), AgentMetrics(), folder / "audit.jsonl"
        self.audit = AuditLog(self.path)
        self.in_flight = InFlight(folder / "in-flight.jsonl")
        self.events = EventPoster(self.api)
        self.reporter = Reporter(
            node="n1",
            dry_run=False,
            audit=self.audit,
            events=self.events,
            metrics=self.metrics,
            health=Health(),
            in_flight=self.in_flight,
        )

    def carry_out(self, plan: Plan) -> int:
        decided_ns = time.monotonic_ns()
        self.reporter.begin(plan, crossed_ns=None, decided_ns=decided_ns)
        sent = self.outcome(Result.SENT, decided_ns)
        self.reporter.plan(plan, [sent], crossed_ns=None, decided_ns=decided_ns)
        self.reporter.flush()
        return decided_ns

    def answer(self, result: Result, decided_ns: int) -> None:
        self.reporter.outcome(self.outcome(result, decided_ns))
        self.reporter.flush()

    def outcome(self, result: Result, decided_ns: int) -> Outcome:
        return Outcome(HOG, "spark", "hog", "api", result, f"answer {decided_ns}", decided_ns, sent_ns=decided_ns)

    def lines(self) -> tuple[AuditRecord, ...]:
        records, problems = decode_audit(self.path.read_bytes() if self.path.exists() else b"", "audit")
        assert problems == ()
        return records

    def counted(self) -> dict[tuple[str, str], float]:
        (family,) = [each for each in self.metrics.collect() if each.name == "koordebpf_evictions"]
        return {(each.labels["reason"], each.labels["result"]): each.value for each in family.samples}


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_an_eviction_that_is_refused_twenty_times_is_one_event(agent: Agent) -> None:
    plan = plan_of(RECORDED)
    for _ in range(RETRIES):
        agent.answer(Result.REFUSED, agent.carry_out(plan))
    decided_ns = agent.carry_out(plan)
    agent.answer(Result.DONE, decided_ns)
    agent.reporter.released(PendingRelease(HOG, decided_ns, 1), decided_ns + 1)
    agent.reporter.flush()
    agent.reporter.close()
    assert [reason for reason, _ in agent.api.events] == ["evictPodFail", "evictPodSuccess"]
    assert agent.api.events[1][1] == (
        "evict Pod:spark/hog, reason: evicted, message: trigger by koordlet feature BEMemoryEvict, kill pod: hog"
    )
    # Every answer is counted and stands in the audit.
    assert agent.counted() == {("BEMemoryEvict", "refused"): RETRIES, ("BEMemoryEvict", "done"): 1}
    assert [line.outcomes[0].result for line in agent.lines()] == [Result.REFUSED] * RETRIES + [Result.DONE]
    assert len({line.id for line in agent.lines()}) == RETRIES + 1


def test_another_pod_and_another_outcome_are_news(agent: Agent) -> None:
    for result in (Result.REFUSED, Result.FAILED, Result.REFUSED, Result.FAILED):
        agent.answer(result, agent.carry_out(plan_of(RECORDED)))
    agent.reporter.close()
    assert [reason for reason, _ in agent.api.events] == ["evictPodFail", "evictPodFail"]


def test_nothing_is_left_under_way_once_it_is_told(agent: Agent, tmp_path: Path) -> None:
    decided_ns = agent.carry_out(plan_of(RECORDED))
    assert len(InFlight(tmp_path / "in-flight.jsonl").left) == 1
    agent.answer(Result.REFUSED, decided_ns)
    assert InFlight(tmp_path / "in-flight.jsonl").left == ()
    agent.reporter.close()
    assert not (tmp_path / "in-flight.jsonl").exists()


def test_the_successor_of_a_killed_agent_tells_what_it_left(
    agent: Agent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(RECORDED)
    agent.answer(Result.REFUSED, agent.carry_out(plan))
    agent.carry_out(plan)
    agent.events.close()
    # No close: it was killed here.
    successor = Agent(tmp_path)
    told, left = successor.lines()
    assert (told.interrupted, left.interrupted) == (False, True)
    assert [each.result for each in left.outcomes] == [Result.SENT]
    assert "the agent before this one was ended in the middle of: evicting spark/hog" in caplog.text
    assert successor.reporter.decisions() == (left,)
    successor.reporter.close()
    third = Agent(tmp_path)
    assert len(third.lines()) == 2
    third.reporter.close()


def test_a_record_waits_under_way_until_the_audit_takes_it(agent: Agent, tmp_path: Path) -> None:
    agent.path.mkdir()  # a directory cannot be written to
    agent.answer(Result.REFUSED, agent.carry_out(plan_of(RECORDED)))
    assert (agent.audit.waiting, len(InFlight(tmp_path / "in-flight.jsonl").left)) == (1, 1)
    agent.path.rmdir()
    agent.answer(Result.REFUSED, agent.carry_out(plan_of(RECORDED)))
    assert (agent.audit.waiting, len(agent.lines())) == (0, 2)
    assert InFlight(tmp_path / "in-flight.jsonl").left == ()
    agent.reporter.close()


def test_the_order_of_the_lines_does_not_hang_on_the_wall_clock(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    hour_s = 3600
    steps = iter([0, hour_s, -24 * hour_s, 1])
    start_s = time.time()
    for step_s in steps:
        monkeypatch.setattr(time, "time", lambda step_s=step_s: start_s + step_s)
        agent.answer(Result.REFUSED, agent.carry_out(plan_of(RECORDED)))
    agent.reporter.close()
    lines = agent.lines()
    assert [line.decided_ns for line in lines] == sorted(line.decided_ns for line in lines)
    assert [line.time for line in lines] != sorted(line.time for line in lines)
    assert all(line.latencies.decided_to_sent_ns == 0 for line in lines)
    assert len({line.id for line in lines}) == 4


def held_to(quota: int, path: str = "/be/cpu.cfs_quota_us", **more: object) -> FileChange:
    return msgspec.structs.replace(FileChange(path, "-1", str(quota), WriteResult.WRITTEN, f"quota {quota}", 1), **more)


def test_files_that_suppression_changes_alike_are_one_sentence(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for number in range(440):
            path = f"/be/pod{number}/cpuset.cpus"
            agent.reporter.held(held_to(1, path, is_final=False))
            agent.reporter.held(held_to(2, path))
        agent.reporter.suppression(SuppressPlan("", SuppressState(), DesiredState("")), {})
    assert caplog.messages == ["/be/pod0/cpuset.cpus and 439 more: -1 → 2: quota 2"]
    assert len(agent.reporter.writes()) == 880  # each is on record
    assert agent.path.read_bytes().count(b"\n") == 880


def test_a_quota_that_follows_the_load_is_said_now_and_then(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for quota in range(20):
            agent.reporter.held(held_to(quota))
            agent.reporter.suppression(SuppressPlan("", SuppressState(), DesiredState("")), {})
        agent.reporter.held(held_to(20, result=WriteResult.BUSY, detail="EBUSY"))
        agent.reporter.close()
    assert caplog.messages == [
        "/be/cpu.cfs_quota_us: -1 → 0: quota 0",
        "/be/cpu.cfs_quota_us: -1 → 20 was not written: EBUSY",
    ]
