"""The looks that `koordebpf top` takes at a node: when it measures, and what a key changes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.tools.top.choice import Choice, pressed
from koordebpf.tools.top.looks import looks
from tests.support.played_signals import StalledNode


class Keys:
    """A keyboard on which everything was pressed before."""

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)
        self.read_fd, write_fd = os.pipe()
        os.write(write_fd, b"x")
        os.close(write_fd)

    def fileno(self) -> int:
        return self.read_fd

    def read(self) -> list[str]:
        os.read(self.read_fd, 1)
        keys, self.keys = self.keys, []
        return keys


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StalledNode]:
    monkeypatch.setattr("koordebpf.tools.top.looks.find_controllers", dict)
    with contextlib.closing(StalledNode(tmp_path, 2)) as made:
        yield made


def test_once_is_after_one_interval_with_two_measurements(node: StalledNode) -> None:
    reads: list[float] = []
    stalls = node.signals.stalls
    node.signals.stalls = lambda: reads.append(time.monotonic()) or stalls()  # type: ignore[method-assign,func-returns-value]
    (look,) = looks(node.watch, 0.2, Choice(), once=True, hint="name the pods")
    assert reads[-1] - reads[0] >= 0.2
    assert look.around.hint == "name the pods"  # no source knows them
    assert (look.cluster, look.page.cpu, look.page.level) == (None, None, "pod")
    assert look.page.ledger is not None and 0.2e9 <= look.page.ledger.window_ns < 60e9


@pytest.mark.parametrize("level", ["container", "cgroup"])
def test_rows_are_of_the_level_that_was_chosen(level: Any, node: StalledNode) -> None:
    (look,) = looks(node.watch, 0.01, Choice(level=level), once=True)
    assert look.page.level == level
    assert {each.cgroup_id for each in look.page.rows} >= {node.id("web", "a"), node.id("batch", "c")}
    assert look.around.inner == ()


def test_containers_are_looked_at_where_a_page_shows_them_below_pods(node: StalledNode) -> None:
    for choice, wants in ((Choice(tree=True), True), (Choice(detail="team/web"), True), (Choice(), False)):
        (look,) = looks(node.watch, 0.01, choice, once=True)
        assert bool(look.around.inner) is wants


def test_a_look_comes_every_interval_and_each_is_a_new_measurement(node: StalledNode) -> None:
    began_ns = time.monotonic_ns()
    found = looks(node.watch, 0.05, Choice())
    first, second = next(found), next(found)
    found.close()
    assert first.measured.now_ns - began_ns >= 0.05e9
    assert second.measured.now_ns - began_ns >= 0.1e9  # where the first was late, the second keeps its time
    assert second.measured.now_ns > first.measured.now_ns


def test_a_key_is_answered_at_once_out_of_the_same_measurement_and_q_ends_it(node: StalledNode) -> None:
    begin = time.monotonic()
    assert list(looks(node.watch, 60.0, Choice(), Keys("q"))) == []  # type: ignore[arg-type]
    found = looks(node.watch, 60.0, Choice(), Keys("l"))  # type: ignore[arg-type]
    look = next(found)
    found.close()
    assert look.choice == pressed(Choice(), "l")
    assert time.monotonic() < begin + 60
