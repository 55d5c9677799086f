"""Kernel records as lines and as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.events.records import CgroupBirth, CgroupDeath, CgroupRename, KswapdRun, OomKill, ReclaimStall
from koordebpf.report.trace import TraceFilter, kind_of, owner_text, trace_json, trace_line

WALL = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
STALL = ReclaimStall(1, 77, 5, 12_300_000, 32, 100, 101, False, 0, "java")
OOM = OomKill(1, 77, 0, 900, 100, True, "hog")
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


def test_a_stall_names_container_scope_duration_and_pages() -> None:
    assert trace_line(STALL, OWNER, WALL) == (
        "03:04:05.678901 reclaim  shop/web[main]             limit 12.3 ms  128 KiB java"
    )


@pytest.mark.parametrize(
    ("record", "tail"),
    [
        (OOM, "oom-kill shop/web[main]             node  hog (100)"),
        (CgroupBirth(1, 77, 1, 4, "pod1", False), "born     shop/web[main]             pod1"),
        (CgroupDeath(1, 77, 1, 4, "p" * 40, False), "died     shop/web[main]             ppppppppppppp…ppppppppppppp"),
        (CgroupRename(1, 77, 1, 4, "new", False), "renamed  shop/web[main]             now new"),
        (KswapdRun(1, 0, 2_000_000, 1, 0), "kswapd   shop/web[main]             node 1 awake 2 ms"),
    ],
)
def test_every_kind_fits_80_columns(record: OomKill, tail: str) -> None:
    line = trace_line(record, OWNER, WALL)
    assert line == f"03:04:05.678901 {tail}"
    assert len(line) <= 80


def test_a_long_name_keeps_its_end() -> None:
    owner = Owner(7, OwnerKind.POD, "p", pod_uid="u", namespace="n" * 20, pod_name="x" * 20)
    assert "…nnnn/xxxxxxxxxxxxxxxxxxxx " in trace_line(OOM, owner, WALL)


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
def test_whoever_it_is_has_a_name(owner: Owner | None, cgroup_id: int, text: str) -> None:
    assert owner_text(owner, cgroup_id) == text


def test_json_has_the_record_and_its_owner() -> None:
    known = json.loads(trace_json(STALL, OWNER, WALL))
    assert (known["kind"], known["delta_ns"], known["owner"]["pod_name"]) == ("reclaim", 12_300_000, "web")
    assert known["time"] == "2026-01-02T03:04:05.678901+00:00"
    assert json.loads(trace_json(OOM, None, WALL))["owner"] is None


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


def test_a_pod_filter_refuses_what_belongs_to_nobody() -> None:
    assert not TraceFilter(pods=("web",)).lets_pass(OOM, None)
    assert TraceFilter(min_ns=10**9).lets_pass(OOM, None)
    assert kind_of(OOM) == "oom_kill"
