"""Limits of block devices on the running kernel: blkio.throttle.* on v1, the columns of io.max on v2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile.values import CgroupWrite, DesiredState
from tests.conftest import OTHER_MACHINE

READ_BPS, WRITE_IOPS = CgroupFile.IO_READ_BPS, CgroupFile.IO_WRITE_IOPS
PLACES = Places(find_controllers())


@pytest.fixture
def device() -> str:
    found = sorted(path.read_text().strip() for path in Path("/sys/block").glob("*/dev"))
    if not found:
        pytest.skip(f"{OTHER_MACHINE}no block device")
    return found[-1]


@pytest.fixture
def name(require_root: None) -> Iterator[str]:
    mount = find_controllers().get("blkio") or find_controllers().get("io")
    if mount is None:
        pytest.skip(f"{OTHER_MACHINE}no controller blkio or io")
    if mount.version == 2:
        (mount.mount_point / "cgroup.subtree_control").write_text("+io")
    path = mount.mount_point / f"kd-io-{os.getpid()}"
    path.mkdir()
    yield path.name
    path.rmdir()


def limits(name: str, *of: tuple[CgroupFile, dict[str, int]]) -> DesiredState:
    return DesiredState("of a test", tuple(CgroupWrite(name, file, Table.of(table)) for file, table in of))


def held(name: str, file: CgroupFile) -> object:
    path = PLACES.locate((name, file))
    assert path is not None
    return PLACES.parse((name, file), path.read_text())


def test_each_limit_of_a_device_is_written_and_the_others_stay(name: str, device: str, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        writer = CgroupWriter(PLACES, journal, enforce=True)
        report = writer.apply(limits(name, (READ_BPS, {device: 1 << 20}), (WRITE_IOPS, {device: 50})), 1)
        assert [change.result for change in report.changes] == [WriteResult.WRITTEN] * 2
        assert (held(name, READ_BPS), held(name, WRITE_IOPS)) == (Table.of({device: 1 << 20}), Table.of({device: 50}))
        writer.apply(limits(name, (READ_BPS, {}), (WRITE_IOPS, {device: 60})), 2)
        assert (held(name, READ_BPS), held(name, WRITE_IOPS)) == (Table(), Table.of({device: 60}))
        assert writer.apply(limits(name, (READ_BPS, {}), (WRITE_IOPS, {device: 60})), 3).changes == ()


def test_the_limits_before_are_restored(name: str, device: str, tmp_path: Path) -> None:
    first = CgroupWriter(PLACES, Journal(tmp_path / "of-another"), enforce=True)
    first.apply(limits(name, (READ_BPS, {device: 7 << 20})), 1)
    with Journal(tmp_path / "journal") as journal:
        CgroupWriter(PLACES, journal, enforce=True).apply(
            limits(name, (READ_BPS, {device: 1 << 20}), (WRITE_IOPS, {device: 50})), 2
        )
        report = restore(PLACES, dict(journal.originals), 3, enforce=True)
    assert report.left == ()
    assert (held(name, READ_BPS), held(name, WRITE_IOPS)) == (Table.of({device: 7 << 20}), Table())


def test_a_device_that_is_not_there_is_refused_and_the_cgroup_stays(name: str, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        report = CgroupWriter(PLACES, journal, enforce=True).apply(limits(name, (READ_BPS, {"4095:7": 1 << 20})), 1)
    assert [change.result for change in report.changes] == [WriteResult.REFUSED]
    assert "ENODEV" in report.changes[0].detail
