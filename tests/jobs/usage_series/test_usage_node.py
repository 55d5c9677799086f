"""What a node that is a cgroup uses, and the machine beside its pods; and the filesystem of its images."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.jobs.usage_series.collector import NodeUse, WholeNode
from koordebpf.jobs.usage_series.groups import UsageGroup
from koordebpf.strategies.katalyst.rootfs import RootfsCollector
from tests.contract.apiserver import until
from tests.support.played_signals import StalledNode


class Rig(StalledNode):
    def __init__(self, root: Path, kind: Any = "cgroup") -> None:
        super().__init__(root, 2, kind)
        (root / "memory.max").write_text("1000000\n")
        (root / "memory.stat").write_text(
            "inactive_anon 100\nactive_anon 20\ninactive_file 30\nactive_file 40\nunevictable 5\n"
        )
        (root / "memory.current").write_text("500\n")
        self.node = WholeNode(self.watch.scope, self.collector)
        pod = self.id("web")
        self.node.watch({pod: UsageGroup(pod, self.path("web"), "pod", "web")})

    def close(self) -> None:
        self.node.close()
        super().close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def test_a_node_that_is_a_cgroup_has_its_own_cpu_and_the_memory_of_the_last_scan(rig: Rig):
    root = rig.ids[""]
    assert rig.node.read(0, {root: 1.5}, {}) == NodeUse(1.5)
    rig.collector.everything({}, (), None)
    assert rig.node.read(0, {root: 1.5, 99: 7.0}, {}) == NodeUse(1.5, 430, 500)
    assert rig.node.read(0, {}, {}).cpu is None


def test_a_machine_has_more_than_its_pods(tmp_path: Path):
    rig = Rig(tmp_path, "machine")
    first = rig.node.read(0, {}, {rig.id("web"): 4096})
    second = rig.node.read(1_000_000_000, {}, {rig.id("web"): 8192})
    assert first.cpu is None and second.cpu is not None
    assert first.held_bytes is not None and first.cached_bytes is not None
    assert 0 < first.held_bytes < first.cached_bytes
    if len(second.numa_held_bytes) == 1:
        ((number, held),) = second.numa_held_bytes.items()
        assert second.numa_rest_bytes == {number: held - 8192}
        assert second.numa_cpu == {number: second.cpu}
    rig.close()


def test_the_filesystem_of_images_has_what_statvfs_says(tmp_path: Path):
    short: list[Any] = []
    collector = RootfsCollector(dict, tmp_path, lambda found: bool(short.append(found)))
    try:
        until(lambda: collector.measure()[0] is not None, "a look at the filesystem")
        found, pods = collector.measure()
        assert found is not None and pods is None
        seen = os.statvfs(tmp_path)
        assert found.capacity_bytes == seen.f_blocks * seen.f_frsize
        assert abs(found.available_bytes - seen.f_bavail * seen.f_frsize) < found.capacity_bytes // 100
        assert found.inodes == (seen.f_files or None)
        assert short[0].path == str(tmp_path)
    finally:
        collector.close()
