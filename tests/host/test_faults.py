"""What goes wrong on a node, done for real to the signals and the collector: things vanish, come back, overflow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone
from koordebpf.events.layout import decode_totals, unpack_memcgs
from koordebpf.events.records import CgroupRename, Totals
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy, cgroup_id
from koordebpf.state.stalls.windows import NODE, StallWindow
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.conftest import WatchNode, make_child
from tests.host.provoke import N, reclaims, stalls_of, storm
from tests.support.loads.storms import StormResult, visit
from tests.support.nodes import NodeCgroup

STORM_MS = 300


@pytest.fixture
def measure(watch_node: WatchNode) -> Iterator[tuple[NodeWatch, MemoryCollector]]:
    watch = watch_node()
    collector = MemoryCollector(watch.scope, watch.signals, watch.index)
    yield watch, collector
    collector.close()


def needs_counts(watch: NodeWatch) -> None:
    if watch.signals.name == "files":
        pytest.skip(f"{OTHER_MACHINE}the files backend cannot count single reclaims")


def totals_of(watch: NodeWatch) -> Totals:
    return decode_totals(watch.signals.totals())


def storm_in(container: Path, ms: int = STORM_MS) -> StormResult:
    (result,) = storm([container], ms).values()
    return result


def remove_pod(node: NodeCgroup, name: str) -> None:
    path = node.pod_paths.pop(name)
    for child in [each for each in path.iterdir() if each.is_dir()]:
        child.rmdir()
    path.rmdir()


def test_a_cgroup_that_is_removed_in_the_middle_of_a_measurement_has_no_memory(
    node: NodeCgroup, watch_node: WatchNode
) -> None:
    names = [f"pod-{number}" for number in range(N)]
    for name in names:
        node.add_pod(name)
    watch = watch_node()
    collector = MemoryCollector(watch.scope, watch.signals, watch.index)
    try:
        assert all(pod.memory is not None for pod in collector.everything({}, (), None).pods)
        # The index, which knows of it from the ring alone, is behind the kernel: as if it went between two reads.
        for name in names[::2]:
            remove_pod(node, name)
        pods = {pod.uid: pod.memory for pod in collector.everything({}, (), None).pods}
        gone = {each["metadata"]["uid"]: each["metadata"]["name"] not in node.pod_paths for each in node.pods}
        assert {uid: memory is None for uid, memory in pods.items()} == gone
        watch.drain()
        left = collector.everything({}, (), None).pods
        assert {pod.uid for pod in left if pod.memory} == {uid for uid, is_gone in gone.items() if not is_gone}
    finally:
        collector.close()


def test_a_kept_file_of_a_removed_cgroup_says_so_and_the_next_of_that_name_is_another(
    memory_cgroup: Path, hierarchy: MemoryHierarchy
) -> None:
    path = make_child(memory_cgroup, "container")
    first_id = cgroup_id(path)
    with CgroupMemory(path, hierarchy.version) as kept:
        kept.read()
        path.rmdir()
        with pytest.raises(CgroupGone):
            kept.read()
        path.mkdir()
        assert cgroup_id(path) != first_id
        with pytest.raises(CgroupGone):  # and not the values of the new one
            kept.usage_bytes()
    path.rmdir()


def test_measuring_continues_while_pods_come_and_go(
    node: NodeCgroup, measure: tuple[NodeWatch, MemoryCollector]
) -> None:
    watch, collector = measure
    stop = threading.Event()
    passed: list[str] = []

    def come_and_go() -> None:
        while not stop.is_set():
            name = f"passing-{len(passed)}"
            node.add_pod(name, containers=2)
            remove_pod(node, name)
            passed.append(name)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        while len(passed) < N:
            measured = collector.everything({}, (), None)
            assert measured.node.used_bytes < node.limit_bytes
            watch.drain()
            if watch.signals.can_scan:
                with watch.signals.scan() as rows:
                    ids = [row[0] for row in unpack_memcgs(rows)]
                assert ids[0] == cgroup_id(node.path) and len(set(ids)) == len(ids)
    finally:
        stop.set()
        thread.join()
    until(lambda: (watch.drain(), _holds_what_is_there(watch, node))[1], "the index is right again")


def _holds_what_is_there(watch: NodeWatch, node: NodeCgroup) -> bool:
    there = [cgroup_id(path) for path in [node.path, *node.path.rglob("*")] if path.is_dir()]
    return len(watch.index) == len(there) and all(each in watch.index for each in there)


def test_sums_that_begin_again_under_an_old_id_are_no_negative_stall(node: NodeCgroup, watch_node: WatchNode) -> None:
    folder = make_child(node.path, "again")
    container = make_child(folder, "0")
    watch = watch_node()
    needs_counts(watch)
    window, own = StallWindow(3600 * NS_PER_S), cgroup_id(container)
    first = storm_in(container, 2 * STORM_MS).episodes
    grown = window.push(1, stalls_of(watch.signals).values(), watch.index.subtree_pod)
    assert grown[NODE].limit_count == first
    watch.signals.forget(own)  # as after its removal: a cgroup that reuses the id starts at zero
    assert own not in stalls_of(watch.signals)
    second = visit(folder, 1, make_child(node.path, "home"))
    assert second < first
    row = stalls_of(watch.signals)[own]
    assert reclaims(row) == second
    grown = window.push(2, stalls_of(watch.signals).values(), watch.index.subtree_pod)
    assert (grown[NODE].limit_count, grown[NODE].limit_ns) == (second, row.limit.total_ns)


def test_a_renamed_cgroup_keeps_its_id_its_sums_and_its_files(
    node: NodeCgroup, watch_node: WatchNode, hierarchy: MemoryHierarchy
) -> None:
    if hierarchy.version == 2:
        pytest.skip(f"{OTHER_MACHINE}cgroup v2 cannot rename a cgroup")
    (container,) = node.add_pod("renamed")
    new_name = container.name[::-1]
    status = node.pods[0]["status"]["containerStatuses"][0]
    status["containerID"] = f"containerd://{new_name}"  # the runtime tells the new one, the directory has the old
    watch = watch_node()
    collector = MemoryCollector(watch.scope, watch.signals, watch.index)
    own, counts = cgroup_id(container), watch.signals.name != "files"
    try:
        assert watch.index.owner(own).container_name is None
        before = storm_in(container).episodes if counts else 0
        with CgroupMemory(container, 1) as kept:
            kept.usage_bytes()
            container.rename(container.with_name(new_name))
            kept.usage_bytes()
        renames = [(record, owner) for record, owner in watch.drain() if isinstance(record, CgroupRename)]
        assert [(record.cgroup_id, record.name) for record, _ in renames] == [(own, new_name)]
        assert [owner.container_name for _, owner in renames] == ["c0"]
        assert watch.index.path(own).endswith(f"/{new_name}")
        if counts:
            after = storm_in(container.with_name(new_name)).episodes
            assert reclaims(stalls_of(watch.signals)[own]) == before + after
        (pod,) = collector.everything({}, (), None).pods
        assert pod.memory is not None
    finally:
        collector.close()
    assert _holds_what_is_there(watch, node)
