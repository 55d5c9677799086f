"""What no cgroup is charged: zram, ZFS' cache and balloons, as kernels write it, odd, and where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.host.uncharged import Uncharged, UnchargedFiles, zram_use
from koordebpf.kernel.io.table import odd_rows
from koordebpf.units import PAGE_BYTES

ARC = """13 1 0x01 147 39984 8023452398 913759862341
name                            type data
hits                            4    913485
size                            4    32212254720
size_of_nothing                 4    7
c                               4    32212254720
c_min                           4    1610612736
c_max                           4    25769803776
"""
NONE = Uncharged(0, 0)


class Machine:
    def __init__(self, root: Path) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self.proc.mkdir()
        (self.sysfs / "block").mkdir(parents=True)
        self.files = UnchargedFiles(self.proc, self.sysfs)

    def zram(self, name: str, text: str) -> Path:
        path = self.sysfs / "block" / name / "mm_stat"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def arc(self, text: str) -> Path:
        path = self.proc / "spl/kstat/zfs/arcstats"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def virtio(self, bits: str) -> None:
        path = self.sysfs / "bus/virtio/drivers/virtio_balloon/virtio0"
        path.mkdir(parents=True, exist_ok=True)
        (path / "features").write_text(f"{bits}\n")

    def later(self) -> Uncharged:
        """Read so often that devices were listed again."""
        return [self.files.read() for _ in range(10)][-1]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.files.close()
    made.files.close()  # twice is harmless


def test_a_machine_without_any_of_it(machine: Machine, tmp_path: Path) -> None:
    assert machine.files.read(None) == NONE
    with UnchargedFiles(tmp_path / "none", tmp_path / "none") as files:
        assert files.read(None) == NONE


def test_zram_devices_are_summed_up_those_too_that_come_later(machine: Machine) -> None:
    assert zram_use(machine.sysfs) == (0, 0)
    machine.zram("zram0", "  1000  300  400  0 400 0 0 0 0\n")
    (machine.sysfs / "block/zram2").mkdir()  # one that is not set up
    assert machine.files.read() == Uncharged(1000, 400)
    machine.zram("zram0", "2000 300 800\n")
    machine.zram("zram1", "500 10 20 0 20 0 0 0 0\n")
    assert machine.files.read() == Uncharged(2000, 800)
    assert machine.later() == Uncharged(2500, 820)
    assert zram_use(machine.sysfs) == (2500, 820)
    machine.zram("zram1", "").unlink()
    machine.zram("zram1", "").parent.rename(machine.sysfs / "block/was")
    assert machine.later() == Uncharged(2000, 800)


def test_an_odd_device_is_nothing_and_counted_and_the_others_are_read(machine: Machine) -> None:
    before = odd_rows().get("mm_stat", 0)
    machine.zram("zram0", "-1 300 400\n")
    machine.zram("zram1", "500 10 20\n")
    assert machine.files.read() == Uncharged(500, 20)
    assert odd_rows()["mm_stat"] == before + 1


def test_the_cache_of_zfs_counts_above_its_minimum(machine: Machine) -> None:
    assert machine.files.read() == NONE
    path = machine.arc(ARC)
    assert machine.later().arc_bytes == 32212254720 - 1610612736
    path.write_text(ARC.replace("4    32212254720", "4    5"))
    assert machine.files.read().arc_bytes == 0


@pytest.mark.parametrize("text", ["", "size 4\nc_min 4 7\n", ARC.replace("    1610612736", "  -1")])
def test_an_odd_cache_is_nothing(machine: Machine, text: str) -> None:
    machine.arc(text)
    assert machine.files.read().arc_bytes == 0


def test_a_balloon_counts_where_its_pages_are_in_mem_total(machine: Machine) -> None:
    assert machine.files.read(4096).balloon_bytes == 0  # as Hyper-V's: out of MemTotal
    machine.virtio("010001")
    assert machine.files.read(4096).balloon_bytes == 0
    machine.virtio("011001")
    assert machine.files.read(4096).balloon_bytes == 4096
    machine.virtio("")
    assert machine.files.read(4096).balloon_bytes == 0
    (machine.sysfs / "module/vmw_balloon").mkdir(parents=True)
    assert machine.files.read(4096).balloon_bytes == 4096


def test_before_meminfo_says_it_vmstat_does(machine: Machine) -> None:
    machine.virtio("001")
    vmstat = machine.proc / "vmstat"
    vmstat.write_text("pgfault 7\nballoon_inflate 1000\nballoon_deflate 400\n")
    assert machine.files.read(None).balloon_bytes == 600 * PAGE_BYTES
    assert machine.files.read(0).balloon_bytes == 0
    vmstat.write_text("balloon_inflate 1\nballoon_deflate 400\n")
    assert machine.files.read(None).balloon_bytes == 0
    vmstat.write_text("balloon_inflate x\nballoon_deflate 400\n")
    assert machine.files.read(None).balloon_bytes == 0
    vmstat.write_text("balloon_inflate 500\nballoon_deflate 400\n")
    assert machine.files.read(None).balloon_bytes == 100 * PAGE_BYTES
