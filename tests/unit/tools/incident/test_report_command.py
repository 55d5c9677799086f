"""`koordebpf report` of recordings and audits, as files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from koordebpf.cli import _group
from koordebpf.errors import ConfigError
from koordebpf.kernel.signals import SignalQuality
from koordebpf.state.outcome import Outcome
from koordebpf.state.outcome import Result as Fate
from koordebpf.store.audit_record import OpenPlan
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.store.recorder.values import RecordedEvent, signals_seen
from koordebpf.tools.incident.of_audit import incident_of_audit
from koordebpf.tools.incident.of_recording import incident_of_recording
from koordebpf.tools.incident.values import Incident
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, plan_of, pod
from tests.support.values.rounds import encoded, wall_ns

DECIDED = (5, 9)
QUALITY = SignalQuality("co-re", "timed", "traced", "one pass", "backend co-re: each stall is timed")


def run(*arguments: object, exit_code: int = 0, given: bytes | None = None) -> Result:
    result = CliRunner().invoke(_group, ["report", *map(str, arguments)], catch_exceptions=False, input=given)
    assert result.exit_code == exit_code, result.output
    return result


def events_of(second: int) -> list[RecordedEvent]:
    now_ns, wall_s = NOW_NS + second * NS_PER_S, wall_ns(second) / NS_PER_S
    outcome = Outcome("uid-spark-job-0", "spark", "job-0", "api", Fate.DONE, "gone", now_ns + 5, sent_ns=now_ns + 9)
    entry = {"uid": outcome.uid, "since_ns": now_ns, "credit_bytes": 201 * MIB}
    decided = {"outcomes": [], "crossed_ns": now_ns - 2_000_000, "decided_ns": now_ns + 5, "wall_s": wall_s}
    return [
        RecordedEvent("PlanDecided", wall_s, decided),
        RecordedEvent("OutcomeArrived", wall_s, {"outcome": msgspec.to_builtins(outcome), "now_ns": now_ns + 20}),
        RecordedEvent("MemoryReleased", wall_s + 0.5, {"entry": entry, "now_ns": now_ns + 500_000_005}),
    ]


def made(path: Path, seconds: int = 12, *, quality: bool = True) -> Path:
    store, encoder = FileStore(path, Run("0123abcd", "node-1"), 64 * MIB), RoundEncoder()
    for second in range(seconds):
        is_short = second in DECIDED
        events = events_of(second) if is_short else []
        if quality and second == 0:
            events.append(signals_seen(QUALITY, "6.12.0", wall_ns(0) / NS_PER_S))
        store.add(encoded(second, encoder, used_mib=900 if is_short else 500), b"", events)
    store.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(tmp_path / "node.rounds")


def incident(path: Path, *times: int | None, decision: int | None = None) -> Incident:
    return incident_of_recording(Recording(path), "node.rounds", *times, decision=decision)


def test_a_recording_as_an_incident(path: Path) -> None:
    found = incident(path)
    assert found.summary == "2 decisions chose 1 pod. The memory of 1 came back. There was no OOM kill."
    assert (found.node, found.first_s, found.last_s) == ("node-1", wall_ns(0) / NS_PER_S, wall_ns(11) / NS_PER_S)
    memory = found.charts[0]
    used = next(each for each in memory.series if each.name == "node, in use")
    assert used.values == tuple((900 if second in DECIDED else 500) * MIB for second in range(12))
    (decision,) = found.decisions
    assert decision.times == 2 and decision.victims == ("spark/job-0",)
    assert decision.latencies == "seen to decided 2 ms, decided to sent 4 ns, decided to memory back 500 ms"
    assert {row.pod for row in decision.rankings[0].rows} == {
        "spark/job-0", "spark/job-1", "spark/job-2", "spark/job-3", "web/web",
    }  # fmt: skip
    assert [row.after_ns for row in found.returned] == [NS_PER_S // 2]
    assert found.signals == ("Kernel 6.12.0; backend co-re: each stall is timed",)
    facts = {each.name: each.value for each in found.facts}
    assert facts["Rounds read"] == "12, of which plots show 12" and facts["Pods measured"] == "5 to 5"
    assert "memoryEvictThresholdPercent 80" in facts["NodeSLO"]
    assert "No round has a ledger: nothing is known of who made whom stall." in found.missing
    assert {each.kind for each in found.marks} == {"decision", "back"}


def test_what_a_recording_lacks_is_said(tmp_path: Path) -> None:
    found = incident(made(tmp_path / "old.rounds", 3, quality=False))
    assert "The recording does not say which kernel and which signals the decisions rest on." in found.missing
    assert found.summary == "No pod was to be evicted. There was no OOM kill."
    assert found.decisions == () and found.returned == ()


def test_a_part_by_time_and_by_decision(path: Path) -> None:
    part = incident(path, wall_ns(6), wall_ns(8))
    assert part.decisions == () and len(part.charts[0].times_s) == 3
    assert "The recording has more rounds than this page shows; --since and --until choose others." in part.missing
    assert incident(path, decision=1).decisions
    with pytest.raises(ConfigError, match="must be 1 to 2"):
        incident(path, decision=3)
    with pytest.raises(ConfigError, match="has none of that time"):
        incident(path, wall_ns(50), wall_ns(60))


def test_rounds_that_cannot_be_read_are_named(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-150] ^= 0xFF  # of the last rounds
    path.write_bytes(raw)
    found = incident(path)
    assert any(each.startswith("Passed over: ") for each in found.missing)
    assert found.charts


def test_the_command_writes_a_page_in_place_of_another(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "incident.html"
    page.write_text("old")
    page.chmod(0o600)
    said = run(path, "-o", page).output
    assert "2 decisions chose 1 pod" in said and "KiB" in said
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and "spark/job-0" in text
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".rounds"] == ["incident.html"]
    assert page.stat().st_mode & 0o777 == 0o600


def test_a_page_that_cannot_be_written_is_an_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a file that can be written"):
        run(path, "-o", tmp_path / "none" / "incident.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="must be a file that can be written"):
        run(path, "-o", tmp_path / "folder")
    assert not list(tmp_path.glob(".folder*"))


def test_times_and_a_decision_exclude_each_other(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="excludes --since"):
        run(path, "-o", tmp_path / "x.html", "--decision", "1", "--since", "1")


@pytest.mark.parametrize("option", ["--since", "--until", "--decision"])
def test_a_week_is_no_part_of_itself(option: str, tmp_path: Path) -> None:
    refused = run(tmp_path, "-o", tmp_path / "x.html", "--week", option, "1", exit_code=2)
    assert "--week excludes --since, --until and --decision" in refused.output
    assert not (tmp_path / "x.html").exists()


def audit_line(second: int, result: Fate = Fate.DONE, victims: int = 1) -> bytes:
    anon = 200 // victims
    plan = plan_of(
        frame([*(pod(f"hog-{number}", anon=anon) for number in range(victims)), pod("calm", anon=1)], used=900)
    )
    line = OpenPlan(
        plan,
        node="n1",
        dry_run=result is Fate.DRY_RUN,
        seen_ns=1,
        decided_ns=5,
        wall_s=wall_ns(second) / NS_PER_S,
        signals=QUALITY,
    )
    for victim in plan.victims:
        who = victim.candidate
        sent_ns = 7 if result is Fate.DONE else None
        outcome = Outcome(who.uid, "spark", who.name, "cgroup", result, "so", 5, sent_ns=sent_ns, killed_tasks=3)
        line.add_outcome(outcome)
        if result is Fate.DONE:
            line.record_freed(who.uid, 40_000_005)
    return msgspec.json.encode(line.record())


WRITE = json.dumps(
    {
        "schema": "koordebpf.write/v1",
        "time": "2027-01-15T08:00:03Z",
        "node": "n1",
        "change": {"path": "/x/cpu.max", "old": "1", "new": "2", "result": "written", "reason": "r", "now_ns": 1},
    },
    separators=(",", ":"),
).encode()


def test_an_audit_as_an_incident() -> None:
    raw = b"\n".join([audit_line(1), WRITE, b"{half", audit_line(30, Fate.DRY_RUN)])
    found = incident_of_audit(raw, "audit.jsonl")
    assert found.summary == "2 decisions chose 1 pod; 1 change of files in the audit."
    assert [each.is_dry_run for each in found.decisions] == [False, True]
    assert {row.pod for row in found.decisions[0].rankings[0].rows} == {"spark/hog-0", "spark/calm"}
    (back,) = found.returned
    assert (back.pod, back.after_ns, back.credit_bytes) == ("spark/hog-0", 40_000_000, 200 * MIB)
    assert [line.kind for line in found.timeline] == ["decision", "files", "decision"]
    assert found.signals == (QUALITY.sentence,) and found.heat is None
    assert any("no measurements between decisions" in each for each in found.missing)
    assert any(each.startswith("Left out: ") for each in found.missing)
    assert [each.name for each in found.charts[0].series] == ["node, in use", "threshold", "lower mark"]


def test_of_several_victims_an_audit_knows_when_the_last_came_back() -> None:
    found = incident_of_audit(audit_line(1, victims=2), "a")
    assert [each.after_ns for each in found.returned] == [None, None]
    assert all("the last of the 2 was back 0.04 s after" in each.note for each in found.returned)
    assert found.charts == ()  # of one decision there is no line to draw


def test_a_part_of_an_audit() -> None:
    raw = b"\n".join(audit_line(second) for second in (0, 7200))
    assert len(incident_of_audit(raw, "a").decisions) == 1
    assert incident_of_audit(raw, "a", decision=1).first_s == wall_ns(0) / NS_PER_S
    assert len(incident_of_audit(raw, "a", since_ns=0).decisions) == 2
    with pytest.raises(ConfigError, match="must be 1 to 2"):
        incident_of_audit(raw, "a", decision=0)


@pytest.mark.parametrize("raw", [b"", b"{}\n", b"[]", b"\x00\xff", b"[1]"])
def test_what_is_no_audit_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigError, match="audit"):
        incident_of_audit(raw, "x")


def test_the_command_reads_an_audit_from_standard_input(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    said = run("-", "-o", page, given=audit_line(1)).output
    assert "An audit has no ledger" in said
    assert re.search(r"<h1>Incident on n1</h1>", page.read_text())


def test_names_of_a_pod_may_be_anything(tmp_path: Path) -> None:
    from tests.support.values.rounds import round_at

    tick, decision = round_at(1, used_mib=900)
    hostile = replace(tick.frame.pods[1], metadata=replace(tick.frame.pods[1].metadata, name="</script><script>x()"))
    tick = replace(tick, frame=replace(tick.frame, pods=(tick.frame.pods[0], hostile, *tick.frame.pods[2:])))
    store = FileStore(tmp_path / "h.rounds", Run("0123abcd", "<b>n</b>"), MIB)
    store.add(RoundEncoder().encode(tick, decision, wall_ns(1)), b"", [])
    store.close()
    page = tmp_path / "h.html"
    run(tmp_path / "h.rounds", "-o", page)
    text = page.read_text()
    assert "<script>x()" not in text and "&lt;script&gt;x()" in text and "<b>n" not in text
