"""`top --replay`: rounds of a recording as pages, and travel in time."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordebpf.cli import _group
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.tools.top.choice import Choice
from koordebpf.tools.top.replayed import moments
from koordebpf.tools.top.screen import Keyboard, keys_of
from koordebpf.units import MIB
from tests.support.values.rounds import encoded

DECIDED = (5, 9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "node.rounds"
    store, encoder = FileStore(made, Run("0123abcd", "node-1"), 8 * MIB), RoundEncoder()
    for second in range(12):
        store.add(encoded(10 * second, encoder, used_mib=900 if second in DECIDED else 500), b"", [])
    store.close()
    return made


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Keyboard, int]]:
    """Standard input as a terminal, in a session of its own."""
    master, slave = pty.openpty()
    with os.fdopen(slave, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr("koordebpf.tools.top.screen._is_in_front", lambda fd: True)
        with Keyboard() as made:
            yield made, master
    os.close(master)


def test_keys_have_names() -> None:
    assert keys_of("a\x1b[Bq\x1b") == ["a", "down", "q", "escape"]
    assert keys_of("\x1b[5~\x1bOA\r\x7f/é") == ["page up", "up", "enter", "backspace", "/", "é"]
    assert keys_of("\x1b[200~x\x1b[1;5C") == ["x"]


@pytest.mark.parametrize(
    ("keys", "round_number"),
    [
        ("T", 11),
        ("TTT", 9),
        ("t", 12),  # there is none after the last
        ("D", 10),
        ("DD", 6),
        ("DDD", 6),
        ("DDd", 10),
        ("J", 6),
        ("JJJ", 1),
        ("JJJj", 7),
    ],
)
def test_time_travel(path: Path, keyboard: tuple[Keyboard, int], keys: str, round_number: int) -> None:
    listening, master = keyboard
    shown = moments(Recording(path), 11, Choice(), listening)
    assert "round 12 of 12" in next(shown).around.note
    note = ""
    for key in keys:
        os.write(master, key.encode())
        note = next(shown).around.note
    assert f"round {round_number} of 12" in note
    os.write(master, b"q")
    assert list(shown) == []


def test_a_decision_says_what_was_decided(path: Path) -> None:
    (moment,) = moments(Recording(path), 5, Choice(), None)
    assert "2027-01-15T08:00:50.000Z, round 6 of 12, decision 1 of 2: evicting spark/job-0" in moment.around.note
    assert moment.page.node.used_bytes == 900 * MIB
    assert [row.name for row in moment.page.rows][:2] == ["spark/job-0", "web/web"]


def test_one_pod_with_the_rounds_before(path: Path) -> None:
    (moment,) = moments(Recording(path), 7, Choice(detail="spark/job-0"), None)
    assert len(moment.around.trails["spark/job-0"]) == 8


def test_as_a_command(path: Path) -> None:
    done = CliRunner().invoke(_group, ["top", "--replay", str(path), "--once"], catch_exceptions=False)
    assert done.output.startswith("2027-01-15T08:01:50.000Z, round 12 of 12\nnode 500 MiB of 1.0 GiB (50 %)")
    at = ["top", "--replay", str(path), "--at", "2027-01-15T08:00:51Z", "--json"]
    value = json.loads(CliRunner().invoke(_group, at, catch_exceptions=False).output)
    assert (value["node"]["used_bytes"], value["quality"]) == (900 * MIB, None)
    wrong = CliRunner().invoke(_group, ["top", "--replay", str(path), "--level", "cgroup"])
    assert (wrong.exit_code, "shows pods" in wrong.output) == (2, True)
    assert CliRunner().invoke(_group, ["top", "--at", "1"]).exit_code == 2
