"""What `koordebpf explain` says of audit lines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.cli.explain import explain
from koordebpf.errors import ConfigError
from koordebpf.report.pages.explain import concerns, decode_audit, explained
from koordebpf.state.outcome import HookResult, Outcome, Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from tests.support.values.builders import frame, ls_pod, plan_of, pod


def record(*, dry_run: bool = False, result: Result = Result.DONE) -> AuditRecord:
    pods = [pod("hog", anon=300), pod("calm", anon=10), pod("kept", anon=50, policy="[]"), ls_pod("api", anon=200)]
    plan = plan_of(frame(pods, used=900))
    (victim,) = plan.victims
    line = OpenPlan(plan, node="n1", dry_run=dry_run, seen_ns=1_000, decided_ns=2_501_000, wall_s=0.0)
    detail = "cgroup.kill" if result is Result.DONE else "a PodDisruptionBudget"
    line.add_outcome(
        Outcome(
            victim.candidate.uid, "spark", "hog", "cgroup", result, detail, 2_501_000, sent_ns=2_600_000, killed_tasks=3
        )
    )
    if result is Result.DONE:
        line.record_freed(victim.candidate.uid, 40_000_000)
    return line.record()


def test_one_decision_from_need_to_memory_back() -> None:
    text = explained(record())
    assert text.splitlines() == [
        "1970-01-01T00:00:00.000Z n1",
        "  evicting spark/hog (priority 5000, 300 MiB): node at 90 % ≥ 80 %, need 120 MiB",
        "    to reach 78 %",
        "  BEMemoryEvict: 120 MiB were needed, one pod of 2 candidates would give 300",
        "    MiB.",
        "    1. spark/hog (priority 5000, 300 MiB) evicted by cgroup, 3 tasks:",
        "      cgroup.kill",
        "    2. spark/calm (priority 5000, 10.0 MiB) stays",
        "    not spark/kept: its annotation koordinator.sh/eviction-policy does not list",
        "      BEMemoryEvict",
        "  seen to decided 2.5 ms, decided to sent 99 µs, decided to memory back 37.5 ms",
    ]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("result", "words"),
    [(Result.REFUSED, "refused by cgroup"), (Result.HELD, "held back by"), (Result.DRY_RUN, "would have been evicted")],
)
def test_what_was_not_done_is_said(result: Result, words: str) -> None:
    assert words in explained(record(result=result))


def test_lines_that_are_none_are_reported_and_the_others_read() -> None:
    good = msgspec.json.encode(record())
    records, problems = decode_audit(good + b"\n{half a li\n\n" + good + b"\n", "audit.jsonl")
    assert len(records) == 2
    assert [problem.path for problem in problems] == ["audit.jsonl:2:2"]
    assert decode_audit(b"[" + good + b"]", "x") == ((record(),), ())
    assert decode_audit(b"[{}]", "x")[1][0].rule.startswith("must be audit lines")


def test_a_pod_is_found_as_candidate_and_as_one_that_was_none() -> None:
    for name in ("hog", "spark/calm", "uid-spark-kept"):
        assert concerns(record(), name)
    assert not concerns(record(), "web/api")


def test_the_command_reads_a_file(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    audit.write_bytes(msgspec.json.encode(record(dry_run=True)) + b"\n" + msgspec.json.encode(record()) + b"\n")
    both = CliRunner().invoke(explain, [str(audit)], catch_exceptions=False).output
    assert both.count("n1, dry run") == 1
    assert both.count("evicting spark/hog") == 2
    assert CliRunner().invoke(explain, ["--last", "1", str(audit)]).output.count("evicting") == 1
    assert (
        "no decision to evict a pod that speaks of web/x"
        in CliRunner().invoke(explain, ["--pod", "web/x", str(audit)]).output
    )
    as_json = CliRunner().invoke(explain, ["--json", "--last", "1", str(audit)]).output
    assert msgspec.json.decode(as_json, type=AuditRecord) == record()


def test_an_agent_that_does_not_answer_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="must be a running agent"):
        CliRunner().invoke(explain, ["--url", "http://127.0.0.1:9"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="or begin with http"):
        CliRunner().invoke(explain, ["--url", "file:///etc/passwd"], catch_exceptions=False)


def test_hooks_of_a_decision_are_said_with_how_long_they_took() -> None:
    called = (
        HookResult("page-me", "before", "done", 12_000_000),
        HookResult("page-me", "after", "failed", 3_000_000, "answered 500"),
        HookResult("chat", "after", "timed_out", 5_000_000_000, "no answer within 5 s"),
        HookResult("late", "after", "dropped", 0),
    )
    text = explained(msgspec.structs.replace(record(), hooks=called))
    assert [line for line in text.splitlines() if "Hook " in line] == [
        "  Hook page-me, before: done in 12 ms",
        "  Hook page-me, after: failed after 3 ms: answered 500",
        "  Hook chat, after: timed out after 5 s: no answer within 5 s",
        "  Hook late, after: not called: too many calls were before it",
    ]
