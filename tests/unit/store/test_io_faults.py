"""What the next agent finds after a fault at any call to the file system: one law for each file that outlives an agent.

A full disk, a broken one, half a write, SIGKILL before each call and within each write (`tests/support/io_faults.py`).
`wanted` is what the call that was on its way makes of `known`: a killed agent may have come so far.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from koordebpf.act.writer import journal as journal_module
from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.places import Original
from koordebpf.errors import ActuationError
from koordebpf.jobs.prediction.keeper import CheckpointFolder
from koordebpf.jobs.usage_series.snapshot import SnapshotWriter, read_store
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.state.decision_memory import Budget
from koordebpf.state.series.store import SeriesStore
from koordebpf.state.view import PastEviction
from koordebpf.store.budget import KeptBudget
from koordebpf.store.line_sink import LineSink
from koordebpf.store.pod_list import KeptList
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import RingFolder, Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.values import Pace
from koordebpf.store.rotated_file import RotatedFile
from koordebpf.store.shadow import WeekKeeper, read_week
from koordebpf.store.wal import InFlight
from koordebpf.units import MIB, NS_PER_S
from tests.jobs.prediction.test_checkpoints import content
from tests.jobs.usage_series.test_series_snapshot import averages, measured
from tests.support.io_faults import IoFault, Kind, each_fault
from tests.support.values.rounds import encoded, wall_ns
from tests.unit.store.test_kept_week import NOW, day
from tests.unit.store.test_pod_list import MAX_AGE_NS, A, B, state
from tests.unit.store.test_wal import decision

FULL = (Kind.FULL_ONCE, Kind.FULL, Kind.SHORT_ONCE, Kind.SHORT)


def assert_kept(fault: IoFault, found: Any, known: Any, wanted: Any) -> None:
    assert found == known or (fault.was_killed and found == wanted), f"{fault}: {found} in place of {known}"


# A tmpfs: no call but those that need room fails there.
def test_the_write_ahead_log_has_each_decision_that_it_took(tmp_path: Path) -> None:
    for fault in each_fault(tmp_path, *FULL, Kind.KILLED, Kind.KILLED_WITHIN):
        log, known = InFlight(fault.folder / "in-flight.jsonl"), []
        with fault:
            for number in range(3):
                known += [number] if log.begin(decision(number)) else []
        successor = InFlight(fault.folder / "in-flight.jsonl")
        assert_kept(fault, [each.decided_ns for each in successor.left], known, known)
        assert successor.begin(decision(9))
        left = InFlight(fault.folder / "in-flight.jsonl").left
        assert [each.decided_ns for each in left] == [*known, 9], str(fault)


def test_the_audit_has_each_line_once_and_in_order(tmp_path: Path) -> None:
    lines = [b"line %d of the audit\n" % number for number in range(6)]
    for fault in each_fault(tmp_path):
        path, known = fault.folder / "audit.jsonl", 0
        sink = LineSink(RotatedFile(path, max_bytes=50, kept=9).append, "audit")
        with fault:
            for line in lines:
                sink.put(line)
                known = sink.written
        if fault.was_killed:
            sink = LineSink(RotatedFile(path, max_bytes=50, kept=9).append, "audit")
        assert sink.put(b"the last one\n"), str(fault)
        older = sorted(fault.folder.glob("audit.jsonl.*"), reverse=True)
        *found, last = b"".join(each.read_bytes() for each in (*older, path)).splitlines(keepends=True)
        whole = [each for each in found if each in lines]
        assert last == b"the last one\n" and len(found) <= len(whole) + fault.was_killed, f"{fault}: {found}"
        assert_kept(fault, whole, lines[:known] if fault.was_killed else lines, lines[: known + 1])


def test_the_budget_is_the_last_one_that_was_kept(tmp_path: Path) -> None:
    spent = [Budget((PastEviction(at_ns=1000, uid=f"u{number}", namespace="be", workload=None),)) for number in (1, 2)]
    for fault in each_fault(tmp_path):
        path, known, wanted = fault.folder / "evictions.json", Budget(), Budget()
        kept = KeptBudget(path)
        with fault:
            for wanted in spent:
                known = wanted if kept.keep(wanted) else known
        assert_kept(fault, KeptBudget(path, now_ns=2000).budget, known, wanted)


def test_the_journal_has_each_original_that_it_took_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_SPARE_LINES", -1)
    originals = {(f"kubepods/pod{number}", CgroupFile.CPU_QUOTA): Original("-1\n", number) for number in range(3)}
    for fault in each_fault(tmp_path):
        path, known, wanted = fault.folder / "writes.journal", {}, {}
        with fault, contextlib.suppress(ActuationError, OSError), Journal(path) as journal:
            for key, original in originals.items():
                wanted = known | {key: original}
                with contextlib.suppress(OSError):
                    journal.record({key: original})
                    known = wanted
                assert journal.originals == known, str(fault)
                with contextlib.suppress(OSError):
                    journal.compact()
            for key in list(known)[:2]:
                wanted = {each: known[each] for each in known if each != key}
                with contextlib.suppress(OSError):
                    journal.forget([key])
                    known = wanted
        found, lost = read_journal(path) if path.exists() else ({}, 0)
        assert_kept(fault, (found, lost), (known, 0), (wanted, 0))
        with Journal(path) as successor:
            assert successor.originals == found
            successor.record(originals)
            assert read_journal(path) == (found | originals, 0), str(fault)


def test_the_list_of_pods_is_the_last_one_that_was_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for fault in each_fault(tmp_path):
        caplog.clear()
        writer = KeptList(fault.folder / "pods.json", "n1", MAX_AGE_NS)
        writer._write(state(A.pod), {A.pod.uid: 17})
        with fault:
            writer._write(state(A.pod, B.pod), {A.pod.uid: 17})
        successor = KeptList(fault.folder / "pods.json", "n1", MAX_AGE_NS)
        known = (A.pod,) if caplog.records or fault.was_killed else (A.pod, B.pod)
        assert_kept(fault, successor.state and successor.state.pods, known, (A.pod, B.pod))
        for each in (writer, successor):
            each.close()


def test_a_checkpoint_is_the_last_one_that_was_saved(tmp_path: Path) -> None:
    for fault in each_fault(tmp_path):
        folder, known, wanted = CheckpointFolder(fault.folder / "prediction"), {}, {}
        with fault:
            for uid, cores in (("a", 1.0), ("b", 2.0), ("a", 64.0)):
                wanted = known | {uid: content(cores)}
                with contextlib.suppress(OSError):
                    folder.save(uid, wanted[uid])
                    known = wanted
            folder.sync()
        assert folder.load(frozenset("ab")).problems == (), str(fault)
        found = {each.name: each.read_bytes() for each in fault.folder.glob("prediction/*")}
        assert_kept(fault, found, known, wanted)


def test_the_recorder_has_each_round_that_it_took(tmp_path: Path) -> None:
    encoder = RoundEncoder()
    rounds = [encoded(second, encoder) for second in range(4)]
    for fault in each_fault(tmp_path):
        known: list[int] = []
        wanted: list[int] = []
        with fault, contextlib.suppress(OSError), RingFolder(fault.folder, Run("0123abcd", "n1"), 4 * MIB) as ring:
            for second, made in enumerate(rounds):
                wanted = [*known, wall_ns(second)]
                with contextlib.suppress(OSError):
                    ring.add(Pace.SECONDS, made, b"", [])
                    known = wanted
        with RingFolder(fault.folder, Run("4567abcd", "n1"), 4 * MIB) as successor:
            successor.add(Pace.SECONDS, encoded(9), b"", [])
        recording = Recording(fault.folder)
        assert fault.kind not in FULL or recording.problems == [], f"{fault}: {recording.problems}"
        found = [each.wall_ns for each in recording.rounds()]
        assert_kept(fault, found, [*known, wall_ns(9)], [*wanted, wall_ns(9)])


def test_a_snapshot_of_the_series_is_the_last_one_that_was_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = measured(SeriesStore(), range(1, 100), ["pod-1"])
    expected = averages(store, 100).keys()
    for fault in each_fault(tmp_path):
        caplog.clear()
        path = fault.folder / "series.snapshot"
        writer = SnapshotWriter(path, store)
        writer.write(100 * NS_PER_S)
        with fault:
            writer.write(101 * NS_PER_S)
        found, moment = read_store(path)
        assert averages(found, 100).keys() == expected, str(fault)
        known_s = 100 if caplog.records or fault.was_killed else 101
        assert_kept(fault, moment.monotonic_ns, known_s * NS_PER_S, 101 * NS_PER_S)


def test_a_week_of_shadow_mode_has_each_day_that_was_added(tmp_path: Path) -> None:
    for fault in each_fault(tmp_path):
        path, known, wanted = fault.folder / "machine.json", [], []
        keeper = WeekKeeper(path, NOW)
        with fault:
            for number in (1, 2):
                wanted = [*known, f"2026-03-{number:02}"]
                with contextlib.suppress(OSError):
                    keeper._write(NOW.with_day(day(number)))
                    known = wanted
        if fault.was_killed:
            keeper._lock_fd = None  # closed by the kernel
        keeper.close()
        assert_kept(fault, [each.day for each in read_week(path).days] if path.exists() else [], known, wanted)
