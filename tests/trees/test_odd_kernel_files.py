"""A cgroup whose files are odd is left out, named and counted; a tick, a page and a journal have the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.places import Original
from koordebpf.kernel.backends.files import FilesSignals
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.io.table import odd_rows
from koordebpf.kernel.signals import SignalRequest
from koordebpf.store.sink import PlanDecided, RoundEnded
from koordebpf.tools.top.choice import Choice
from koordebpf.tools.top.looks import looks
from koordebpf.units import MIB, NS_PER_S
from tests.support.played_signals import StalledNode
from tests.support.ticked_node import Node

ODD = (b"\xff\n", b"inactive_anon \xe2\x80\xa8 7\nhigh x\nsome avg10\n", b"", b"garbage")
FOREIGN = b"foreign \xff\xe2\x80\xa8 row\n\x85\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path)) as made:
        yield made


def last_round(node: Node) -> RoundEnded:
    (*_, last) = node.sink.take(RoundEnded)
    assert isinstance(last, RoundEnded)
    return last


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["memory.stat", "memory.events", "memory.current", "memory.pressure"])
def test_a_pod_whose_file_is_odd_does_not_end_the_tick_of_the_others(node: Node, name: str, odd: bytes) -> None:
    # GIVEN an agent that knows two pods
    node.tick(NS_PER_S)
    # WHEN a file of one has another form, and the other one crosses the threshold
    node.hold(hog=700)
    (node.pods["calm"] / name).write_bytes(odd)
    node.tick(10 * 1_000_000)
    # THEN that one is decided on, and only the first one is not known
    (decided,) = node.sink.take(PlanDecided)
    assert isinstance(decided, PlanDecided)
    assert [victim.candidate.name for victim in decided.plan.victims] == ["hog"]
    held = {each.name: each.memory and each.memory.usage_bytes for each in last_round(node).view.pods}
    is_needed = name in ("memory.stat", "memory.current")
    assert held == {"hog": 700 * MIB, "calm": None if is_needed else 50 * MIB}
    assert not is_needed or odd_rows()[name] > 0


@pytest.mark.parametrize("name", ["memory.stat", "memory.events"])
def test_foreign_rows_change_nothing(node: Node, name: str) -> None:
    for path in (node.pods["calm"], node.top):
        (path / name).write_bytes(FOREIGN + (path / name).read_bytes() + FOREIGN)
    node.tick(NS_PER_S)
    held = {each.name: each.memory and each.memory.usage_bytes for each in last_round(node).view.pods}
    assert held == {"hog": 300 * MIB, "calm": 50 * MIB}


@pytest.mark.parametrize("odd", ODD)
def test_a_page_of_top_is_shown_without_that_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: bytes
) -> None:
    monkeypatch.setattr("koordebpf.tools.top.looks.find_controllers", dict)
    with contextlib.closing(StalledNode(tmp_path, 2)) as made:
        for name in ("memory.stat", "memory.pressure", "memory.events"):
            (tmp_path / made.path("web", "a") / name).write_bytes(odd)
        (look,) = looks(made.watch, 0.01, Choice(level="container"), once=True)
        assert made.id("batch", "c") in {each.cgroup_id for each in look.page.rows}


@pytest.mark.parametrize("odd", ODD)
def test_signals_of_files_count_for_the_other_cgroups(tree: Callable[[dict[str, Any]], Path], odd: bytes) -> None:
    of_memory = {
        "memory.events.local": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "cgroup.events": "populated 1\nfrozen 0\n",
    }
    root = tree({"node": {"odd": dict(of_memory), "pod": dict(of_memory), **of_memory}})
    request = SignalRequest(
        hierarchy_version=2, hierarchy_id=0, mount_point=root, root=root / "node", node_cgroup_id=1, node_level=1
    )
    with contextlib.closing(FilesSignals(request, None)) as signals:
        for name in ("memory.events.local", "memory.pressure"):
            (root / "node/odd" / name).write_bytes(odd)
        pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
        for path, total in (("node", 900), ("node/pod", 700)):
            (root / path / "memory.pressure").write_text(pressure.format(total))
        (root / "node/pod/memory.events.local").write_text("low 0\nhigh 2\nmax 0\noom 0\noom_kill 0\n")
        signals.read()
        stalled = {int.from_bytes(cgroup, "little") for cgroup, _ in signals.stalls()}
        assert (root / "node/pod").stat().st_ino in stalled
        assert (root / "node/odd").stat().st_ino not in stalled


@pytest.mark.parametrize("text", ["8:0 rbps=1\n\udcff\u2028\n", "\udc85", "5\n", "\u2028"])
def test_what_a_file_held_to_the_byte_is_in_the_journal(tmp_path: Path, text: str) -> None:
    key = ("kubepods/pod\udcff", CgroupFile.IO_READ_BPS)
    original = Original(text, 7, ("BlkIO",), ("8:0",))
    with Journal(tmp_path / "writes.journal") as journal:
        journal.record({key: original})
    assert read_journal(tmp_path / "writes.journal") == ({key: original}, 0)
