"""Series are written at a slow pace and at the end, and what there was no room for is in the log."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.jobs.usage_series.keeper import SeriesKeeper, open_job
from koordebpf.jobs.usage_series.snapshot import SnapshotWriter, restore_series
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.state.series.kinds import CONTAINER_CPU, POD_CPU
from koordebpf.state.series.store import SeriesSettings, SeriesStore
from koordebpf.units import MIB, NS_PER_S
from tests.support.contexts import context_of


@pytest.fixture
def settings() -> SeriesSettings:
    return SeriesSettings(budget_bytes=MIB, snapshot_ns=60 * NS_PER_S)


def test_a_snapshot_is_written_at_its_pace_some_series_a_second(settings, tmp_path):
    # GIVEN a hundred series
    path, store, start_ns = tmp_path / "series.snapshot", SeriesStore(settings), time.monotonic_ns()
    keeper = SeriesKeeper(SnapshotWriter(path, store), settings)
    written = []
    for second in range(1, 140):
        now_ns = start_ns + second * NS_PER_S
        store.append_round(now_ns, {(POD_CPU, str(pod)): 1.0 for pod in range(100)})
        keeper.collect(now_ns, store)
        written.append(path.stat().st_ino if path.exists() else None)
    # THEN it is there once four looks wrote it, and again after a minute
    assert [written.index(each) for each in dict.fromkeys(written)] == [0, 63, 123]
    restored = SeriesStore()
    restore_series(path, restored, start_ns + 140 * NS_PER_S)
    assert restored.counts.series == 100


def test_a_whole_one_is_written_at_the_end(settings, tmp_path):
    path, store, now_ns = tmp_path / "series.snapshot", SeriesStore(settings), time.monotonic_ns()
    store.append((POD_CPU, "a"), now_ns, 1.0)
    SeriesKeeper(SnapshotWriter(path, store), settings).close()
    restored = SeriesStore()
    restore_series(path, restored, now_ns + NS_PER_S)
    assert restored.counts.series == 1


@pytest.mark.parametrize(("acts", "written"), [(True, ["series.snapshot"]), (False, [])])
def test_only_the_agent_that_acts_writes_one(settings, tmp_path, acts, written):
    # GIVEN an agent that measures, with a folder that it could write to
    (tmp_path / "machine").mkdir()
    hierarchy = MemoryHierarchy(2, Path("/sys/fs/cgroup"), None)
    watch = SimpleNamespace(scope=NodeScope("machine", hierarchy, hierarchy.mount_point, 1))
    measuring: Any = SimpleNamespace(series=SeriesStore(settings), watch=watch)
    config = AgentConfig(run_dir=tmp_path, series=settings, feature_gates={"UsageSeries": True})
    # WHEN a snapshot is due, and when it ends
    with contextlib.ExitStack() as stack:
        keeper = open_job(context_of(config, measuring, stack=stack, folder=tmp_path if acts else None))
        keeper.collect(time.monotonic_ns() + 2 * settings.snapshot_ns, measuring.series)
        due = [path.name for path in (tmp_path / "machine").iterdir()]
        keeper.close()
    # THEN only one that acts has left a file
    assert due == [path.name for path in (tmp_path / "machine").iterdir()] == written


def test_what_there_was_no_room_for_is_said_once_a_minute(settings, caplog):
    store, keeper = SeriesStore(settings), SeriesKeeper(None, settings)
    for second in range(600):
        store.append_round(second * NS_PER_S, {(CONTAINER_CPU, f"{second}-{each}"): 1.0 for each in range(3)})
        keeper.collect(second * NS_PER_S, store)
    lines = [record.message for record in caplog.records]
    assert 3 < len(lines) < 10
    assert lines[0].startswith("series.budget of 1.0 MiB is full with ")
    assert "ended series were dropped within their window, 0 samples refused" in lines[0]
