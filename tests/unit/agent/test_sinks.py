"""Each outcome is reported once, however often it was tried, and what a killed agent left is reported by the next."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.owners import SUPPRESS
from koordebpf.agent.sinks import Sinks, open_sinks
from koordebpf.clock import SystemClock
from koordebpf.collect.node_watch import SignalState
from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings
from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.decide import decide
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import Plan
from koordebpf.policy.reconcile import DesiredState
from koordebpf.report.events import EventPoster
from koordebpf.report.http.routes import Health
from koordebpf.report.pages.explain import decode_audit
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.state.amount import CPU, Amount
from koordebpf.state.build import view_of_frame
from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PendingRelease
from koordebpf.store.audit import AuditLog
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import (
    EVENTS,
    AgentStopped,
    Event,
    MemoryReleased,
    PlanDecided,
    PlanStarted,
    RoundEnded,
    TickEnded,
    TickFailed,
)
from koordebpf.store.wal import InFlight
from koordebpf.strategies.cpu_suppress.decide import BE_CPU_SUPPRESS, SuppressDecision
from koordebpf.strategies.cpu_suppress.plan import SUPPRESS_GATE, SuppressPlan
from koordebpf.strategies.cpu_suppress.values import SuppressState
from koordebpf.units import MIB, NS_PER_S
from tests.support.taken_events import TakenEvents
from tests.support.values.builders import frame, plan_of, pod
from tests.support.values.cpu_nodes import node

RETRIES = 20
CALM = view_of_frame(frame([]))
RECORDED = frame([pod("hog", anon=300), pod("calm", anon=10)], used=900)
HOG = "uid-spark-hog"
QUALITY = SignalQuality("co-re", "timed", "traced", "one pass", "backend co-re: each stall is timed")
FULL = CpuWindow(60 * NS_PER_S, 60 * NS_PER_S, node_used_millicpu=90_000)


class SteppedWall(SystemClock):
    """A wall clock that someone sets."""

    step_s = 0.0

    def wall_s(self) -> float:
        return time.time() + self.step_s


class Agent:
    """Every sink, with its files in `folder`, and what the agent publishes of one plan."""

    def __init__(self, folder: Path) -> None:
        self.api, self.metrics, self.path = TakenEvents(), AgentMetrics(), folder / "audit.jsonl"
        self.audit = AuditLog(self.path)
        self.in_flight = InFlight(folder / "in-flight.jsonl")
        self.events = EventPoster(self.api)
        self.clock, self.health, plans = SteppedWall(), Health(), OpenPlans("n1", dry_run=False)
        self.recent = Recent(plans)
        self.sinks = open_sinks(
            plans,
            self.metrics,
            self.health,
            self.recent,
            audit=self.audit,
            in_flight=self.in_flight,
            events=self.events,
            clock=self.clock,
        )

    def publish(self, *events: Event) -> None:
        for event in events:
            self.sinks.publish(event)

    def end_tick(self) -> None:
        self.publish(TickEnded(time.monotonic_ns()))

    def close(self) -> None:
        self.publish(AgentStopped(time.monotonic_ns()))

    def start(self, plan: Plan, decided_ns: int) -> None:
        self.publish(PlanStarted(plan, None, decided_ns, self.clock.wall_s()))

    def change_file(self, change: FileChange) -> None:
        self.sinks.publish_change(change)

    def suppress(self, plan: SuppressPlan) -> None:
        made = SuppressDecision(state=plan.next, reason=plan.reason, skipped=plan.skipped, plan=plan)
        decision = TickDecision(Plan(CALM.now_ns, (), ""), (), (), strategies={BE_CPU_SUPPRESS.name: made})
        tick = TickFrame(frame=CALM.frame, settings=TickSettings(), guards=GuardFacts(CALM.now_ns, "file", None))
        self.publish(RoundEnded(tick, CALM, decision, SignalState(QUALITY)))

    def carry_out(self, plan: Plan) -> int:
        decided_ns = time.monotonic_ns()
        self.start(plan, decided_ns)
        sent = self.outcome(Result.SENT, decided_ns)
        self.publish(PlanDecided(plan, (sent,), None, decided_ns, self.clock.wall_s()))
        self.end_tick()
        return decided_ns

    def answer(self, result: Result, decided_ns: int) -> None:
        self.publish(OutcomeArrived(self.outcome(result, decided_ns), time.monotonic_ns()))
        self.end_tick()

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
    agent.publish(MemoryReleased(PendingRelease(HOG, decided_ns, 1), decided_ns + 1))
    agent.end_tick()
    agent.close()
    assert [reason for reason, *_ in agent.api.events] == ["evictPodFail", "evictPodSuccess"]
    assert agent.api.events[1][2] == (
        "evict Pod:spark/hog, reason: evicted, message: trigger by koordlet feature BEMemoryEvict, kill pod: hog"
    )
    # Every answer is counted and stands in the audit.
    assert agent.counted() == {("BEMemoryEvict", "refused"): RETRIES, ("BEMemoryEvict", "done"): 1}
    assert [line.outcomes[0].result for line in agent.lines()] == [Result.REFUSED] * RETRIES + [Result.DONE]
    assert len({line.id for line in agent.lines()}) == RETRIES + 1


def test_another_pod_and_another_outcome_are_news(agent: Agent) -> None:
    for result in (Result.REFUSED, Result.FAILED, Result.REFUSED, Result.FAILED):
        agent.answer(result, agent.carry_out(plan_of(RECORDED)))
    agent.close()
    assert [reason for reason, *_ in agent.api.events] == ["evictPodFail", "evictPodFail"]


def test_nothing_is_left_in_flight_once_it_is_reported(agent: Agent, tmp_path: Path) -> None:
    decided_ns = agent.carry_out(plan_of(RECORDED))
    assert len(InFlight(tmp_path / "in-flight.jsonl").left) == 1
    agent.answer(Result.REFUSED, decided_ns)
    assert InFlight(tmp_path / "in-flight.jsonl").left == ()
    agent.close()
    assert not (tmp_path / "in-flight.jsonl").exists()


def test_the_successor_of_a_killed_agent_reports_what_it_left(
    agent: Agent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(RECORDED)
    agent.answer(Result.REFUSED, agent.carry_out(plan))
    agent.carry_out(plan)
    agent.events.close()
    # No close: it was killed here.
    successor = Agent(tmp_path)
    reported, left = successor.lines()
    assert (reported.interrupted, left.interrupted) == (False, True)
    assert [each.result for each in left.outcomes] == [Result.SENT]
    assert "the agent before this one was ended in the middle of: evicting spark/hog" in caplog.text
    assert successor.recent.decisions() == (left,)
    successor.close()
    third = Agent(tmp_path)
    assert len(third.lines()) == 2
    third.close()


def test_a_record_stays_in_flight_until_the_audit_takes_it(agent: Agent, tmp_path: Path) -> None:
    agent.path.mkdir()  # a directory cannot be written to
    agent.answer(Result.REFUSED, agent.carry_out(plan_of(RECORDED)))
    assert (agent.audit.waiting, len(InFlight(tmp_path / "in-flight.jsonl").left)) == (1, 1)
    agent.path.rmdir()
    agent.answer(Result.REFUSED, agent.carry_out(plan_of(RECORDED)))
    assert (agent.audit.waiting, len(agent.lines())) == (0, 2)
    assert InFlight(tmp_path / "in-flight.jsonl").left == ()
    agent.close()


def test_the_order_of_the_lines_does_not_depend_on_the_wall_clock(agent: Agent) -> None:
    hour_s = 3600
    steps = iter([0, hour_s, -24 * hour_s, 1])
    for step_s in steps:
        agent.clock.step_s = step_s
        agent.answer(Result.REFUSED, agent.carry_out(plan_of(RECORDED)))
    agent.close()
    lines = agent.lines()
    assert [line.decided_ns for line in lines] == sorted(line.decided_ns for line in lines)
    assert [line.time for line in lines] != sorted(line.time for line in lines)
    assert all(line.latencies.decided_to_sent_ns == 0 for line in lines)
    assert len({line.id for line in lines}) == 4


def look(agent: Agent, *, now: int, threshold: int = 80, is_measured: bool = True, **memory: object) -> None:
    """Report one measurement of a node of 100 CPUs, 90 % used for a while; no pod can be evicted."""
    view = node(
        cpus=100, node_used=now, gates={"BEMemoryEvict": True, "CPUEvict": True}, window=FULL,
        strategy={"cpuEvictThresholdPercent": threshold, "evictEnabledPriorityThreshold": 1,
                  "memoryEvictThresholdPercent": 80},
    )  # fmt: skip
    if not is_measured:
        view = msgspec.structs.replace(view, cpu=None)
    view = msgspec.structs.replace(view, **memory)
    plan = decide(view)
    if any(feature.verdict.fires for feature in plan.features):
        agent.publish(PlanDecided(plan, (), None, view.now_ns, agent.clock.wall_s()))
    tick = TickFrame(frame=RECORDED, settings=TickSettings(), guards=GuardFacts(view.now_ns, "file", None))
    agent.publish(RoundEnded(tick, view, TickDecision(plan, (), ()), SignalState(QUALITY)))
    agent.end_tick()


def test_the_end_of_a_shortage_of_cpu_is_reported_as_one_of_cpu(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        look(agent, now=90_000)
        look(agent, now=85_000)
        look(agent, now=20_000)
        look(agent, now=20_000)
    assert caplog.messages == [
        "no action: node at 0 % < 80 %; node uses 90 % of its CPU ≥ 80 %, need 12 CPUs to reach 78 %, but no pod in"
        " reach of the priority threshold can be evicted",
        "no longer short of CPU: node uses 20 % of its CPU now < 80 %; 90 % in 60 s",
    ]


def test_a_look_between_two_measurements_of_cpu_is_no_word_on_it(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        look(agent, now=90_000)
        look(agent, now=90_000, is_measured=False)
        look(agent, now=90_000)
    assert len(caplog.messages) == 1
    assert agent.metrics.decision.needs["CPUEvict"] == Amount(CPU, 12_000)
    (skipped,) = [each for each in agent.metrics.collect() if each.name == "koordebpf_skipped_rounds"]
    assert skipped.samples == []


def test_the_use_of_memory_is_no_news_of_a_shortage_of_cpu(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for used in range(0, 70, 10):
            look(agent, now=90_000, used_bytes=used * 1000 * MIB // 100)
    assert len(caplog.messages) == 1


def test_who_holds_no_memory_that_could_be_measured_gives_none_back(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a pod evicted for CPU WHEN the API server refuses it, or has ended it THEN no memory was waited for
    labels = {"koordinator.sh/eviction-enabled": "true"}
    view = node(pods=[pod("hog", labels=labels, requests={"kubernetes.io/batch-cpu": "9000"})],
                gates={"CPUAllocatableEvict": True}, allocatable={"kubernetes.io/batch-cpu": "1000"})  # fmt: skip
    with caplog.at_level("INFO", logger="koordebpf"):
        for result in (Result.REFUSED, Result.DONE):
            decided_ns = agent.carry_out(decide(view))
            agent.publish(MemoryReleased(PendingRelease(HOG, decided_ns, 0), decided_ns + 1))
            agent.answer(result, decided_ns)
    agent.close()
    assert [line.outcomes[0].result for line in agent.lines()] == [Result.REFUSED, Result.DONE]
    assert {line.latencies.decided_to_freed_ns for line in agent.lines()} == {None}
    assert " gave 0 B back " not in caplog.text


def test_each_kind_of_shortage_has_its_end(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        look(agent, now=90_000, used_bytes=900 * MIB)
        look(agent, now=90_000, used_bytes=500 * MIB)
        look(agent, now=10_000, used_bytes=500 * MIB)
    assert [each for each in caplog.messages if not each.startswith("no action")] == [
        "back below the threshold: node at 50 % < 80 %",
        "no longer short of CPU: node uses 10 % of its CPU now < 80 %; 90 % in 60 s",
    ]


def held_to(quota: int, path: str = "/be/cpu.cfs_quota_us", **more: object) -> FileChange:
    return msgspec.structs.replace(
        FileChange(path, "-1", str(quota), WriteResult.WRITTEN, f"quota {quota}", 1, owner=SUPPRESS), **more
    )


def test_files_that_suppression_changes_alike_are_one_sentence(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for number in range(440):
            path = f"/be/pod{number}/cpuset.cpus"
            agent.change_file(held_to(1, path, is_final=False))
            agent.change_file(held_to(2, path))
        agent.suppress(SuppressPlan("", SuppressState(), DesiredState("")))
    assert caplog.messages == ["/be/pod0/cpuset.cpus and 439 more: -1 → 2: quota 2"]
    agent.end_tick()
    assert len(agent.recent.writes()) == 880  # each is recorded
    assert agent.path.read_bytes().count(b"\n") == 880


def test_a_quota_that_follows_the_load_is_said_now_and_then(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for quota in range(20):
            agent.change_file(held_to(quota))
            agent.suppress(SuppressPlan("", SuppressState(), DesiredState("")))
        agent.change_file(held_to(20, result=WriteResult.BUSY, detail="EBUSY"))
        agent.close()
    assert caplog.messages == [
        "/be/cpu.cfs_quota_us: -1 → 0: quota 0",
        "/be/cpu.cfs_quota_us: -1 → 20 was not written: EBUSY",
    ]


def test_a_file_that_others_changed_is_said_as_such_and_at_once(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for is_correction in (False, True, True):
            agent.change_file(held_to(20, is_correction=is_correction))
            agent.suppress(SuppressPlan("", SuppressState(), DesiredState("")))
    assert caplog.messages == [
        "/be/cpu.cfs_quota_us: -1 → 20: quota 20",
        "/be/cpu.cfs_quota_us: -1 → 20, set right after another process: quota 20",
    ]


def test_a_tenant_that_changes_an_annotation_each_second_is_no_flood(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for second in range(600):
            for number in range(30):
                path = f"/be/pod{number}/memory.high"
                now_ns = (1000 + second) * NS_PER_S
                agent.change_file(
                    FileChange(path, "0", str(second), WriteResult.WRITTEN, "its annotation", now_ns, owner="memoryqos")
                )
            agent.publish(TickEnded((1000 + second) * NS_PER_S))
        agent.close()
    assert len(caplog.messages) <= 600 / 30 * 11
    assert "files of memoryqos: 20 more suppressed within 30 s" in caplog.messages
    written = [msgspec.json.decode(line)["change"] for line in agent.path.read_bytes().splitlines()]
    assert len(written) <= 30 * (5 + 10 + 1) + 120 + 600 * 2
    assert {each["path"]: each["new"] for each in written} == {f"/be/pod{at}/memory.high": "599" for at in range(30)}
    assert any("changes of the file that are left out" in each["reason"] for each in written)


def test_rounds_that_suppression_skips_are_counted(agent: Agent) -> None:
    for word in ("first_sample", "no_best_effort", "no_best_effort", None, "no_best_effort"):
        agent.suppress(SuppressPlan(f"{word}", SuppressState(), DesiredState(""), skipped=word))
    skipped = next(each for each in agent.metrics.collect() if each.name == "koordebpf_skipped_rounds")
    counted = {each.labels["reason"]: each.value for each in skipped.samples if each.labels["feature"] == SUPPRESS_GATE}
    assert counted == {"first_sample": 1, "no_best_effort": 3}


def test_that_suppression_is_off_is_said_at_once(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="koordebpf"):
        for quota, policy in ((20, "cfsQuota"), (30, "cfsQuota"), (-1, None)):
            agent.change_file(held_to(quota))
            agent.suppress(SuppressPlan("", SuppressState(), DesiredState(""), policy=policy))
    assert caplog.messages == ["/be/cpu.cfs_quota_us: -1 → 20: quota 20", "/be/cpu.cfs_quota_us: -1 → -1: quota -1"]


def test_decisions_are_read_from_another_thread_while_a_plan_is_recorded(agent: Agent) -> None:
    # GIVEN a plan of 200 victims
    plan = plan_of(frame([pod(f"be-{n}", anon=3) for n in range(200)], used=1020, capacity="1024Mi"))
    victims = [victim.candidate for feature in plan.features for victim in feature.victims]
    assert len(victims) > 50
    errors: list[Exception] = []
    reads = 0
    is_over = threading.Event()

    def read() -> None:
        nonlocal reads
        while not is_over.is_set():
            try:
                for record in agent.recent.decisions():
                    assert all(outcome.result is not None for outcome in record.outcomes)
                reads += 1
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    try:
        # WHEN outcomes arrive while it is read
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and not errors:
            now_ns = time.monotonic_ns()
            agent.start(plan, now_ns)
            for victim in victims:
                for result in (Result.SENT, Result.FAILED):
                    outcome = Outcome(victim.uid, victim.namespace, victim.name, "api", result, "x", now_ns)
                    agent.publish(OutcomeArrived(outcome, now_ns))
            agent.end_tick()
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        for thread in threads:
            thread.join()
    # THEN no reader meets a plan that is being changed
    assert not errors, f"{errors[0]!r} after {reads} reads"
    assert reads


def test_decisions_show_what_is_awaited_as_of_the_last_tick(agent: Agent) -> None:
    decided_ns = agent.carry_out(plan_of(RECORDED))
    (record,) = agent.recent.decisions()
    assert [outcome.result for outcome in record.outcomes] == [Result.SENT]
    agent.answer(Result.FAILED, decided_ns)
    (record,) = agent.recent.decisions()
    assert [outcome.result for outcome in record.outcomes] == [Result.FAILED]


class Broken:
    """A sink that fails on every event."""

    name = "broken"
    takes = EVENTS

    def publish(self, event: Event) -> None:
        raise OSError("no room")


def test_a_sink_that_fails_stops_no_other_and_is_logged_once(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    agent.sinks = sinks = Sinks((Broken(), agent.sinks), agent.clock)
    agent.metrics.sinks.errors = sinks.errors
    for _ in range(3):
        agent.answer(Result.REFUSED, agent.carry_out(plan_of(RECORDED)))
    assert len(agent.lines()) == 3
    failures = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in failures] == [
        "sink broken failed on PlanStarted; more of its errors are only counted"
    ]
    assert failures[0].exc_info is not None
    (family,) = [each for each in agent.metrics.collect() if each.name == "koordebpf_sink_errors"]
    assert [(each.labels, each.value) for each in family.samples] == [({"sink": "broken"}, 15)]
    agent.close()


def test_an_unfinished_plan_takes_no_outcome_of_the_next(agent: Agent) -> None:
    # GIVEN a plan whose tick failed before its outcomes were known
    plan, decided_ns = plan_of(RECORDED), time.monotonic_ns()
    agent.start(plan, decided_ns)
    agent.publish(TickFailed("disk on fire"))
    assert agent.health.ready(decided_ns)[0] is False
    # WHEN the next one is carried out without a guard
    outcome = agent.outcome(Result.DONE, decided_ns + 1)
    agent.publish(PlanDecided(plan, (outcome,), None, decided_ns + 1, agent.clock.wall_s()))
    # THEN each has a line of its own
    agent.close()
    assert [len(line.outcomes) for line in agent.lines()] == [0, 1]


def test_without_an_audit_log_no_line_is_lost_and_none_waits() -> None:
    trail = AuditTrail(None, None, OpenPlans("n1", dry_run=True))
    assert (trail.dropped, trail.waiting, trail.left) == (0, 0, ())


def test_an_agent_that_is_killed_once_all_is_known_was_not_in_the_middle_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN an eviction whose memory is back, while the audit cannot be written
    killed = Agent(tmp_path)
    killed.path.mkdir()
    decided_ns = killed.carry_out(plan_of(RECORDED))
    killed.answer(Result.DONE, decided_ns)
    killed.publish(MemoryReleased(PendingRelease(HOG, decided_ns, 300 * MIB), decided_ns + 5))
    killed.end_tick()
    # and one that was just sent
    other_ns = killed.carry_out(plan_of(RECORDED))
    # WHEN it is killed, and the next one can write
    killed.path.rmdir()
    successor = Agent(tmp_path)
    # THEN only of the second the end is not known, and the audit has both
    said = [each.getMessage() for each in caplog.records if "in the middle of" in each.getMessage()]
    assert len(said) == 1
    first, second = successor.lines()
    assert (first.decided_ns, first.interrupted, first.latencies.decided_to_freed_ns) == (decided_ns, False, 5)
    assert (second.decided_ns, second.interrupted) == (other_ns, True)
    successor.close()
