"""Audit lines, sentences, Events and log lines."""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from koordebpf.cli.schemas import object_schema
from koordebpf.errors import KubeError
from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.plan import Balance, Candidate, FeaturePlan, Holding, Plan, Victim
from koordebpf.report.events import EventPoster, PodEvent, eviction_event
from koordebpf.report.log_formats import JsonFormatter
from koordebpf.report.pages.explain import decode_audit
from koordebpf.report.sentences import outcome_sentence, tick_sentence
from koordebpf.state.amount import MEMORY
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit import AuditLog
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.repeat_filter import RepeatFilter
from koordebpf.units import NS_PER_S
from tests.support.patience import patience

FILES = SignalQuality("files", "pressure", "watched", "files", "backend files: …")


def candidate(n: int) -> Candidate:
    return Candidate(
        rank=n, uid=f"u-{n}", namespace="default", name=f"spark-{n}", cgroup_id=n, priority=5000,
        holdings=(Holding(MEMORY, n, n, "memory"),), koordinator_credit_bytes=n,
    )  # fmt: skip


def victim(n: int = 1) -> Victim:
    text = f"trigger by koordlet feature BEMemoryEvict, kill pod: spark-{n}"
    return Victim(candidate=candidate(n), reason="evicted", message=text)


def plan(victims: int = 1, candidates: int = 1) -> Plan:
    feature = FeaturePlan(
        verdict=Verdict(feature="BEMemoryEvict", fires=True, reason="71 % >= 70 %"),
        balance=Balance(MEMORY, 9),
        victims=tuple(victim(n + 1) for n in range(victims)),
        candidates=tuple(candidate(n + 1) for n in range(candidates)),
    )
    return Plan(now_ns=1_000, features=(feature,), sentence="evicting default/spark-1: 71 % >= 70 %")


def outcome(result: Result, n: int = 1, **more: int) -> Outcome:
    return Outcome(f"u-{n}", "default", f"spark-{n}", "api", result, "why", 1_000, **more)


def open_plan(value: Plan) -> OpenPlan:
    return OpenPlan(value, node="n1", dry_run=False, seen_ns=400, decided_ns=1_000, wall_s=0.0)


def test_a_plan_settles_when_every_outcome_is_final_and_the_memory_is_back() -> None:
    entry = open_plan(plan(victims=2, candidates=14))
    assert not entry.is_settled
    assert entry.add_outcome(outcome(Result.SENT, 1, sent_ns=1_500))
    assert entry.add_outcome(outcome(Result.GONE, 2))
    assert not entry.is_settled
    entry.add_outcome(outcome(Result.DONE, 1, sent_ns=1_600))
    assert not entry.is_settled
    entry.record_freed("u-7", 7_000)  # of another plan
    assert not entry.is_settled
    entry.record_freed("u-1", 9_000)
    entry.record_freed("u-1", 99_000)
    assert entry.is_settled
    assert not entry.add_outcome(outcome(Result.DONE, 7))
    record = entry.record()
    assert record.time == "1970-01-01T00:00:00.000Z"
    assert (record.latencies.seen_to_decided_ns, record.latencies.decided_to_sent_ns) == (600, 600)
    assert record.latencies.decided_to_freed_ns == 8_000
    assert (record.features[0].candidates, len(record.features[0].ranking)) == (14, 10)
    assert record.features[0].victims == ("u-1", "u-2")


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_memory_is_back_when_that_of_the_last_victim_is(order: tuple[int, int]) -> None:
    entry = open_plan(plan(victims=2, candidates=2))
    assert entry.decided_to_freed_ns is None
    for at_ns, number in zip((4_000, 9_000), order, strict=True):
        entry.add_outcome(outcome(Result.DONE, number))
        entry.record_freed(f"u-{number}", at_ns)
    assert entry.decided_to_freed_ns == 8_000


def test_a_plan_is_sent_when_its_first_victim_is() -> None:
    entry = open_plan(plan(victims=2, candidates=2))
    assert entry.record().latencies.decided_to_sent_ns is None
    for number, sent_ns in ((1, 1_700), (2, 1_600)):
        entry.add_outcome(outcome(Result.DONE, number, sent_ns=sent_ns))
    assert entry.record().latencies.decided_to_sent_ns == 600


def test_a_final_outcome_is_not_overwritten() -> None:
    entry = open_plan(plan())
    entry.add_outcome(outcome(Result.DONE, sent_ns=2_000))
    entry.add_outcome(outcome(Result.SENT))
    assert entry.record().outcomes[0].result is Result.DONE


def test_a_line_reads_back_and_the_schema_names_its_fields(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    record = open_plan(plan()).record()
    assert log.write(record)
    (line,) = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(line, type=AuditRecord) == record
    of_an_agent_alone = {"hooks"}  # calls that end after the line is complete
    assert (
        set(json.loads(line)) == set(object_schema("audit")["$defs"]["AuditRecord"]["properties"]) - of_an_agent_alone
    )


def test_the_file_rotates_and_stays_bounded(tmp_path: Path) -> None:
    record = open_plan(plan()).record()
    size = len(msgspec.json.encode(record)) + 1
    log = AuditLog(tmp_path / "audit.jsonl", max_bytes=size * 2, kept=2)
    for _ in range(20):
        assert log.write(record)
    assert {file.name for file in tmp_path.iterdir()} == {"audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"}
    for file in tmp_path.iterdir():
        assert 0 < file.stat().st_size <= size * 2
        for line in file.read_bytes().splitlines():
            msgspec.json.decode(line, type=AuditRecord)
    assert (log.written, log.dropped) == (20, 0)


@pytest.mark.parametrize("torn", [b'{"schema": "koord', b'{"schema": ' + bytes(40)], ids=["cut", "zeros"])
def test_a_line_without_an_end_spoils_no_later_one(tmp_path: Path, torn: bytes) -> None:
    path, records = tmp_path / "audit.jsonl", [open_plan(plan()).record() for _ in range(2)]
    # GIVEN a file whose last line has no end, since the power failed
    path.write_bytes(torn)
    log = AuditLog(path)
    assert [log.write(record) for record in records] == [True, True]
    first, *later = path.read_bytes().split(b"\n")
    assert first == torn
    assert [msgspec.json.decode(line, type=AuditRecord) for line in later if line] == records
    assert len(later) == len(records) + 1


def test_a_full_disk_is_counted_and_does_not_stop_anything() -> None:
    log = AuditLog(Path("/dev/full"), waiting_lines=100)
    assert (log.last_error, log.problem) == (None, None)
    for n in range(130):
        assert not log.write(open_plan(plan()).record())
        assert (log.written, log.waiting, log.dropped) == (0, min(n + 1, 100), max(n - 99, 0))
    assert log.last_error == "/dev/full: No space left on device"


def test_lines_wait_for_a_directory_that_comes_back_and_keep_their_order(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "later/audit.jsonl")
    records = [open_plan(plan()).record() for _ in range(3)]
    assert [log.write(record) for record in records] == [False] * 3
    assert not log.catch_up()
    (tmp_path / "later").mkdir()
    assert log.catch_up()
    assert (log.written, log.waiting, log.dropped) == (3, 0, 0)
    assert decode_audit((tmp_path / "later/audit.jsonl").read_bytes(), "x") == (tuple(records), ())


def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert AuditLog(None).write(open_plan(plan()).record())
    assert json.loads(capfdbinary.readouterr().out)["schema"] == "koordebpf.audit/v2"


def test_standard_output_without_a_reader_gets_each_line_once_later(tmp_path: Path) -> None:
    records = [open_plan(plan()).record() for _ in range(3)]
    log = AuditLog(None)
    kept = os.dup(1)
    try:
        with Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), 1)
        assert [log.write(record) for record in records] == [False] * 3
        with (tmp_path / "out").open("wb") as out:
            os.dup2(out.fileno(), 1)
        assert log.catch_up()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert decode_audit((tmp_path / "out").read_bytes(), "out") == (tuple(records), ())


def test_events_have_koordinators_texts() -> None:
    done = eviction_event(victim(), outcome(Result.DONE))
    assert done == PodEvent(
        "default", "spark-1", "u-1", "evictPodSuccess",
        "evict Pod:default/spark-1, reason: evicted, message:"
        " trigger by koordlet feature BEMemoryEvict, kill pod: spark-1",
    )  # fmt: skip
    failed = eviction_event(victim(), outcome(Result.FAILED))
    assert failed is not None and failed.reason == "evictPodFail"
    assert failed.message == f"{done.message}, error why"
    for result in (Result.SENT, Result.HELD, Result.DRY_RUN):
        assert eviction_event(victim(), outcome(result)) is None


def test_a_pod_that_was_gone_already_has_no_event() -> None:
    assert eviction_event(victim(), outcome(Result.GONE)) is None


class Recorder:
    """Takes Events; fails for pods named `bad`, and has a defect for those named `odd`."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, datetime]] = []

    def create_event(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        reason: str,
        message: str,
        at: datetime,
        timeout_s: float,
        kind: str = "Warning",
        action: str | None = None,
        about: str = "Pod",
    ) -> None:
        if name == "bad":
            raise KubeError("500")
        if name == "odd":
            raise ZeroDivisionError
        self.taken.append((name, reason, at))

    def close(self) -> None:
        """Nothing waits here."""


def test_the_poster_continues_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    api = Recorder()
    poster = EventPoster(api)
    for name in ("bad", "odd", "good"):
        poster.post(PodEvent("ns", name, "u", "evictPodSuccess", "m"), 0.0)
    poster.close()
    assert [(name, reason) for name, reason, _ in api.taken] == [("good", "evictPodSuccess")]
    assert poster.dropped == 2
    assert "ns/bad was not recorded: 500" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_answer_that_never_comes_does_not_keep_the_poster_open(caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()

    class Hanging(Recorder):
        def create_event(self, *_: object, **__: object) -> None:
            over.wait()

    poster = EventPoster(Hanging(), close_s=0.05)
    poster.post(PodEvent("ns", "hangs", "u", "evictPodSuccess", "m"), 0.0)
    closer = threading.Thread(target=poster.close)
    closer.start()
    closer.join(patience(10))
    has_ended = not closer.is_alive()
    over.set()
    closer.join()
    assert has_ended
    assert "the last Events are left out" in caplog.text


def test_sentences() -> None:
    guard = ClosedGuard("pods_stale", "the list is old")
    assert tick_sentence(plan(), (), dry_run=False) == "evicting default/spark-1: 71 % >= 70 %"
    assert tick_sentence(plan(), (), dry_run=True).endswith("(dry run)")
    assert tick_sentence(plan(), (guard,), dry_run=False).endswith("; held: the list is old")
    assert tick_sentence(plan(victims=0), (guard,), dry_run=True) == plan(victims=0).sentence
    assert tick_sentence(plan(), (guard,), dry_run=False, signals=FILES) == (
        "evicting default/spark-1: 71 % >= 70 % [signals: files, stalls pressure, births watched];"
        " held: the list is old"
    )


def test_a_line_says_what_its_decision_rests_on() -> None:
    line = OpenPlan(plan(), node="n", dry_run=True, seen_ns=None, decided_ns=1, wall_s=0.0, signals=FILES).record()
    assert line.signals == FILES
    assert msgspec.json.decode(msgspec.json.encode(line), type=AuditRecord) == line
    assert outcome_sentence(outcome(Result.DONE)) == "evicted default/spark-1 by api: why"
    assert all(outcome_sentence(outcome(result)) for result in Result)


def test_repeats_are_held_back_and_counted() -> None:
    repeats = RepeatFilter(every_ns=30 * NS_PER_S)
    assert repeats.admit("k", "one", 0) == "one"
    assert [repeats.admit("k", "two", n * NS_PER_S) for n in (1, 2, 29)] == [None] * 3
    assert repeats.admit("other", "x", NS_PER_S) == "x"
    assert repeats.admit("k", "three", 30 * NS_PER_S) == "three (3 more like this suppressed)"


def test_the_filters_memory_is_bounded() -> None:
    repeats = RepeatFilter()
    for n in range(10_000):
        repeats.admit(str(n), "x", n)
    assert len(repeats._said) == 256


def test_log_lines_are_json_with_extras_and_tracebacks() -> None:
    record = logging.makeLogRecord(
        {"name": "a.b", "levelno": 30, "levelname": "WARNING", "msg": "x %s", "args": ("y\n",), "created": 0.0,
         "msecs": 7.0, "pod": "be/p", "odd": Path("/p")}
    )  # fmt: skip
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:00.007Z", "level": "warning", "logger": "a.b", "message": "x y\n",
        "pod": "be/p", "odd": "/p",
    }  # fmt: skip
    try:
        raise ValueError("boom")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = JsonFormatter().format(record)
    assert "\n" not in line and "ValueError: boom" in json.loads(line)["traceback"]
