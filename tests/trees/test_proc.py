"""/proc/meminfo and pressure files: as kernels write them, missing, and garbage."""

from __future__ import annotations

import pytest

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.proc.meminfo import Meminfo, MeminfoValues
from koordebpf.kernel.proc.psi import Pressure, PressureFile, PressureLine, PsiTrigger

MEMINFO = """MemTotal:       24684096 kB
MemFree:        23799000 kB
MemAvailable:   24100000 kB
Buffers:            5000 kB
Cached:           400000 kB
SwapCached:            0 kB
SwapTotal:             0 kB
SwapFree:              0 kB
SReclaimable:     139045 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""
SOME = "some avg10=1.50 avg60=0.25 avg300=0.00 total=1144\n"
FULL = "full avg10=0.50 avg60=0.00 avg300=100.00 total=806\n"
PRESSURE = SOME + FULL


def test_meminfo_in_bytes(tree) -> None:
    with Meminfo(tree({"meminfo": MEMINFO}) / "meminfo") as meminfo:
        values = meminfo.read()
    kib = 1024
    assert values == MeminfoValues(
        24684096 * kib, 23799000 * kib, 24100000 * kib, 400000 * kib, 139045 * kib, 0, 0
    )  # fmt: skip
    assert values.used_bytes == (24684096 - 24100000) * kib


def test_meminfo_rows_that_a_kernel_lacks_are_none(tree) -> None:
    text = "MemTotal: 3 kB\nMemFree: 1 kB\nMemAvailable: 2 kB\n"
    with Meminfo(tree({"meminfo": text}) / "meminfo") as meminfo:
        assert meminfo.read() == MeminfoValues(3 << 10, 1 << 10, 2 << 10, None, None, None, None)


@pytest.mark.parametrize("name", ["MemTotal", "MemFree", "MemAvailable"])
@pytest.mark.parametrize("row", ["", "{}: 12\n", "{}: many kB\n", "{}: -5 kB\n", "{}: 12 MB\n"])
def test_meminfo_garbage_is_named(tree, name, row) -> None:
    lines = [line for line in MEMINFO.splitlines(keepends=True) if not line.startswith(name)]
    path = tree({"meminfo": "".join(lines) + row.format(name)}) / "meminfo"
    with Meminfo(path) as meminfo, pytest.raises(KernelFileError, match=f"must have a row {name}") as error:
        meminfo.read()
    assert error.value.path == str(path)
    assert not row or error.value.value == row.format(name).strip()


def test_meminfo_follows_memory_that_is_plugged_in(tree) -> None:
    path = tree({"meminfo": MEMINFO}) / "meminfo"
    with Meminfo(path) as meminfo:
        before = meminfo.read()
        path.write_text(MEMINFO.replace("MemTotal:       24684096 kB", "MemTotal:       33072704 kB"))
        assert meminfo.read().mem_total_bytes == before.mem_total_bytes + (8 << 30)


def test_meminfo_missing(tmp_path) -> None:
    with pytest.raises(SupportError, match="Mount procfs"):
        Meminfo(tmp_path / "meminfo")


def test_pressure(tree) -> None:
    with PressureFile(tree({"memory": PRESSURE}) / "memory") as file:
        assert file.read() == Pressure(PressureLine(1.5, 0.25, 0.0, 1144), PressureLine(0.5, 0.0, 100.0, 806))


def test_pressure_without_a_full_line(tree) -> None:
    with PressureFile(tree({"cpu": PRESSURE.splitlines()[0] + "\n"}) / "cpu") as file:
        assert file.read().full is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
        "some avg10=x\n",
        SOME.replace("1.50", "100.01"),
        "some\n" + FULL,
        SOME + "full\n",
        b"\xff\n",
    ],
)
def test_pressure_garbage_is_named(tree, text) -> None:
    path = tree({"memory": text}) / "memory"
    with PressureFile(path) as file, pytest.raises(KernelFileError) as error:
        file.read()
    assert error.value.path == str(path)


def test_no_pressure_file_says_how_to_boot(tmp_path) -> None:
    with pytest.raises(SupportError, match="psi=1"):
        PressureFile(tmp_path / "memory.pressure")


def test_no_cgroup_is_gone(tmp_path) -> None:
    with pytest.raises(CgroupGone):
        PressureFile(tmp_path / "none/memory.pressure")
    with pytest.raises(CgroupGone):
        PsiTrigger(tmp_path / "none/memory.pressure")
