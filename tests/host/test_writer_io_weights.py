"""Weights, latency targets and io.cost of a block device on the running kernel: written, and restored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from tests.conftest import OTHER_MACHINE
from tests.support.loop_disk import LoopDisk

COST = (CgroupFile.IO_COST_RPCT, CgroupFile.IO_COST_RLAT, CgroupFile.IO_COST_WPCT, CgroupFile.IO_COST_WLAT)
MODEL = tuple(each for each in CgroupFile if each.value.startswith("blkio.cost.model"))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path_factory.mktemp("disk"), 8) as made:
        yield made


@pytest.fixture
def name(require_root: None) -> Iterator[str]:
    mount = find_controllers().get("blkio") or find_controllers().get("io")
    if mount is None:
        pytest.skip(f"{OTHER_MACHINE}no controller blkio or io")
    if mount.version == 2:
        (mount.mount_point / "cgroup.subtree_control").write_text("+io")
    path = mount.mount_point / f"kd-weights-{os.getpid()}"
    path.mkdir()
    yield path.name
    path.rmdir()


def found(key: tuple[str, CgroupFile]) -> Path:
    path = Places(find_controllers()).locate(key)
    if path is None or not path.exists():
        pytest.skip(f"{OTHER_MACHINE}this kernel has no {path.name if path else key[1].value}")
    return path


def held(key: tuple[str, CgroupFile]) -> object:
    return Places(find_controllers()).parse(key, found(key).read_text())


def written_and_restored(keys: list[tuple[str, CgroupFile]], disk: LoopDisk, values: list[int], journal: Path) -> None:
    places, tables = Places(find_controllers()), [Table.of({disk.number: value}) for value in values]
    before = [held(key) for key in keys]
    with Journal(journal) as opened:
        writer = CgroupWriter(places, opened, enforce=True)
        wanted = tuple(CgroupWrite(*key, table) for key, table in zip(keys, tables, strict=True))
        report = writer.apply(DesiredState("of a test", wanted), 1)
        assert {change.result for change in report.changes} == {WriteResult.WRITTEN}, report
        assert [held(key) for key in keys] == tables
        assert writer.apply(DesiredState("of a test", wanted), 2).changes == ()
        assert writer.restore(3).left == ()
    assert [held(key) for key in keys] == before


def test_a_weight_where_the_scheduler_knows_weights(name: str, disk: LoopDisk, tmp_path: Path) -> None:
    key = (name, CgroupFile.IO_WEIGHT)
    if found(key).name == "io.weight":
        found(("", CgroupFile.IO_COST_RPCT)).write_text(f"{disk.number} enable=1")
    else:
        scheduler = Path("/sys/block", Path(disk.path).name, "queue/scheduler")
        if "bfq" not in scheduler.read_text():
            pytest.skip(f"{OTHER_MACHINE}this kernel has no BFQ")
        scheduler.write_text("bfq")
    written_and_restored([key], disk, [30], tmp_path / "journal")


def test_a_device_without_weights_is_unsupported_and_nothing_is_left(name: str, disk: LoopDisk, tmp_path: Path) -> None:
    key = (name, CgroupFile.IO_WEIGHT)
    if found(key).name == "io.weight":
        found(("", CgroupFile.IO_COST_RPCT)).write_text(f"{disk.number} enable=0")
        pytest.skip(f"{OTHER_MACHINE}io.cost takes a weight once it was on")
    Path("/sys/block", Path(disk.path).name, "queue/scheduler").write_text("none")
    with Journal(tmp_path / "journal") as journal:
        writer = CgroupWriter(Places(find_controllers()), journal, enforce=True)
        wanted = (CgroupWrite(*key, Table.of({disk.number: 30})),)
        report = writer.apply(DesiredState("of a test", wanted), 1)
        assert [change.result for change in report.changes] == [WriteResult.UNSUPPORTED], report
        assert writer.restore(2).left == ()


def test_a_latency_target(name: str, disk: LoopDisk, tmp_path: Path) -> None:
    written_and_restored([(name, CgroupFile.IO_LATENCY)], disk, [4000], tmp_path / "journal")


def test_what_io_cost_aims_for(name: str, disk: LoopDisk, tmp_path: Path) -> None:
    written_and_restored([("", each) for each in COST], disk, [90, 4000, 80, 5000], tmp_path / "journal")


def test_the_model_of_io_cost(name: str, disk: LoopDisk, tmp_path: Path) -> None:
    values = [1_000_000_000, 200_000, 100_000, 900_000_000, 180_000, 90_000]
    written_and_restored([("", each) for each in MODEL], disk, values, tmp_path / "journal")
