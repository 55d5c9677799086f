"""Project quotas of layers, on a disk that counts them: what they say, and why they are not believed by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.host.disk_use import project_of, project_use
from koordebpf.strategies.katalyst.rootfs import Container, RootfsCollector
from koordebpf.units import MIB
from tests.contract.apiserver import until
from tests.support.image_disk import ImageDisk, Layer, run

FIRST, SECOND = 77, 78


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ImageDisk]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a disk")
    with ImageDisk(tmp_path, 64, ["-O", "quota,project", "-E", "quotatype=prjquota"], ["prjquota"]) as disk:
        yield disk


def in_project(disk: ImageDisk, container_id: str, project: int) -> Layer:
    layer = disk.layer(container_id)
    run("chattr", "-p", project, "+P", layer.upper)
    return layer


def counted(path: Path) -> tuple[int, int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        project = project_of(fd)
        assert project is not None
        use = project_use(fd, project)
        assert use is not None
        assert not use.is_cut
        return use.used_bytes, use.inodes
    finally:
        os.close(fd)


def test_a_project_counts_bytes_and_inodes(disk: ImageDisk) -> None:
    layer = in_project(disk, "c1", FIRST)
    used, inodes = counted(layer.upper)
    layer.write("large", 4)
    assert counted(layer.upper) == (used + 4 * MIB, inodes + 1)


def test_a_directory_without_a_project_has_none(disk: ImageDisk, tmp_path: Path) -> None:
    for path in (disk.layer("c1").upper, Path("/proc"), tmp_path):
        fd = os.open(path, os.O_RDONLY)
        try:
            assert project_of(fd) is None
        finally:
            os.close(fd)


def test_a_container_can_give_its_files_to_another_ones_project(disk: ImageDisk) -> None:
    hostile, victim = in_project(disk, "c1", FIRST), in_project(disk, "c2", SECOND)
    hostile.write("large", 8)
    process = hostile.start(f"chattr -p {SECOND} /large")
    assert process.wait() == 0
    run("sync", "-f", disk.root)
    assert counted(victim.upper)[0] >= 8 * MIB
    pods = {"hostile": (Container("c1", ()),), "victim": (Container("c2", ()),)}
    # By default, what a pod has written is its own; the setting believes the quota.
    for asks_quotas, larger in ((False, "hostile"), (True, "victim")):
        with RootfsCollector(lambda: pods, disk.root, lambda _: False, asks_quotas=asks_quotas) as made:
            until(lambda made=made: made.measure()[1], "a pass over the layers", 20)
            rootfs = made.measure()[1]
        assert rootfs is not None
        assert max(rootfs.pods, key=lambda uid: rootfs.pods[uid].used_bytes) == larger
        assert rootfs.pods[larger].used_bytes >= 8 * MIB
