"""What the signals without BPF send of cgroup.events, by a small tree as cgroup v2 has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from koordebpf.events.layout import decode
from koordebpf.events.records import CgroupPopulated
from koordebpf.kernel.backends.files import KOORD_POPULATED, FilesSignals, PressureTotals
from koordebpf.kernel.backends.limit_events import LimitEvents
from koordebpf.kernel.cgroup.tree import CgroupTree
from koordebpf.kernel.io.table import odd_rows
from koordebpf.kernel.proc.vmstat import VmstatValues
from koordebpf.kernel.signals import SignalRequest
from tests.contract.apiserver import until

MakeTree = Callable[[dict[str, Any]], Path]
EVENTS = "populated {}\nfrozen {}\n"


@pytest.fixture
def root(tree: MakeTree) -> Path:
    of_memory = {
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    }
    return tree({"node": {"pod": {"cgroup.events": EVENTS.format(0, 0), **of_memory}, **of_memory}})


@pytest.fixture
def signals(root: Path) -> Iterator[FilesSignals]:
    request = SignalRequest(
        hierarchy_version=2, hierarchy_id=0, mount_point=root, root=root / "node", node_cgroup_id=None, node_level=1
    )
    with closing(FilesSignals(request, None)) as opened:
        opened.send_kinds(1 << KOORD_POPULATED)
        yield opened


PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"


def test_pressure_that_ran_backwards_is_counted_from_there_and_reported(root: Path) -> None:
    request = SignalRequest(
        hierarchy_version=2, hierarchy_id=0, mount_point=root, root=root / "node", node_cgroup_id=7, node_level=1
    )
    vmstat = VmstatValues(0, 0, 0, 0, 0)
    with closing(CgroupTree(root / "node", 1)) as tree:
        limits, totals, found = LimitEvents(tree, request), PressureTotals(tree, request), []
        for now_ns, total in enumerate((500, 100, 160), start=1):
            for path in (root / "node", root / "node/pod"):
                (path / "memory.pressure").write_text(PRESSURE.format(total))
            totals.stalls(vmstat, limits, now_ns)
            found.append(totals.node_some_ns(now_ns)[0])
    assert found == [500_000, 500_000, 560_000]
    assert odd_rows()["memory.pressure"] >= 1


def populated(signals: FilesSignals) -> list[bool]:
    return [each.populated for each in map(decode, signals.read()) if isinstance(each, CgroupPopulated)]


def test_a_cgroup_says_once_that_it_has_processes_and_once_that_it_has_none(root: Path, signals: FilesSignals) -> None:
    heard: list[bool] = []

    def hears(*expected: bool) -> bool:
        heard.extend(populated(signals))
        return heard == list(expected)

    events = root / "node/pod/cgroup.events"
    events.write_text(EVENTS.format(1, 0))
    until(lambda: hears(True), "processes")
    events.write_text(EVENTS.format(1, 1))
    assert populated(signals) == []  # the freezer's state
    events.write_text(EVENTS.format(0, 1))
    until(lambda: hears(True, False), "no process")
