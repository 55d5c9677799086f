"""Kernel records as lines and as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
from jsonschema import Draft202012Validator

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.events.layout import decode_totals
from koordebpf.events.records import (
    CgroupMkdir,
    CgroupPopulated,
    CgroupRename,
    CgroupRmdir,
    CompactionStall,
    KswapdRun,
    MemcgEvent,
    MemoryStall,
    OomKill,
    ReclaimStall,
    Record,
    TaskMigration,
    ThrottleStall,
)
from koordebpf.report.record_line import (
    DEFAULT_KINDS,
    HEADER,
    KINDS,
    RECORD_TYPES,
    Seen,
    TraceFilter,
    kind_of,
    losses,
    owner_text,
    shortened,
    trace_json,
    trace_line,
)
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.tools.trace.output import Counter, Counters, render_json, render_text, trace_schema
from koordebpf.tools.trace.summary import CauseSum, PodStalls, Summary

WALL = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
STALL = ReclaimStall(1, 77, 5, 12_300_000, 32, 100, 101, False, 0, "java")
OOM = OomKill(1, 77, 0, 900, 500, 20, 1, 100, True, "hog")
OWNER = Owner(
    77,
    OwnerKind.CONTAINER,
    "kubepods/pod1/abc",
    pod_uid="uid-1",
    pod_known=True,
    namespace="shop",
    pod_name="web",
    container_id="abc",
    container_name="main",
)
LINES = [
    (STALL, "reclaim  shop/web[main]           limit 12.3 ms 128 KiB java"),
    (OOM, "oom-kill shop/web[main]           node  2.0 MiB hog (100)"),
    (CgroupMkdir(1, 77, 1, 4, "pod1", False), "born     shop/web[main]           pod1"),
    (CgroupRmdir(1, 77, 1, 4, "p" * 40, False), "died     shop/web[main]           ppppppppppppp…ppppppppppppp"),
    (CgroupRename(1, 77, 1, 4, "new", False), "renamed  shop/web[main]           now new"),
    (KswapdRun(1, 0, 2_000_000, 1, 0), "kswapd   shop/web[main]           NUMA node 1 awake 2 ms"),
    (
        CompactionStall(1, 77, 3_420_000, 1, 2, 8, True, "java"),
        "compact  shop/web[main]           node  3.42 ms java: success",
    ),
    (
        ThrottleStall(1, 77, 100_000_000, 1, 2, 2, False, "java"),
        "throttle shop/web[main]           limit  100 ms java: no progress",
    ),
    (
        MemoryStall(1, 77, 5_000, 1, 2, 0, False, "java"),
        "memstall shop/web[main]           limit    5 µs java: refault, swap",
    ),
    (
        MemoryStall(1, 77, 5_000, 1, 2, 5, True, "java"),
        "memstall shop/web[main]           node     5 µs java: reclaim+thro…",
    ),
    (CgroupPopulated(1, 77, True, 4), "filled   shop/web[main]           has its first task"),
    (CgroupPopulated(1, 77, False, 4), "emptied  shop/web[main]           lost its last task"),
    (TaskMigration(1, 77, 4711, True, "sh"), "moved    shop/web[main]           sh (4711) came, all threads of it"),
    (MemcgEvent(1, 77, "oom_kill", 3), "memcg    shop/web[main]           oom_kill +3"),
]


@pytest.mark.parametrize(("record", "tail"), LINES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_kind_is_one_line(record: Record, tail: str) -> None:
    line = trace_line(record, OWNER, WALL)
    assert line == f"03:04:05.678 {tail}"
    assert len(line) <= 80


def test_every_kind_is_among_the_lines() -> None:
    assert {type(record) for record, _ in LINES} == set(RECORD_TYPES)
    assert set(KINDS) - set(DEFAULT_KINDS) == {"populated", "migration", "memcg_event"}
    assert HEADER.index("WHAT") == 47


def test_what_does_not_fit_is_cut() -> None:
    line = trace_line(msgspec.structs.replace(STALL, comm="fifteen_letters"), OWNER, WALL)
    assert (len(line), line[-1]) == (80, "…")


def test_a_long_name_keeps_its_end_and_a_stray_its_beginning() -> None:
    owner = Owner(7, OwnerKind.POD, "p", pod_uid="u", namespace="n" * 20, pod_name="x" * 20)
    assert "…nn/xxxxxxxxxxxxxxxxxxxx " in trace_line(OOM, owner, WALL)
    assert [shortened("? pod-gone", 6), shortened("abcdefgh", 4), shortened("abc", 3)] == ["? pod…", "…fgh", "abc"]


@pytest.mark.parametrize(
    ("owner", "cgroup_id", "text"),
    [
        (None, 9, "cgroup 9"),
        (None, 0, "-"),
        (Owner(1, OwnerKind.ROOT, ""), 1, "/"),
        (Owner(1, OwnerKind.SYSTEM, "system.slice/sshd"), 1, "system.slice/sshd"),
        (Owner(1, OwnerKind.POD, "p", pod_uid="u"), 1, "pod u"),
        (Owner(1, OwnerKind.SANDBOX, "p", pod_uid="u", namespace="a", pod_name="b"), 1, "a/b[sandbox]"),
        (Owner(1, OwnerKind.HOST_APPLICATION, "h", host_application="ssd"), 1, "host:ssd"),
    ],
)
def test_every_user_has_a_name(owner: Owner | None, cgroup_id: int, text: str) -> None:
    assert owner_text(owner, cgroup_id) == text


def test_json_has_the_record_and_its_owner() -> None:
    known = json.loads(trace_json(STALL, OWNER, WALL))
    assert (known["kind"], known["delta_ns"], known["owner"]["pod_name"]) == ("reclaim", 12_300_000, "web")
    assert known["time"] == "2026-01-02T03:04:05.678901+00:00"
    assert json.loads(trace_json(OOM, None, WALL))["owner"] is None


PARTY = Party("u", "pod", "shop/web")
SUMMARY = Summary(
    "2026-01-02T03:04:05+00:00",
    2.0,
    5_000,
    (PodStalls("shop/web", 5_000, (CauseSum("limit", 1, 5_000, 5_000, (0, 0, 1)),)),),
    LedgerView(1, 5_000, 0, (LedgerRow(PARTY, PARTY, 5_000, 0, 1),)),
    ("3 records were lost: the ring was full",),
)
COUNTERS = Counters(
    "2026-01-02T03:04:05+00:00", 2.0, (Counter("oom_kill", 3, None),), {"episodes": 2}, (1,), (5,), {"some": 3}
)


class TestSchema:
    validator = Draft202012Validator(trace_schema())

    def test_is_one(self) -> None:
        Draft202012Validator.check_schema(trace_schema())

    @pytest.mark.parametrize("owner", [None, OWNER])
    @pytest.mark.parametrize("record", [record for record, _ in LINES], ids=kind_of)
    def test_every_line_is_valid(self, record: Record, owner: Owner | None) -> None:
        self.validator.validate(json.loads(trace_json(record, owner, WALL)))

    @pytest.mark.parametrize("page", [SUMMARY, COUNTERS], ids=["summary", "counters"])
    def test_so_are_summary_and_counters(self, page: Summary | Counters) -> None:
        self.validator.validate(json.loads(render_json(page)))

    @pytest.mark.parametrize(
        "change", [{"kind": "rumour"}, {"delta_ns": "long"}, {"delta_ns": None}, {"more": 1}, {"owner": 3}]
    )
    def test_what_is_no_line_is_refused(self, change: dict[str, object]) -> None:
        assert not self.validator.is_valid({**json.loads(trace_json(STALL, OWNER, WALL)), **change})

    def test_what_lacks_a_field_is_refused(self) -> None:
        line = json.loads(trace_json(STALL, OWNER, WALL))
        for name in line:
            assert not self.validator.is_valid({key: value for key, value in line.items() if key != name}), name


def test_a_batch_is_a_line_for_each_record() -> None:
    batch = [Seen(STALL, OWNER, WALL), Seen(OOM, None, WALL)]
    assert render_text(batch).splitlines() == [trace_line(STALL, OWNER, WALL), trace_line(OOM, None, WALL)]
    assert render_json(batch).splitlines() == [trace_json(STALL, OWNER, WALL), trace_json(OOM, None, WALL)]


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (TraceFilter(), True),
        (TraceFilter(pods=("shop/web",)), True),
        (TraceFilter(pods=("web",)), True),
        (TraceFilter(pods=("uid-1",)), True),
        (TraceFilter(pods=("other",)), False),
        (TraceFilter(cgroup_ids=(77,)), True),
        (TraceFilter(cgroup_ids=(78,)), False),
        (TraceFilter(kinds=("reclaim",)), True),
        (TraceFilter(kinds=("oom_kill",)), False),
        (TraceFilter(min_ns=12_300_000), True),
        (TraceFilter(min_ns=12_300_001), False),
    ],
)
def test_filters(wanted: TraceFilter, passes: bool) -> None:
    assert wanted.lets_pass(STALL, OWNER) is passes


@pytest.mark.parametrize("record", [record for record, _ in LINES], ids=kind_of)
def test_a_duration_is_asked_of_those_that_have_one(record: Record) -> None:
    assert TraceFilter(min_ns=10**12).lets_pass(record, OWNER) is not hasattr(record, "delta_ns")


def test_a_pod_filter_refuses_what_has_no_pod() -> None:
    assert not TraceFilter(pods=("web",)).lets_pass(OOM, None)
    assert TraceFilter(min_ns=10**9).lets_pass(OOM, None)
    assert kind_of(OOM) == "oom_kill"


def test_a_memstall_that_other_records_tell_of_may_be_left_out() -> None:
    holds_reclaim = MemoryStall(1, 77, 5_000, 1, 2, 1, True, "java")
    refault = MemoryStall(1, 77, 5_000, 1, 2, 0, True, "java")
    assert [TraceFilter(once=True).lets_pass(each, OWNER) for each in (holds_reclaim, refault)] == [False, True]
    assert TraceFilter().lets_pass(holds_reclaim, OWNER)


def test_losses_are_said_and_nothing_else() -> None:
    nothing = decode_totals(bytes(1712))
    assert losses(None) == losses(nothing) == []
    sentences = losses(
        msgspec.structs.replace(nothing, ring_lost=5, begun_full=2, stalls_full=1, missed_runs=7), undecodable=3
    )
    assert sentences == [
        "3 records were of an unknown layout",
        "5 records were lost: the ring was full",
        "2 stalls were not timed: too many at once",
        "1 stalls were not counted: the table of cgroups was full",
        "7 runs of programs were passed over by the kernel: their records are missing",
    ]
