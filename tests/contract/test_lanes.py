"""Which folders of tests run side by side."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.lanes import Lane, run

# Each runs until one of every kind has been started, however busy the machine is.
_KINDS = 3
_UNTIL = "until [ $(grep -c + {log}) -ge {count} ]; do sleep 0.05; done"
_MOST_S = 60


def _lane(folder: Path, name: str, *, is_live: bool = False, is_machine: bool = False) -> Lane:
    log = folder / "log"
    until = f"timeout {_MOST_S} sh -c '{_UNTIL.format(log=log, count=_KINDS)}'"
    command = f"echo +{name} >>{log}; {until} && sleep 0.1 && echo -{name} >>{log}"
    return Lane(name, ["sh", "-c", command], folder / f"{name}.xml", is_live=is_live, is_machine=is_machine)


def _run(folder: Path, lanes: list[Lane], monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Run them on two CPUs; return which ran at once, after each start and end."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    codes: dict[str, int] = {}

    def only_live() -> None:
        with (folder / "log").open("a") as log:
            log.write("only\n")

    run(lanes, lambda lane, code: codes.update({lane.name: code}), only_live)
    assert codes == {lane.name: 0 for lane in lanes}
    at_once: list[set[str]] = [set()]
    for line in (folder / "log").read_text().split():
        if line != "only":
            at_once.append(at_once[-1] | {line[1:]} if line[0] == "+" else at_once[-1] - {line[1:]})
    return at_once


def test_one_live_folder_and_one_of_machines_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = [_lane(tmp_path, f"live{at}", is_live=True) for at in range(2)]
    machines = [_lane(tmp_path, f"machine{at}", is_machine=True) for at in range(2)]
    pure = [_lane(tmp_path, f"pure{at}") for at in range(2)]
    at_once = _run(tmp_path, [*pure, *machines, *live], monkeypatch)
    for kind in ("live", "machine", "pure"):
        assert max(sum(name.startswith(kind) for name in names) for names in at_once) == 1, kind
    assert max(map(len, at_once)) == _KINDS, "one of each"


def test_machines_wait_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = [
        _lane(tmp_path, "live", is_live=True),
        _lane(tmp_path, "pure"),
        _lane(tmp_path, "machine", is_machine=True),
    ]
    at_once = _run(tmp_path, lanes, monkeypatch)
    first_ended = next(before for before, after in itertools.pairwise(at_once) if len(after) < len(before))
    assert "machine" in first_ended
    lines = (tmp_path / "log").read_text().split()
    assert lines.index("only") > lines.index("-pure"), "the other machines of the matrix wait for those"
