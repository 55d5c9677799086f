"""How what Katalyst's plugins ask for reads: explain, plan, the audit and the requests that are not carried out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from koordebpf.cli.explain import explain
from koordebpf.decision.decide_tick import TickDecision, tick_view
from koordebpf.decision.node_plan import decide_node
from koordebpf.policy.strategy import RequestNews
from koordebpf.report.pages.explain import decode_requests, explained, explained_request
from koordebpf.report.pages.plan import plan_page
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.write_log import audited_request, request_sentence
from tests.strategies.katalyst.test_katalyst_frames import Node, forced, hard, kpod, soft
from tests.support.values.builders import supposed

REFUSED = RequestNews("disk", "u-1", "", "", "refused", "no_candidate", "it is no pod that plugins were asked about")
DRY_RUN = RequestNews("disk", "u-2", "shop", "web", "dry_run", "dry_run", "plugin disk asks for it: full")


def two_plugins() -> tuple[Node, TickDecision]:
    node = Node([kpod("a", priority=5000), kpod("b", priority=5100)])
    return node, node.answer(forced("cpu-plugin", "b", grace_s=30), hard("disk-plugin", "a"))


def record(*results: Result) -> AuditRecord:
    _, decision = two_plugins()
    line = OpenPlan(decision.plan, node="n1", dry_run=False, seen_ns=None, decided_ns=2_501_000, wall_s=0.0)
    for victim, result in zip(decision.plan.victims, results, strict=True):
        of = victim.candidate
        line.add_outcome(
            Outcome(of.uid, of.namespace, of.name, "api", result, "201 Created", 2_501_000, sent_ns=2_600_000)
        )
    return line.record()


def test_a_decision_names_plugin_scope_both_numbers_mode_and_grace() -> None:
    text = explained(record(Result.DONE, Result.REFUSED))
    assert text.splitlines() == [
        "1970-01-01T00:00:00.000Z n1",
        "  evicting kat/a (priority 5000, 50.0 MiB), kat/b (priority 5100, 50.0 MiB):",
        "    plugin disk-plugin met threshold in scope disk, target 10, observed 20;",
        "    forced",
        "  BEMemoryEvict: feature gate BEMemoryEvict is off.",
        "  KatalystEviction: plugins ask for 2 pods, 2 pods of 2 candidates are to be",
        "    evicted.",
        "    1. kat/a (priority 5000, 50.0 MiB) evicted by api: 201 Created",
        "    2. kat/b (priority 5100, 50.0 MiB) refused by api: 201 Created",
        "       because plugin cpu-plugin asks for it: because; forced, grace period 30 s",
        "  decided to sent 99 µs",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_a_soft_request_reads_as_one() -> None:
    node = Node([kpod("c"), kpod("d")])
    decision = node.answer(soft("p", "c", "d"))
    line = OpenPlan(decision.plan, node="n1", dry_run=True, seen_ns=None, decided_ns=1, wall_s=0.0)
    assert explained(line.record()).splitlines()[1:] == [
        "  evicting kat/c (priority 0, 50.0 MiB): plugin p asks for it: because; soft",
        "  BEMemoryEvict: feature gate BEMemoryEvict is off.",
        "  KatalystEviction: plugins ask for 1 pod, one pod of 2 candidates is to be",
        "    evicted.",
        "    1. kat/c (priority 0, 50.0 MiB) evicted",
        "    2. kat/d (priority 0, 50.0 MiB) stays",
    ]


def test_the_record_has_the_reason_of_each_victim_and_survives_its_json() -> None:
    made = record(Result.DONE, Result.DONE)
    line = msgspec.json.encode(made)
    assert msgspec.json.decode(line, type=AuditRecord) == made
    *_, feature = msgspec.json.decode(line)["features"]
    assert feature["reasons"] == {
        "a": "plugin disk-plugin met threshold in scope disk, target 10, observed 20; forced",
        "b": "plugin cpu-plugin asks for it: because; forced, grace period 30 s",
    }


def test_the_plan_page_of_a_round() -> None:
    node, _ = two_plugins()
    tick = node.tick
    assert tick is not None
    view = supposed(tick_view(tick), evictions=())
    plan = decide_node(view, tick.settings.eviction, tick.settings.strategies, tick.states)
    lines = plan_page(plan, ranking=10).splitlines()
    start = lines.index("KatalystEviction")
    assert lines[start : start + 10] == [
        "KatalystEviction",
        "  asked for      2 pods",
        "  evicted        2 pods",
        "",
        "rank  pod    priority      used    credit",
        "*  1  kat/a      5000  50.0 MiB  50.0 MiB",
        "*  2  kat/b      5100  50.0 MiB  50.0 MiB",
        "* evicted",
        "  rank 2: plugin cpu-plugin asks for it: because; forced, grace period 30 s",
        "",
    ]
    assert "  cpu-plugin, disk-plugin ask for 2 forced evictions" in lines


def test_requests_that_are_not_carried_out_are_said_once_each(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = [audited_request(each, "n1", 0.0) for each in (REFUSED, DRY_RUN)]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    done = CliRunner().invoke(explain, ["--requests", str(path)])
    assert done.output.splitlines() == [
        "1970-01-01T00:00:00.000Z n1",
        "  disk asks for pod u-1 and is refused: it is no pod that plugins were asked",
        "    about",
        "",
        "1970-01-01T00:00:00.000Z n1",
        "  dry run of disk, shop/web is not evicted: plugin disk asks for it: full",
        "",
    ]
    assert "u-1" not in CliRunner().invoke(explain, ["--requests", "--pod", "shop/web", str(path)]).output
    # no line of a request is a decision
    assert "no decision" in CliRunner().invoke(explain, [str(path)]).output


def test_a_line_that_is_cut_is_named() -> None:
    raw = msgspec.json.encode(audited_request(REFUSED, "n1", 0.0))
    requests, problems = decode_requests(raw + b"\n" + raw[:-9], "audit.jsonl")
    assert len(requests) == 1
    assert "audit.jsonl:2:" in str(problems[0])
    whole, none = decode_requests(b"[" + raw + b"]", "socket")
    assert (len(whole), none) == (1, ())


def test_a_hostile_name_forges_no_line() -> None:
    news = replace(DRY_RUN, plugin="x\n1970 forged", reason="\x1b[2J")
    text = explained_request(audited_request(news, "n1", 0.0))
    assert "\x1b" not in text
    assert not any(line.startswith("1970 forged") for line in text.splitlines())
    assert "forged" in request_sentence(news)


@pytest.mark.parametrize("options", [["--writes", "--requests"]])
def test_writes_and_requests_exclude_each_other(options: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(explain, [*options, str(tmp_path)])
    assert done.exit_code == 2
    assert "exclude each other" in done.output
