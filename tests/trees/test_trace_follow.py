"""`koordebpf trace` on played signals: which records come, until when, the sums, and what the kernel is sent."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import SupportError
from koordebpf.events.layout import STALL_CAUSES
from koordebpf.report.record_line import KINDS, TraceFilter, kind_of
from koordebpf.tools.trace.follow import TraceOptions, follow, wall_clock_offset_ns, wall_time
from koordebpf.tools.trace.output import Counters
from koordebpf.tools.trace.summary import Summary
from koordebpf.units import NS_PER_S
from tests.support.played_signals import StalledNode, memcg, stall, totals

CAPTURE = json.loads((Path(__file__).parents[1] / "golden" / "ring_records_6.18_x86_64.json").read_text())
BYTES = {each["record"]["kind"]: bytes.fromhex(each["bytes"]) for each in CAPTURE["records"]}


def record(kind: str, cgroup_id: int, parent_id: int | None = None) -> bytes:
    """Return one as a kernel sent it, of another cgroup."""
    made = bytearray(BYTES[kind])
    made[16:24] = cgroup_id.to_bytes(8, "little")
    if parent_id is not None:
        made[24:32] = parent_id.to_bytes(8, "little")
    return bytes(made)


class Rig(StalledNode):
    def __init__(self, root: Path) -> None:
        super().__init__(root, 2)
        self.sent: list[set[int] | None] = []
        self.kinds: list[int] = []
        self.is_full = False
        self.signals.send_only = self._send_only  # type: ignore[method-assign]
        self.signals.send_kinds = self.kinds.append  # type: ignore[method-assign]

    def _send_only(self, cgroup_ids: Collection[int] | None) -> None:
        if self.is_full and cgroup_ids is not None:
            raise SupportError("a map", "full", "")
        self.sent.append(None if cgroup_ids is None else set(cgroup_ids))

    def trace(self, wanted: TraceFilter | None = None, **asked: Any) -> list[Any]:
        return list(follow(self.watch, TraceOptions(wanted or TraceFilter(), **{"seconds": 0.0, **asked})))

    def seen(self, wanted: TraceFilter | None = None, **asked: Any) -> list[tuple[str, int]]:
        return [
            (kind_of(each.record), each.record.cgroup_id) for batch in self.trace(wanted, **asked) for each in batch
        ]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def test_records_come_with_their_owner_and_time_of_day_in_their_order(rig: Rig) -> None:
    rig.signals.records = [record("reclaim", rig.id("web", "a")), record("compaction", rig.id("batch"))]
    (batch,) = rig.trace()
    assert [(kind_of(each.record), each.owner.pod_name) for each in batch] == [
        ("reclaim", "web"),
        ("compaction", "batch"),
    ]
    offset_ns = wall_clock_offset_ns()
    assert abs(batch[0].wall - wall_time(batch[0].record.ts_ns, offset_ns)).total_seconds() < 60
    assert wall_time(5 * NS_PER_S, 7 * NS_PER_S) == datetime.fromtimestamp(12, UTC)


def test_only_what_is_wanted_comes_and_no_batch_is_empty(rig: Rig) -> None:
    web, batch = rig.id("web", "a"), rig.id("batch")
    for wanted, expected in (
        (TraceFilter(pods=("team/web",)), [("reclaim", web)]),
        (TraceFilter(cgroup_ids=(batch,)), [("reclaim", batch)]),
        (TraceFilter(kinds=("oom_kill",)), []),
    ):
        rig.signals.records = [record("reclaim", web), record("reclaim", batch)]
        assert rig.seen(wanted) == expected
    rig.signals.records = [record("reclaim", web)]
    assert rig.trace(TraceFilter(kinds=("oom_kill",))) == []
    rig.signals.records = [record("reclaim", web)]
    assert rig.trace(records=False) == []


def test_it_ends_after_so_many_records(rig: Rig) -> None:
    web = rig.id("web")
    read = rig.signals.read

    def two_at_once() -> list[bytes]:
        rig.signals.records = [record("reclaim", web)] * 2
        return read()

    rig.signals.read = two_at_once  # type: ignore[method-assign]
    batches = rig.trace(count=2, seconds=None)
    assert [len(each) for each in batches] == [2]
    batches = rig.trace(count=3, seconds=None)
    assert [len(each) for each in batches] == [2, 1]


def test_it_ends_after_so_many_seconds(rig: Rig) -> None:
    begin = time.monotonic()
    assert rig.trace(seconds=0.2) == []
    assert time.monotonic() - begin >= 0.2


def test_the_kernel_learns_which_cgroups_are_wanted_and_of_each_new_one(rig: Rig) -> None:
    rig.seen()
    assert rig.sent == []  # all are
    web = {rig.id("web"), rig.id("web", "a"), rig.id("web", "b")}
    rig.seen(TraceFilter(pods=("web",)))
    assert rig.sent == [web]
    rig.sent.clear()
    born = rig.make("kubepods/podweb/" + "d" * 64)
    rig.signals.records = [record("cgroup_mkdir", born, rig.id("web")), record("reclaim", born)]
    rig.seen(TraceFilter(pods=("web",)))
    assert rig.sent == [web, web | {born}]
    rig.sent.clear()
    rig.signals.records = [record("cgroup_mkdir", rig.make("system.slice"), rig.ids[""])]
    rig.seen(TraceFilter(pods=("web",)))
    assert rig.sent == [web | {born}]  # no news


def test_more_cgroups_than_the_kernels_map_holds_are_told_apart_here(rig: Rig) -> None:
    rig.is_full = True
    rig.signals.records = [record("reclaim", rig.id("web")), record("reclaim", rig.id("batch"))]
    assert rig.seen(TraceFilter(pods=("web",))) == [("reclaim", rig.id("web"))]
    assert rig.sent == [None]


def test_of_kinds_only_the_wanted_are_sent_and_those_that_the_index_lives_on(rig: Rig) -> None:
    for wanted, records in ((("reclaim",), True), (("reclaim",), False), ((), True)):
        rig.trace(TraceFilter(kinds=wanted), records=records)
    reclaim, tree, other = rig.kinds
    assert reclaim & tree == tree == other and reclaim.bit_count() == tree.bit_count() + 1
    assert tree.bit_count() == 3


def test_a_summary_has_what_each_pod_was_stalled_since_the_last_one(rig: Rig) -> None:
    rig.signals.rows[rig.id("web", "a")] = stall(7, **{STALL_CAUSES[0]: 5})
    rig.signals.rows[rig.id("batch", "c")] = stall(7, **{STALL_CAUSES[0]: 3})
    follows = follow(rig.watch, TraceOptions(TraceFilter(), records=False, summary=True, every_s=0.1, seconds=0.35))
    first = next(follows)
    assert isinstance(first, Summary)
    assert first.seconds >= 0.1
    assert {each.name: each.total_ns for each in first.pods} == {"team/web": 5, "team/batch": 3}
    rig.signals.rows[rig.id("web", "b")] = stall(9, **{STALL_CAUSES[0]: 45})
    rest = list(follows)
    found = [{each.name: each.total_ns for each in summary.pods} for summary in rest]
    assert {"team/web": 45} in found and all(each in ({}, {"team/web": 45}) for each in found)
    assert first.ledger is not None


def test_a_summary_names_wanted_pods_alone_and_comes_once_by_default(rig: Rig) -> None:
    rig.signals.rows[rig.id("web", "a")] = stall(0)
    rig.signals.rows[rig.id("batch", "c")] = stall(0)

    def stalls() -> list[tuple[bytes, bytes]]:
        now = [(number.to_bytes(8, "little"), row) for number, row in rig.signals.rows.items()]
        rig.signals.rows = {each: stall(9, **{STALL_CAUSES[0]: 5}) for each in rig.signals.rows}
        return now

    rig.signals.stalls = stalls  # type: ignore[method-assign]
    (summary,) = rig.trace(TraceFilter(pods=("web",)), records=False, summary=True)
    assert [each.name for each in summary.pods] == ["team/web"]
    assert summary.total_ns == 5


def test_counters_come_at_the_end_without_nodes_that_never_reclaimed(rig: Rig) -> None:
    rig.signals.counted = totals(kswapd_wakes=3, kswapd_awake_ns=7)
    (counters,) = rig.trace(records=False, counters=True, seconds=0.05)
    assert isinstance(counters, Counters)
    assert counters.seconds >= 0.05
    assert (counters.kswapd_wakes, counters.kswapd_awake_ns) == ((3,), (7,))
    rig.signals.counted = b""
    (counters,) = rig.trace(records=False, counters=True)
    assert (counters.kswapd_wakes, counters.kswapd_awake_ns) == ((), ())


def test_events_of_memory_are_scanned_for_where_they_are_wanted(rig: Rig) -> None:
    web = rig.id("web")
    scans = iter([1, 4])

    def scan() -> memoryview:
        return memoryview(memcg(web, rig.ids["kubepods"], 10, max=next(scans, 4)))

    rig.signals.scans = []
    rig.signals.scan = scan  # type: ignore[method-assign]
    assert rig.seen(TraceFilter(kinds=("memcg_event",)), seconds=1.1) == [("memcg_event", web)]
    assert rig.seen(TraceFilter(kinds=("memcg_event",)), records=False) == []
    assert "memcg_event" in KINDS
