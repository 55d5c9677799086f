"""Files of cgroups that are refused, go, are fought for, and are left by a killed agent: over fakes of them.

cpu.bvt_warp_ns and the files of memory are of Anolis kernels, which no machine of this project runs; io.cost is in few
of their kernels. The fakes answer each write(2) through the kernel, so that an error is one of a system call. io.cost
is also written where the kernel has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer import places as of_places
from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile, Version
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile import FileKey
from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE
from tests.host.fake_mount import mounted
from tests.host.one_file import OWNER, Faults, OneFile, Vanishing, results, write_and_be_killed
from tests.support.fake_cgroups import FakeIoCost, FakeNumbers
from tests.support.loop_disk import LoopDisk

POD, OTHER = "pod", "other"
# What a new cgroup has, and what is wanted.
NUMBERS = {
    CgroupFile.CPU_BVT: (0, -1),
    CgroupFile.MEMORY_WMARK_RATIO: (0, 95),
    CgroupFile.MEMORY_WMARK_SCALE: (50, 20),
    CgroupFile.MEMORY_WMARK_MIN_ADJ: (0, -25),
    CgroupFile.MEMORY_PRIORITY: (0, 10),
    CgroupFile.MEMORY_USE_PRIORITY_OOM: (0, 1),
    CgroupFile.MEMORY_PAGECACHE_ENABLE: (0, 1),
    CgroupFile.MEMORY_PAGECACHE_SIZE: (0, 40 * MIB),
    CgroupFile.MEMORY_PAGECACHE_SYNC: (0, 1),
}
ALL_NUMBERS = [(CgroupFile.CPU_BVT, 1), *((file, 2) for file in NUMBERS)]
COST = {each: 90 if each.value.endswith("pct") else 4000 for each in CgroupFile if ".cost." in each.value}
QOS, MODEL = CgroupFile.IO_COST_RPCT, CgroupFile.IO_MODEL_RBPS
COSTS = [*((file, 2) for file in COST), (QOS, 1), (MODEL, 1)]
DISK, OTHER_DISK = "8:0", "8:16"


class TestNumbers(Faults, Vanishing):
    @pytest.fixture
    def gone(self) -> WriteResult:
        return WriteResult.GONE

    @pytest.fixture(params=ALL_NUMBERS, ids=lambda each: f"{each[0]}-v{each[1]}")
    def file(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OneFile]:
        file, version = request.param
        first, value = NUMBERS[file]
        fake = FakeNumbers(file, version, **{POD: first, OTHER: first})

        def refuse(number: int | None) -> None:
            fake.refusals = {} if number is None else {POD: number}

        for root in mounted(tmp_path / "cgroup", fake.root()):
            places, pod = Places({file.controller: ControllerMount(version, root)}), root / POD
            wanted, other = ((POD, file), value), ((OTHER, file), value)
            yield OneFile(places, wanted, other, tmp_path / "journal", refuse=refuse, remove=pod.rmdir)


def of_cost(file: CgroupFile) -> tuple[FileKey, FileKey]:
    """Return the key, and one of the other file."""
    return ("", file), ("", MODEL if ".qos." in file.value else QOS)


class TestIoCost(Faults):
    @pytest.fixture(
        params=[*((file, 2) for file in COST), (QOS, 1), (MODEL, 1)], ids=lambda each: f"{each[0]}-v{each[1]}"
    )
    def file(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OneFile]:
        yield from self.made(*request.param, tmp_path)

    @staticmethod
    def made(file: CgroupFile, version: Version, folder: Path) -> Iterator[OneFile]:
        fake, kind = FakeIoCost(version, DISK, OTHER_DISK), file.value.split(".")[2]

        def refuse(number: int | None) -> None:
            fake.refusals = {} if number is None else {kind: number}

        def remove() -> None:
            fake.devices.discard(DISK)
            (sysfs / "dev/block" / DISK).rmdir()

        sysfs = folder / "sys"
        for disk in fake.devices:
            (sysfs / "dev/block" / disk).mkdir(parents=True)
        for root in mounted(folder / "cgroup", fake.root()):
            places = Places({"blkio" if version == 1 else "io": ControllerMount(version, root)}, sysfs=sysfs)
            wanted, other = ((key, Table.of({DISK: COST[key[1]]})) for key in of_cost(file))  # type: ignore[index]
            yield OneFile(places, wanted, other, folder / "journal", refuse=refuse, remove=remove)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    path = Places(find_controllers()).locate(("", QOS))
    if path is None or not path.exists():
        pytest.skip(f"{OTHER_MACHINE}its kernel has no io.cost")
    with LoopDisk(tmp_path_factory.mktemp("disk"), 8) as made:
        yield made


class TestIoCostOfThisKernel(Faults):
    """On a loop device of its own."""

    @pytest.fixture(params=[QOS, MODEL])
    def file(self, disk: LoopDisk, tmp_path: Path, request: pytest.FixtureRequest) -> OneFile:
        wanted, other = ((key, Table.of({disk.number: COST[key[1]]})) for key in of_cost(request.param))  # type: ignore[index]
        return OneFile(Places(find_controllers()), wanted, other, tmp_path / "journal")


@pytest.mark.parametrize("file", [QOS, MODEL])
def test_a_disk_that_is_gone_before_its_write_is_named(
    file: CgroupFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = of_places.write_kernel_file
    for made in TestIoCost.made(file, 2, tmp_path):

        def write(*given: object, made: OneFile = made) -> str:
            if made.places.has_device(DISK):
                made.remove()
            return real(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(of_places, "write_kernel_file", write)
        with Journal(made.journal) as journal:
            writer = CgroupWriter(made.places, journal, enforce=True)
            assert set(results(made, writer).values()) == {(WriteResult.REFUSED, "ENODEV")}
            assert writer.restore(1).left == ()
            assert not journal.originals


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("file", [QOS, MODEL])
def test_a_disk_that_ends_after_a_kill_keeps_no_other_row_from_being_restored(file: CgroupFile, tmp_path: Path) -> None:
    for made in TestIoCost.made(file, 2, tmp_path):
        made.put(Table.of({DISK: 20, OTHER_DISK: 20}))
        made.value = Table.of({DISK: 30, OTHER_DISK: 30})
        write_and_be_killed(made, "written")  # after its first row
        assert made.held() == Table.of({DISK: 30, OTHER_DISK: 20})
        with Journal(made.journal) as journal:
            CgroupWriter(made.places, journal, enforce=True).apply(made.wanted(), 0, OWNER)
        made.remove()
        assert made.held() == Table.of({OTHER_DISK: 30})
        assert restore_journal(made.journal, made.places, 1).left == ()
        assert made.held() == Table.of({OTHER_DISK: 20})
