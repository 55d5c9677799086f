"""Every map of the programs when it is full: what does not fit is counted, and what fits is still right.

They are made small by a build of its own, so that a slow machine fills them too.
"""

from __future__ import annotations

import logging
import mmap

import pytest

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.events.layout import decode_totals, unpack_memcgs
from koordebpf.events.records import ReclaimStall, Totals
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from koordebpf.state.measured import Measured
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.conftest import WatchNode, make_child
from tests.host.provoke import reclaims, stalls_of, storm
from tests.host.variants import with_entries, with_ring
from tests.support.loads.storms import can_count, limit, visit
from tests.support.nodes import NodeCgroup
from tests.support.tracefs import NO_TRACEFS

pytestmark = pytest.mark.slow

FEW = 4
STORMS = 16
STORM_MS = 500
MORE_THAN_FIT = 50  # mkdir records, into a ring of one page


def totals_of(watch: NodeWatch) -> Totals:
    return decode_totals(watch.signals.totals())


def test_more_tasks_stall_at_once_than_fit(node: NodeCgroup, watch_node: WatchNode) -> None:
    containers = [node.add_pod(f"storm-{number}")[0] for number in range(STORMS)]
    watch = watch_node(with_entries("start", 1))
    made = storm(containers, STORM_MS)
    totals, rows = totals_of(watch), stalls_of(watch.signals)
    counted = sum(reclaims(rows.get(each)) for each in made)
    episodes = sum(result.episodes for result in made.values())
    assert totals.begun_full > 0
    assert 0 < episodes - counted <= totals.begun_full
    assert counted == totals.episodes
    # A begin that found no room is no stall that never ends.
    assert {row.stalled for row in rows.values()} == {0}
    assert totals.node_stalled == 0


def test_more_cgroups_that_stall_than_sums(node: NodeCgroup, watch_node: WatchNode) -> None:
    containers = [node.add_pod(f"storm-{number}")[0] for number in range(STORMS)]
    watch = watch_node(with_entries("stalls", FEW))
    made = storm(containers, STORM_MS)
    totals, rows = totals_of(watch), stalls_of(watch.signals)
    assert len(rows) == FEW
    for number, row in rows.items():  # of a cgroup that has sums, none is missing
        assert reclaims(row) == (made[number].episodes if number in made else 0)
    uncounted = sum(result.episodes for number, result in made.items() if number not in rows)
    assert 0 < uncounted <= totals.stalls_full
    # A removed cgroup makes room for another.
    for number in list(rows):
        watch.signals.forget(number)
    (later,) = node.add_pod("later")
    made = storm([later], STORM_MS)
    assert reclaims(stalls_of(watch.signals)[cgroup_id(later)]) == made[cgroup_id(later)].episodes


def test_a_full_ring_loses_records_and_no_count(node: NodeCgroup, watch_node: WatchNode) -> None:
    (container,) = node.add_pod("storm")
    watch = watch_node(with_ring(mmap.PAGESIZE), min_stall_ns=0)
    watch.drain()
    before = totals_of(watch)
    made = storm([container], STORM_MS)[cgroup_id(container)].episodes
    after = totals_of(watch)
    assert after.ring_lost > before.ring_lost
    assert reclaims(stalls_of(watch.signals)[cgroup_id(container)]) == made
    sent = after.ring_sent - before.ring_sent
    assert sent + after.ring_lost - before.ring_lost >= made
    kept = [record for record, _ in watch.drain() if isinstance(record, ReclaimStall)]
    assert 0 < len(kept) <= sent
    # Once it is empty everything comes through again.
    lost = totals_of(watch).ring_lost
    later = cgroup_id(make_child(node.path, "later"))
    until(lambda: (watch.drain(), later in watch.index)[1], "the mkdir after the loss")
    assert totals_of(watch).ring_lost == lost


def test_who_died_unheard_leaves_no_sums_behind(node: NodeCgroup, watch_node: WatchNode) -> None:
    if not can_count():
        pytest.skip(NO_TRACEFS)
    folder, home = make_child(node.path, "many"), make_child(node.path, "home")
    watch = watch_node(with_ring(mmap.PAGESIZE))
    for number in range(MORE_THAN_FIT):
        limit(make_child(folder, str(number)))
    assert totals_of(watch).ring_lost > 0  # mkdir records
    made = visit(folder, MORE_THAN_FIT, home)
    assert sum(map(reclaims, stalls_of(watch.signals).values())) == made
    for number in range(MORE_THAN_FIT):
        (folder / str(number)).rmdir()
    own = {cgroup_id(path) for path in [node.path, *node.path.rglob("*")] if path.is_dir()}
    until(lambda: (watch.drain(), len(watch.index) == len(own))[1], "the index is right")
    assert stalls_of(watch.signals).keys() <= own


def test_more_cgroups_than_a_scan_can_hold(
    node: NodeCgroup, watch_node: WatchNode, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(FEW):
        node.add_pod(f"pod-{number}")
    watch = watch_node(with_entries("memcgs", FEW))
    if not watch.signals.can_scan:
        pytest.skip(f"{OTHER_MACHINE}its kernel has no cgroup iterator (since 6.1)")
    cgroups = len(watch.index)
    for _ in range(2):
        with watch.signals.scan() as rows:
            ids = [row[0] for row in unpack_memcgs(rows)]
        assert len(ids) == FEW
        assert ids[0] == cgroup_id(node.path)
        assert watch.signals.scan_missed() == cgroups - FEW
    collector = MemoryCollector(watch.scope, watch.signals, watch.index)
    try:
        with caplog.at_level(logging.WARNING):
            measured: Measured = collector.everything({}, (), None)
    finally:
        collector.close()
    assert f"{cgroups - FEW} memory cgroups are not measured" in caplog.text
    assert len(measured.pods) == FEW
    assert any(pod.memory is None for pod in measured.pods)
