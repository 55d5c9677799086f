"""What an agent finds of what the one before it has set of tasks, and what is reported of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from koordebpf.act.task_record import TaskRecord, TaskReports
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.policy.reconcile import TaskSetting

SETTING = TaskSetting("pod/a", "team/web", "a", 700, "OOMScoreAdj", "annotation oom-score-adj")


def test_the_next_agent_reads_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert TaskRecord(path, dict[str, int]).save({"pod/a": 1, "pod/b": 2})
    assert TaskRecord(path, dict[str, int]).read() == {"pod/a": 1, "pod/b": 2}
    assert list(tmp_path.iterdir()) == [path]
    assert TaskRecord(path, dict[str, int]).save({})
    assert list(tmp_path.iterdir()) == []


def test_what_is_of_another_boot_or_form_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = TaskRecord(path, dict[str, int])
    record.save({"pod/a": 1})
    kept = msgspec.json.decode(path.read_bytes())
    for written in ({**kept, "boot_id": "another"}, {**kept, "containers": {"pod/a": "x"}}, {}, []):
        path.write_bytes(msgspec.json.encode(written))
        assert record.read() == {}
    path.write_bytes(b"[" * 100_000)
    assert record.read() == {}
    path.write_bytes(msgspec.json.encode(kept))
    assert record.read() == {"pod/a": 1}


def test_a_folder_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert not TaskRecord(tmp_path / "gone" / "record.json", dict[str, int]).save({"pod/a": 1})


@pytest.mark.parametrize(("result", "times"), [(WriteResult.WRITTEN, 3), (WriteResult.REFUSED, 2)])
def test_only_writes_are_reported_each_time(result: WriteResult, times: int) -> None:
    changes: list[FileChange] = []
    reports = TaskReports(changes.append, "oomScoreAdj")
    reports.report(SETTING, Path("file"), ("0", "700"), result, 1)
    reports.keep_only({"pod/a"})
    reports.report(SETTING, Path("file"), ("0", "700"), result, 2)
    # WHEN nothing was wanted of the container for a while
    reports.keep_only(())
    reports.report(SETTING, Path("file"), ("0", "700"), result, 3)
    assert [change.result for change in changes] == [result] * times
    assert changes[0].reason == "annotation oom-score-adj of pod team/web"
    assert changes[0].owner == "oomScoreAdj"
