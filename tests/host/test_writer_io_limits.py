"""Limits of block devices on the running kernel: blkio.throttle.* on v1, the columns of io.max on v2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Original, Places
from koordebpf.act.writer.restore import restore, restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.cgroup.tables import Table, with_rows
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.host.one_file import MOMENTS, OWNER, OneFile, write_and_be_killed

READ_BPS, WRITE_IOPS = CgroupFile.IO_READ_BPS, CgroupFile.IO_WRITE_IOPS
PLACES = Places(find_controllers())


@pytest.fixture
def device() -> str:
    found = sorted(path.read_text().strip() for path in Path("/sys/block").glob("*/dev"))
    if not found:
        pytest.skip(f"{OTHER_MACHINE}no block device")
    return found[-1]


@pytest.fixture
def devices() -> tuple[str, str, str]:
    found = sorted(path.read_text().strip() for path in Path("/sys/block").glob("*/dev"))
    if len(found) < 3:
        pytest.skip(f"{OTHER_MACHINE}fewer than three block devices")
    return found[-3], found[-2], found[-1]


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


def put(name: str, file: CgroupFile, device: str, limit: int) -> None:
    """Write a row as a container runtime does."""
    path = PLACES.locate((name, file))
    assert path is not None
    for text in PLACES.writes((name, file), Table(), Table.of({device: limit})):
        path.write_text(text)


def test_rows_of_others_stay_and_ours_come_back(name: str, devices: tuple[str, str, str], tmp_path: Path) -> None:
    ours, theirs, later = devices
    put(name, READ_BPS, ours, 9 << 20)
    put(name, READ_BPS, theirs, 8 << 20)
    with Journal(tmp_path / "journal") as journal:
        audited: list[FileChange] = []
        writer = CgroupWriter(PLACES, journal, enforce=True, audit=audited.append)
        writer.apply(limits(name, (READ_BPS, {ours: 1 << 20, later: 3 << 20})), 1)
        assert held(name, READ_BPS) == Table.of({ours: 1 << 20, theirs: 8 << 20, later: 3 << 20})
        # A row that is wanted no more is as it was.
        writer.apply(limits(name, (READ_BPS, {ours: 1 << 20})), 2)
        assert held(name, READ_BPS) == Table.of({ours: 1 << 20, theirs: 8 << 20})
        # What a runtime writes meanwhile is its own, and no reason to correct anything.
        put(name, READ_BPS, later, 4 << 20)
        put(name, READ_BPS, theirs, 7 << 20)
        writer.apply(limits(name, (READ_BPS, {ours: 2 << 20})), 60 * NS_PER_S)
        assert held(name, READ_BPS) == Table.of({ours: 2 << 20, theirs: 7 << 20, later: 4 << 20})
        assert not any(each.is_correction for each in audited)
        put(name, READ_BPS, theirs, 6 << 20)
        report = writer.restore(61 * NS_PER_S)
        assert report.left == () and not journal.originals
    assert held(name, READ_BPS) == Table.of({ours: 9 << 20, theirs: 6 << 20, later: 4 << 20})


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("successor", ["restores", "ends", "continues"])
def test_rows_that_others_write_after_a_kill_stay(
    name: str, devices: tuple[str, str, str], tmp_path: Path, moment: str, successor: str
) -> None:
    # GIVEN an agent that was killed when it wrote a row, and a runtime that writes and lifts others since
    ours, theirs, later = devices
    put(name, READ_BPS, ours, 9 << 20)
    put(name, READ_BPS, theirs, 8 << 20)
    wanted, other = (((name, file), Table.of({ours: 1 << 20})) for file in (READ_BPS, WRITE_IOPS))
    file = OneFile(PLACES, wanted, other, tmp_path / "journal")
    write_and_be_killed(file, moment)
    put(name, READ_BPS, later, 4 << 20)
    file.put(with_rows(file.held(), Table(), [theirs]))  # type: ignore[arg-type]
    # WHEN the next agent takes over, or ends what the first one did
    if successor == "restores":
        assert restore_journal(file.journal, PLACES, 1).left == ()
    else:
        with Journal(file.journal) as journal:
            writer = CgroupWriter(PLACES, journal, enforce=True)
            if successor == "continues":
                writer.apply(limits(name, (READ_BPS, {ours: 2 << 20})), 1)
                assert held(name, READ_BPS) == Table.of({ours: 2 << 20, later: 4 << 20})
            assert writer.restore(2).left == ()
    # THEN our row is as it was, and all others are as the runtime has them
    assert held(name, READ_BPS) == Table.of({ours: 9 << 20, later: 4 << 20})
    assert not file.journal.exists()


def test_a_record_from_before_devices_were_kept_is_restored_whole(name: str, device: str, tmp_path: Path) -> None:
    inode = Path(str(PLACES.locate((name, READ_BPS)))).stat().st_ino
    with Journal(tmp_path / "journal") as journal:
        journal.record({(name, READ_BPS): Original("", inode, (OWNER,))})
    put(name, READ_BPS, device, 1 << 20)
    assert restore_journal(tmp_path / "journal", PLACES, 1).left == ()
    assert held(name, READ_BPS) == Table()


def test_a_lower_limit_of_a_runtime_is_not_raised(name: str, device: str, tmp_path: Path) -> None:
    put(name, READ_BPS, device, 1 << 20)
    with Journal(tmp_path / "journal") as journal:
        writer = CgroupWriter(PLACES, journal, enforce=True)
        assert writer.apply(limits(name, (READ_BPS, {device: 5 << 20})), 1).changes == ()
        assert held(name, READ_BPS) == Table.of({device: 1 << 20})
        assert writer.apply(limits(name, (READ_BPS, {device: 5 << 19})), 2).changes == ()
        writer.apply(limits(name, (READ_BPS, {device: 1 << 19})), 3)
        assert held(name, READ_BPS) == Table.of({device: 1 << 19})
        writer.restore(4)
    assert held(name, READ_BPS) == Table.of({device: 1 << 20})


def test_our_own_row_that_another_process_changes_is_corrected_and_counted(
    name: str, devices: tuple[str, str, str], tmp_path: Path
) -> None:
    ours, theirs, _ = devices
    put(name, READ_BPS, theirs, 8 << 20)
    with Journal(tmp_path / "journal") as journal:
        audited: list[FileChange] = []
        writer = CgroupWriter(PLACES, journal, enforce=True, audit=audited.append)
        wanted = limits(name, (READ_BPS, {ours: 1 << 20}))
        writer.apply(wanted, 1)
        put(name, READ_BPS, ours, 5 << 20)
        writer.apply(wanted, 60 * NS_PER_S)
        assert [each.is_correction for each in audited] == [False, True]
        assert held(name, READ_BPS) == Table.of({ours: 1 << 20, theirs: 8 << 20})
        writer.restore(61 * NS_PER_S)
    assert held(name, READ_BPS) == Table.of({ours: 5 << 20, theirs: 8 << 20})


def test_a_row_that_was_written_before_another_was_refused_is_lifted_again(
    name: str, device: str, tmp_path: Path
) -> None:
    with Journal(tmp_path / "journal") as journal:
        writer = CgroupWriter(PLACES, journal, enforce=True)
        report = writer.apply(limits(name, (READ_BPS, {device: 1 << 20, "999:7": 1 << 20})), 1)
        assert [change.result for change in report.changes] == [WriteResult.REFUSED]
        assert held(name, READ_BPS) == Table.of({device: 1 << 20})
        writer.apply(limits(name, (READ_BPS, {device: 1 << 20})), 60 * NS_PER_S)
        assert writer.restore(61 * NS_PER_S).left == ()
    assert held(name, READ_BPS) == Table()


def test_a_device_that_is_not_there_is_refused_and_the_cgroup_stays(name: str, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        report = CgroupWriter(PLACES, journal, enforce=True).apply(limits(name, (READ_BPS, {"4095:7": 1 << 20})), 1)
    assert [change.result for change in report.changes] == [WriteResult.REFUSED]
    assert "ENODEV" in report.changes[0].detail
