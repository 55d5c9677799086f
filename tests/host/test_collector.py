"""The collector on real cgroups: one scan and kept files must tell the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.state.measured import Measured, MemoryParts
from koordebpf.units import PAGE_BYTES
from tests.support.nodes import MIB, NodeCgroup

pytestmark = pytest.mark.usefixtures("require_root")


@pytest.fixture
def node() -> Iterator[NodeCgroup]:
    hierarchy = find_memory_hierarchy()
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as made:
        yield made


def worker(container: Path, kind: str, mib: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "koordebpf.demo.workers", kind, "--procs", str(container / "cgroup.procs")]
    return subprocess.Popen([*command, "--mib", str(mib), *more], stdout=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[str], event: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if f'"{event}"' in line:
            return
    raise AssertionError(f"the worker ended before {event}")


def differences(read: MemoryParts, scanned: MemoryParts) -> dict[str, tuple[int, int]]:
    # Each CPU holds back up to 64 charged pages and 31 pages on their way to the LRU, and may let go in between.
    held_back = (os.cpu_count() or 1) * (64 + 31) * PAGE_BYTES
    fields = ("usage_bytes", "inactive_anon_bytes", "inactive_file_bytes", "active_file_bytes", "unevictable_bytes")
    both = {field: (getattr(read, field), getattr(scanned, field)) for field in fields}
    return {field: (one, other) for field, (one, other) in both.items() if abs(one - other) > held_back}


def pairs(read: Measured, scanned: Measured) -> list[tuple[MemoryParts, MemoryParts]]:
    """Return what files and the scan say of the node, each pod and the stray one."""
    of_both = zip((read.node, *read.pods, *read.strays), (scanned.node, *scanned.pods, *scanned.strays), strict=True)
    return [(one.memory, other.memory) for one, other in of_both if one.memory and other.memory]


def measure(node: NodeCgroup, manifest: Path, measures: bool) -> Any:
    scope = open_scope(find_memory_hierarchy(), node.path)
    with NodeWatch(scope, FileSource([manifest]), 1 << 62, measures=measures) as watch:
        assert watch.source is not None
        watch.source.start(lambda: None)
        watch.cluster()
        collector = MemoryCollector(scope, watch.signals, watch.index)
        try:
            assert watch.signals.can_scan <= measures
            return collector.everything({}, (), None)
        finally:
            collector.close()


def test_files_report_what_the_scan_reports(node: NodeCgroup, tmp_path: Path) -> None:
    (hog,) = node.add_pod("hog")
    (web,) = node.add_pod("web", be=False)
    node.add_pod("idle")
    manifest = node.write_manifest(tmp_path / "pods.json")
    (stray,) = node.add_pod("unlisted")
    with (
        worker(hog, "hog", 96, "--mib-per-s", "2000") as first,
        worker(web, "hog", 32, "--mib-per-s", "2000") as second,
        worker(stray, "hog", 16, "--mib-per-s", "2000") as third,
    ):
        try:
            for each in (first, second, third):
                until(each, "full")
            # Waited for: both agree on node and pods, a moment apart. Meanwhile khugepaged charges a huge page
            # before it gives the small ones back, and a memory.stat lags behind by up to 2 s, each level by itself.
            for _ in range(5):
                scanned = measure(node, manifest, measures=True)
                read = measure(node, manifest, measures=False)
                if not any(differences(*pair) for pair in pairs(read, scanned)):
                    break
        finally:
            for each in (first, second, third):
                each.kill()
    assert len(read.pods) == 3
    assert [differences(*pair) for pair in pairs(read, scanned)] == [{}] * 5
    assert read.strays[0].memory.koordinator_used_bytes >= 15 * MIB
    assert scanned.node.total_bytes == 512 * MIB
    by_name = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in node.pods}
    used = {by_name[pod.uid]: pod.memory.koordinator_used_bytes for pod in scanned.pods}
    assert 90 * MIB <= used["hog"] < 120 * MIB  # some of its last pages are on their way to the LRU
    assert 30 * MIB <= used["web"] < 50 * MIB
    assert used["idle"] == 0


def test_page_cache_is_not_usage(node: NodeCgroup, tmp_path: Path) -> None:
    (flood,) = node.add_pod("flood")
    manifest = node.write_manifest(tmp_path / "pods.json")
    with worker(flood, "page-cache", 128, "--seconds", "30", "--directory", "/var/tmp") as process:
        try:
            until(process, "begins")
            while node.usage_bytes() < 120 * MIB and process.poll() is None:
                time.sleep(0.01)
            measured = measure(node, manifest, measures=True)
        finally:
            process.kill()
    (pod,) = measured.pods
    assert pod.memory.inactive_file_bytes + pod.memory.active_file_bytes >= 100 * MIB
    assert pod.memory.koordinator_used_bytes < 20 * MIB
    assert measured.node.used_bytes < 40 * MIB


def test_below_the_threshold_one_read_is_enough_and_above_it_page_cache_is_looked_for(
    node: NodeCgroup, tmp_path: Path
) -> None:
    (flood,) = node.add_pod("flood")
    scope = open_scope(find_memory_hierarchy(), node.path)
    with (
        NodeWatch(scope, None, 1 << 62) as watch,
        worker(flood, "page-cache", 128, "--seconds", "30", "--directory", "/var/tmp") as process,
    ):
        collector = MemoryCollector(scope, watch.signals, watch.index)
        try:
            until(process, "begins")
            while node.usage_bytes() < 120 * MIB and process.poll() is None:
                time.sleep(0.01)
            below = collector.node(200 * MIB)
            above = collector.node(100 * MIB)
        finally:
            process.kill()
            collector.close()
    assert 120 * MIB <= below.used_bytes < 200 * MIB  # page cache and all: it cannot be above
    assert above.used_bytes < 40 * MIB  # without page cache it is not above
    assert below.total_bytes == above.total_bytes == 512 * MIB
