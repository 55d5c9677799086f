"""Series outlast the agent that measured them, and a file that is none of this boot's is left alone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from koordebpf.errors import DecodeError
from koordebpf.jobs.usage_series import snapshot as module
from koordebpf.jobs.usage_series.snapshot import Snapshot, SnapshotWriter, restore_series
from koordebpf.state.series.block import FIRST_ROUND, encode_block
from koordebpf.state.series.kinds import NODE_CPU, POD_CPU, POD_MEMORY, SavedSeries
from koordebpf.state.series.store import SERIES_BYTES, SeriesSettings, SeriesStore
from koordebpf.units import MIB, NS_PER_S

PODS = [f"pod-{number}" for number in range(25)]
WINDOW_NS = 1800 * NS_PER_S


def measured(store: SeriesStore, seconds: range, pods: list[str] = PODS) -> SeriesStore:
    for second in seconds:
        values = {(POD_CPU, pod): second * (number + 1) % 97 / 7 for number, pod in enumerate(pods)}
        values |= {(POD_MEMORY, pod): float(second // 100 * 4096) for pod in pods}
        store.append_round(second * NS_PER_S, {**values, (NODE_CPU,): second / 9})
    return store


def averages(store: SeriesStore, now_s: int, window_s: int = 1800) -> dict[tuple[str, ...], list[float | None]]:
    return {
        key: [store.query(key, now_s * NS_PER_S, window_s * NS_PER_S, each) for each in ("avg", "count", "p90")]
        for kind in store.kinds()
        for key in store.keys(kind)
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "series.snapshot"


def written(path: Path, store: SeriesStore, now_s: int) -> Path:
    SnapshotWriter(path, store).write(now_s * NS_PER_S)
    return path


def test_a_restarted_agent_continues_the_windows(path):
    # GIVEN an agent that measured for half an hour, and ended
    before = measured(SeriesStore(), range(1, 1801))
    written(path, before, 1800)
    # WHEN the next one starts ten seconds later
    after = SeriesStore()
    restore_series(path, after, 1810 * NS_PER_S)
    same = averages(after, 1810)
    assert same.keys() == averages(before, 1810).keys()
    for key, values in averages(before, 1810).items():
        assert same[key] == pytest.approx(values, rel=1e-3)
    measured(before, range(1810, 1900))
    measured(after, range(1810, 1900))
    # THEN its windows are those of one that was never ended
    same = averages(after, 1900, 1700)
    for key, values in averages(before, 1900, 1700).items():
        assert same[key] == pytest.approx(values, rel=1e-3)
    assert after.aggregated((NODE_CPU,), 1900 * NS_PER_S, WINDOW_NS) is not None
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_an_agent_measured_while_it_stood_by_follows_what_the_other_one_kept(path):
    # GIVEN an agent that stands by from 900 on, while the other one measures until 1000
    written(path, measured(SeriesStore(), range(1, 1000)), 1000)
    standing_by = measured(SeriesStore(), range(900, 1005), pods=[*PODS[:10], "new"])
    # WHEN it takes over THEN each moment counts once
    restore_series(path, standing_by, 1005 * NS_PER_S)
    for second in (1005, 1500):
        counts = {key: values[1] for key, values in averages(standing_by, second, second).items()}
        assert counts[NODE_CPU,] == counts[POD_CPU, PODS[0]] == 1004
        assert counts[POD_CPU, PODS[20]] == 899
        assert counts[POD_CPU, "new"] == 105
    measured(standing_by, range(1005, 1100))
    whole = measured(SeriesStore(), range(1, 1100))
    for key in ((NODE_CPU,), (POD_CPU, PODS[3]), (POD_MEMORY, PODS[3])):
        assert averages(standing_by, 1100)[key] == pytest.approx(averages(whole, 1100)[key], rel=1e-3)


def test_what_was_restored_ends_after_its_window_and_counts_for_the_budget(path):
    written(path, measured(SeriesStore(), range(1, 1001)), 1000)
    after = SeriesStore(SeriesSettings(keep_ns=600 * NS_PER_S))
    restore_series(path, after, 1000 * NS_PER_S)
    full = after.counts.bytes
    measured(after, range(1001, 2000), pods=["new"])
    assert (len(after), full > 25 * SERIES_BYTES) == (3, True)
    assert after.counts.bytes < 3 * SERIES_BYTES + 4 * 2 * 700
    small = SeriesStore(SeriesSettings(budget_bytes=MIB // 16))
    restore_series(path, small, 1000 * NS_PER_S)
    assert small.counts.bytes <= MIB // 16
    assert small.counts.dropped_series > 0


def test_a_snapshot_that_is_not_complete_leaves_the_one_before(path):
    written(path, measured(SeriesStore(), range(1, 100)), 100)
    before = path.read_bytes()
    writer = SnapshotWriter(path, measured(SeriesStore(), range(1, 500)))
    writer.start()
    writer.write_some(500 * NS_PER_S)
    assert (writer.is_writing, path.read_bytes()) == (True, before)
    writer.cancel()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_series_that_begin_or_end_while_it_is_written_harm_nothing(path):
    store = measured(SeriesStore(SeriesSettings(keep_ns=100 * NS_PER_S)), range(1, 300))
    writer = SnapshotWriter(path, store)
    writer.start()
    while writer.is_writing:
        writer.write_some(700 * NS_PER_S)
        measured(store, range(700, 701), pods=["new"])
    after = SeriesStore()
    restore_series(path, after, 701 * NS_PER_S)
    assert (NODE_CPU,) in after


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda raw: raw[:-1], "is cut short"),
        (lambda raw: raw[: len(raw) // 2], "is cut short"),
        (lambda raw: raw[:25], "is cut short"),
        (lambda raw: raw[:2000] + b"?" + raw[2001:], "a checksum is wrong"),
        (lambda raw: raw.replace(b"/v1", b"/v2"), "begins with 'koordebpf.series/v2', not with 'koordebpf.series/v1'"),
        (lambda raw: b"", "begins with ''"),
        (lambda raw: b"\x7fELF" * 999, "begins with"),
        (lambda raw: raw[:20] + b"S\xff\xff\xff\xff" + raw[25:], "has a frame of 4.0 GiB"),
    ],
)
def test_what_is_no_whole_snapshot_is_named_and_left_out(path, caplog, change, sentence):
    raw = written(path, measured(SeriesStore(), range(1, 100)), 100).read_bytes()
    path.write_bytes(change(raw))
    store = SeriesStore()
    restore_series(path, store, 100 * NS_PER_S)
    assert len(store) == 0
    assert [str(path) in record.message and sentence in record.message for record in caplog.records] == [True]
    with pytest.raises(DecodeError):
        Snapshot(path)


def test_one_of_another_boot_is_named_and_left_out(path, caplog, monkeypatch):
    with monkeypatch.context() as changed:
        changed.setattr(module, "this_boot", lambda: "another")
        written(path, measured(SeriesStore(), range(1, 100)), 100)
    store = SeriesStore()
    with caplog.at_level(logging.INFO):
        restore_series(path, store, 100 * NS_PER_S)
    assert (len(store), f"{path} is of another boot: series start empty" in caplog.text) == (0, True)


def test_where_there_is_none_series_start_empty_without_a_word(path, caplog):
    restore_series(path, SeriesStore(), 100 * NS_PER_S)
    assert caplog.records == []


def test_a_link_in_place_of_the_file_is_not_followed(path, tmp_path, caplog):
    other = tmp_path / "other"
    written(other, measured(SeriesStore(), range(1, 9)), 9)
    path.symlink_to(other)
    store = SeriesStore()
    restore_series(path, store, 100 * NS_PER_S)
    assert (len(store), len(caplog.records)) == (0, 1)
    path.with_suffix(".part").symlink_to(other)
    before = other.read_bytes()
    SnapshotWriter(path, measured(SeriesStore(), range(1, 5))).write(5)  # in place of both links
    assert (path.is_symlink(), other.read_bytes()) == (False, before)


def test_rounds_that_are_of_a_later_time_are_named_and_left_out(path, caplog):
    written(path, measured(SeriesStore(), range(1, 100)), 100)
    store = SeriesStore()
    restore_series(path, store, 50 * NS_PER_S)
    assert (len(store), "rounds of pod_cpu_usage are of another time" in caplog.text) == (0, True)


def test_a_folder_that_cannot_be_written_is_named_once(path, caplog):
    writer = SnapshotWriter(path.parent / "gone" / "series.snapshot", measured(SeriesStore(), range(1, 9)))
    writer.write(9)
    writer.write(10)
    assert len(caplog.records) == 1
    assert "No such file or directory: a restarted agent will not know the series" in caplog.text


@pytest.mark.parametrize(
    ("key", "block"),
    [
        ((POD_CPU,), encode_block(FIRST_ROUND, [1.0])),
        ((POD_CPU, "b", "c"), encode_block(FIRST_ROUND, [1.0])),
        ((POD_CPU, "b"), b""),
        ((POD_CPU, "b"), encode_block(FIRST_ROUND, [1.0, 2.0])[:-1]),
    ],
)
def test_a_series_that_no_agent_would_have_written_is_named_and_the_others_are_restored(key, block):
    # GIVEN a snapshot whose checksums are right
    before = measured(SeriesStore(), range(1, 9), pods=["a"])
    good = before.saved([(POD_CPU, "a"), (NODE_CPU,)])
    store = SeriesStore()
    restored, problems = store.restore(before.saved_rounds(), [SavedSeries(key, (block,)), *good], 9 * NS_PER_S)
    assert (restored, len(problems), len(store)) == (2, 1, 2)
    assert problems[0].startswith("a series: ")
