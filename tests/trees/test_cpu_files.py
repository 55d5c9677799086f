"""/proc/stat and the CPU files of a cgroup: as kernels write them, missing, and garbage."""

from __future__ import annotations

import os

import pytest

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.table import odd_rows
from koordebpf.kernel.proc.cpu_usage import CgroupCpu, CpuBandwidth, NodeCpuTime

STAT = "cpu  100 20 30 4000 500 6 7 80 9 10\ncpu0 50 10 15 2000 250 3 3 40 4 5\nintr 1 2 3\n"
CPU_STAT = "usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"


def v1(root) -> dict[str, ControllerMount]:
    return {name: ControllerMount(1, root / name) for name in ("cpu", "cpuacct", "cpuset")}


def v2(root) -> dict[str, ControllerMount]:
    return {name: ControllerMount(2, root) for name in ("cpu", "cpuset", "memory")}


def test_node_time_without_idle_iowait_steal_and_guests_counted_twice(tree):
    with NodeCpuTime(tree({"stat": STAT}) / "stat") as stat:
        assert stat.used_ns() == (100 + 20 + 30 + 6 + 7) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "text", ["", "cpu  1 2 3 4 5 6 7\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 x 4 5 6 7 8\n", STAT[3:]]
)
def test_node_time_garbage_is_named(tree, text):
    path = tree({"stat": text}) / "stat"
    with NodeCpuTime(path) as stat, pytest.raises(KernelFileError, match="must be cpu and 8 or more numbers") as error:
        stat.used_ns()
    assert error.value.path == str(path)


def test_node_time_missing(tmp_path):
    with pytest.raises(SupportError, match="Mount procfs"):
        NodeCpuTime(tmp_path / "stat")


def test_v1(tree):
    root = tree(
        {
            "cpuacct": {"kubepods/besteffort": {"cpuacct.usage": "987654321\n"}},
            "cpu": {"kubepods/besteffort": {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}},
            "cpuset": {"kubepods/besteffort": {"cpuset.cpus": "0-1,5\n"}},
        }
    )
    with CgroupCpu(v1(root), "kubepods/besteffort") as cgroup:
        assert (cgroup.used_ns(), cgroup.cpus(), cgroup.bandwidth()) == (
            987654321,
            (0, 1, 5),
            CpuBandwidth(50000, 100000),
        )
        (root / "cpu/kubepods/besteffort/cpu.cfs_quota_us").write_text("-1\n")
        assert cgroup.bandwidth() == CpuBandwidth(None, 100000)


def test_v2_shows_what_is_effective(tree):
    root = tree(
        {
            "kubepods.slice": {
                "cpu.stat": CPU_STAT,
                "cpu.max": "max 100000\n",
                "cpuset.cpus": "\n",
                "cpuset.cpus.effective": "0-3\n",
            }
        }
    )
    with CgroupCpu(v2(root), "kubepods.slice") as cgroup:
        assert (cgroup.used_ns(), cgroup.cpus(), cgroup.bandwidth()) == (
            1_234_567_000,
            (0, 1, 2, 3),
            CpuBandwidth(None, 100000),
        )
        (root / "kubepods.slice/cpu.max").write_text("2000 50000\n")
        assert cgroup.bandwidth() == CpuBandwidth(2000, 50000)


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("cpu.stat", "user_usec 5\n", CgroupCpu.used_ns),
        ("cpu.stat", "usage_usec many\n", CgroupCpu.used_ns),
        ("cpu.max", "max\n", CgroupCpu.bandwidth),
        ("cpu.max", "-1 100000\n", CgroupCpu.bandwidth),
        ("cpuset.cpus.effective", "0-\n", CgroupCpu.cpus),
    ],
)
def test_v2_garbage_is_named(tree, name, text, read):
    root = tree({"be": {name: text}})
    with CgroupCpu(v2(root), "be") as cgroup, pytest.raises(KernelFileError) as error:
        read(cgroup)
    assert error.value.path == str(root / "be" / name)


@pytest.mark.parametrize("text", ["", "12 13\n", "0x10\n"])
def test_v1_garbage_is_named(tree, text):
    root = tree({"cpuacct/be": {"cpuacct.usage": text}})
    with CgroupCpu(v1(root), "be") as cgroup, pytest.raises(KernelFileError, match="must be a whole number"):
        cgroup.used_ns()


@pytest.mark.parametrize("text", ["0 0", "max 0", "-1 100000", "² 100000", "100000", "1_0 100000", f"{1 << 61} 100000"])
def test_a_quota_that_the_kernel_does_not_print_is_named(tree, text):
    root = tree({"be": {"cpu.max": f"{text}\n"}})
    with CgroupCpu(v2(root), "be") as cgroup, pytest.raises(KernelFileError, match="a quota or max, and a period"):
        cgroup.bandwidth()


@pytest.mark.parametrize(("quota", "period"), [("100000", "0"), ("-2", "100000"), ("1_0", "100000"), ("", "100000")])
def test_on_v1_as_well(tree, quota, period):
    root = tree({"cpu/be": {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": f"{period}\n"}})
    with CgroupCpu(v1(root), "be") as cgroup, pytest.raises(KernelFileError, match="a quota or -1, with a period"):
        cgroup.bandwidth()


@pytest.mark.parametrize("version", [1, 2])
def test_cpu_time_that_runs_backwards_is_reported_by_its_file(tree, version):
    name, text = ("cpuacct.usage", "{}\n") if version == 1 else ("cpu.stat", "usage_usec {}\n")
    root = tree({"be": {name: text.format(9)}, "cpuacct": {"be": {name: text.format(9)}}})
    mounts = v1(root) if version == 1 else v2(root)
    file = root / ("cpuacct/be" if version == 1 else "be") / name
    before = odd_rows().get(name, 0)
    with CgroupCpu(mounts, "be") as cgroup:
        cgroup.used_ns()
        file.write_text(text.format(8))
        cgroup.used_ns()
    assert odd_rows()[name] == before + 1
    with CgroupCpu(mounts, "be") as made_again:
        made_again.used_ns()
    assert odd_rows()[name] == before + 1


def test_cpu_time_of_many_cpus_for_years_is_no_odd_number(tree):
    root = tree({"cpuacct/be": {"cpuacct.usage": f"{(1 << 64) - 1}\n"}})
    with CgroupCpu(v1(root), "be") as cgroup:
        assert cgroup.used_ns() == (1 << 64) - 1


def test_missing_is_not_gone(tree):
    root = tree({"be": {"cgroup.procs": ""}})
    with CgroupCpu(v2(root), "be") as cgroup, pytest.raises(SupportError, match="Enable the cpuset controller"):
        cgroup.cpus()
    with CgroupCpu(v2(root), "other") as cgroup, pytest.raises(CgroupGone):
        cgroup.cpus()
    with CgroupCpu({}, "be") as cgroup, pytest.raises(SupportError, match="no cgroup mount has it"):
        cgroup.cpus()


def test_idle(tree):
    root = tree({"be": {"cpu.idle": "1\n"}, "older": {"cpu.max": "max 100000\n"}})
    with CgroupCpu(v2(root), "be") as cgroup:
        assert cgroup.idle() == 1
    with CgroupCpu(v2(root), "older") as cgroup, pytest.raises(SupportError, match="the cgroup has no such file"):
        cgroup.idle()


def test_closing_twice_is_harmless(tree):
    cgroup = CgroupCpu(v2(tree({"be": {"cpu.stat": CPU_STAT}})), "be")
    cgroup.used_ns()
    cgroup.close()
    cgroup.close()
    assert cgroup.used_ns() == 1_234_567_000  # opened again
    cgroup.close()
