"""The week of shadow mode in a file: added up over restarts, whole or not there, and never waited for."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest

from koordebpf.decision.what_if.week import KEPT_DAYS, NodeCounts, ShadowCounts, ShadowDay, ShadowWeek
from koordebpf.errors import ConfigError
from koordebpf.store import shadow as module
from koordebpf.store.shadow import WeekKeeper, read_week
from tests.contract.apiserver import until

NOW = ShadowWeek(node="node-1", settings={"enforced": {}})


def day(number: int = 1, evictions: int = 1) -> ShadowDay:
    shadows = {"enforced": ShadowCounts(evictions=evictions)}
    return ShadowDay(day=f"2026-03-{number:02}", node=NodeCounts(rounds=1), shadows=shadows)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shadow" / "machine.json"


def kept(path: Path, *days: ShadowDay, now: ShadowWeek = NOW) -> WeekKeeper:
    keeper = WeekKeeper(path, now)
    for each in days:
        keeper.add(each, {})
    keeper.close()
    return keeper


def test_agents_one_after_the_other_add_to_it(path):
    for _ in range(3):
        kept(path, day(1), day(2, evictions=5))
    week = read_week(path)
    assert [(each.day, each.shadows["enforced"].evictions, each.node.rounds) for each in week.days] == [
        ("2026-03-01", 3, 3),
        ("2026-03-02", 15, 3),
    ]
    assert week.node == "node-1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == ["machine.json", "machine.lock"]


def test_the_oldest_days_and_configurations_that_are_no_more_are_dropped(path):
    kept(path, *(day(number) for number in range(1, 12)))
    kept(path, day(12), now=ShadowWeek(node="node-1", settings={"eager": {"memoryEvictThresholdPercent": 60}}))
    week = read_week(path)
    assert len(week.days) == KEPT_DAYS and week.days[-1].day == "2026-03-12"
    assert not any(each.shadows for each in week.days)
    assert week.node_total().rounds == KEPT_DAYS


def test_one_that_cannot_be_read_is_set_aside(path, caplog):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        kept(path, day())
    assert read_week(path).total("enforced").evictions == 1
    assert path.with_suffix(".corrupt").read_bytes() == b"{"
    assert "is set aside" in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"\xff\xfe", b'{"schema":"koordebpf.shadow/v2"}', b"[" * 9999]
)
def test_what_is_none_of_this_version_is_named(tmp_path, content):
    path = tmp_path / "week.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"week\.json"):
        read_week(path)


def test_what_is_no_regular_file_or_too_large_is_not_read(tmp_path):
    path = tmp_path / "week.json"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="regular file"):
        read_week(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(module._MOST_BYTES + 1)
    with pytest.raises(ConfigError, match="or less"):
        read_week(path)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="regular file"):
        read_week(link)


def test_a_folder_that_cannot_be_made_costs_nothing_else(tmp_path, caplog):
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        keeper = kept(tmp_path / "file" / "shadow" / "machine.json", day(), day())
    assert keeper.problem is not None
    assert [each.message for each in caplog.records] == [
        f"{tmp_path}/file/shadow/machine.json: Not a directory: what shadow configurations come to is not kept"
    ]


def test_what_could_not_be_written_is_written_later(path, monkeypatch):
    monkeypatch.setattr(module.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    keeper = WeekKeeper(path, NOW)
    keeper.add(day(1), {})
    until(lambda: keeper.problem, "a problem")
    monkeypatch.undo()
    keeper.add(day(2), {"enforced": "why"})
    until(lambda: path.exists() and len(read_week(path).days) == 2, "both days")
    assert read_week(path).problems == {"enforced": "why"}
    assert keeper.problem is None
    keeper.close()


def test_a_second_agent_of_the_node_keeps_nothing_until_the_first_has_ended(path):
    first, second = WeekKeeper(path, NOW), WeekKeeper(path, NOW)
    first.add(day(1), {})
    until(path.exists, "the first one's")
    second.add(day(1), {})
    until(lambda: second.problem, "a problem")
    assert "another agent" in str(second.problem)
    first.close()
    second.add(day(1), {})
    until(lambda: read_week(path).node_total().rounds == 3, "all")
    second.close()


def test_closing_twice_is_harmless(path):
    keeper = kept(path, day())
    keeper.close()
    assert json.loads(path.read_bytes())["schema"] == "koordebpf.shadow/v1"
