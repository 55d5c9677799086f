"""`koordebpf trace --record` on played signals, and the file read as the trace that it was."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.io.loop import Loop
from koordebpf.report.trace.record_line import TraceFilter, kind_of
from koordebpf.store.recording import Recorder, own_header
from koordebpf.tools.record import follow
from koordebpf.tools.replay import record_trace, replayed
from koordebpf.tools.trace import Asked
from tests.support.played_signals import StalledNode, totals
from tests.trees.test_trace_follow import record

POD = "kubepods/pod" + "1" * 8 + "-1111-1111-1111-" + "1" * 12
TOP, PODS, WEB, OTHER = 1, 2, 3, 4
CGROUPS = {TOP: "", PODS: "kubepods", WEB: POD, OTHER: "system.slice"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StalledNode]:
    (tmp_path / "cgroup").mkdir()
    with contextlib.closing(StalledNode(tmp_path / "cgroup", 2)) as made:
        yield made


def written(path: Path, *records: bytes) -> Path:
    with Recorder(path, own_header(CGROUPS)) as recorder:
        recorder.add(records)
        recorder.finish(0)
    return path


def read(
    path: Path, wanted: TraceFilter | None = None, count: int | None = None
) -> list[list[tuple[str, int, str | None]]]:
    batches = replayed(path, None, wanted or TraceFilter(), count)
    return [
        [(kind_of(each.record), each.record.cgroup_id, each.owner and each.owner.path) for each in batch]
        for batch in batches
    ]


def test_records_come_in_their_order_with_the_owners_that_they_had(tmp_path: Path) -> None:
    path = written(tmp_path / "x", record("reclaim", WEB), record("compaction", OTHER), record("reclaim", 99))
    (batch,) = read(path)
    assert batch == [("reclaim", WEB, POD), ("compaction", OTHER, "system.slice"), ("reclaim", 99, None)]
    (seen,) = replayed(path, None, TraceFilter(), None)
    assert seen[0].owner is not None and seen[0].owner.pod_uid == POD.rpartition("/pod")[2]


def test_a_cgroup_that_dies_has_its_owner_until_then(tmp_path: Path) -> None:
    path = written(tmp_path / "x", record("cgroup_rmdir", WEB), record("reclaim", WEB))
    assert read(path) == [[("cgroup_rmdir", WEB, POD), ("reclaim", WEB, None)]]


def test_only_what_is_wanted_comes_and_no_batch_is_empty(tmp_path: Path) -> None:
    path = written(tmp_path / "x", record("reclaim", WEB), record("reclaim", OTHER))
    assert read(path, TraceFilter(cgroup_ids=(OTHER,))) == [[("reclaim", OTHER, "system.slice")]]
    assert read(path, TraceFilter(kinds=("oom_kill",))) == []


@pytest.mark.parametrize(
    ("count", "batches"), [(None, [256, 256, 3]), (1, [1]), (256, [256]), (257, [256, 1]), (999, [256, 256, 3])]
)
def test_it_ends_after_so_many_in_batches_of_256(count: int | None, batches: list[int], tmp_path: Path) -> None:
    path = written(tmp_path / "x", *[record("reclaim", WEB)] * 515)
    assert [len(each) for each in read(path, count=count)] == batches


@pytest.mark.parametrize(
    ("counted", "lost"), [(b"", "losses are not counted here"), (totals(ring_lost=7), "0 lost")], ids=["none", "some"]
)
def test_what_is_recorded_is_said_and_read_again(counted: bytes, lost: str, node: StalledNode, tmp_path: Path) -> None:
    node.signals.counted = counted
    node.signals.records = [record("reclaim", node.id("web")), record("reclaim", node.id("batch"))]
    said = record_trace(node.watch, tmp_path / "x", Asked(TraceFilter(), seconds=0.0))
    assert re.fullmatch(rf"2 records, [0-9.]+ KiB, in 0\.\d s; {lost}", said)
    paths = [node.path("web"), node.path("batch")]
    assert [owner for _, _, owner in read(tmp_path / "x")[0]] == paths


def test_losses_are_those_of_the_recording(node: StalledNode, tmp_path: Path) -> None:
    lost = iter([totals(ring_lost=7), totals(ring_lost=10)])
    node.signals.totals = lambda: next(lost)  # type: ignore[method-assign]
    assert record_trace(node.watch, tmp_path / "x", Asked(TraceFilter(), seconds=0.0)).endswith("; 3 lost")


class Flood:
    """A backend that always has two records more."""

    def __init__(self) -> None:
        self.reads = 0

    def fileno(self) -> int | None:
        return None

    def read(self) -> list[bytes]:
        self.reads += 1
        return [record("reclaim", WEB)] * 2


@pytest.mark.parametrize(("limit", "records"), [({"count": 2}, 2), ({"count": 5}, 5), ({"until_ns": 1}, 2)])
def test_recording_ends_after_so_many_or_at_its_time_with_what_is_there(
    limit: dict[str, int], records: int, tmp_path: Path
) -> None:
    with Loop() as loop, Recorder(tmp_path / "x", own_header({})) as recorder:
        follow(Flood(), recorder, loop, **limit)  # type: ignore[arg-type]
        assert recorder.records == records


def test_recording_ends_at_so_many_bytes(tmp_path: Path) -> None:
    with Loop() as loop, Recorder(tmp_path / "x", own_header({})) as recorder:
        flood, frame = Flood(), len(record("reclaim", WEB)) + 8
        follow(flood, recorder, loop, max_bytes=recorder.bytes + 6 * frame)
        assert (flood.reads, recorder.records) == (3, 6)


def test_recording_ends_when_its_loop_is_stopped(tmp_path: Path) -> None:
    with Loop() as loop, Recorder(tmp_path / "x", own_header({})) as recorder:
        loop.stop()
        follow(Flood(), recorder, loop)
        assert recorder.records == 2
