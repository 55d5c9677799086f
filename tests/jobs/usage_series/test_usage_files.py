"""CPUs one by one, throttling, and NUMA nodes: as kernels write them, missing, and garbage."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.errors import KernelFileError
from koordebpf.jobs.usage_series.collector import MachineUse, PodsByNuma
from koordebpf.jobs.usage_series.groups import UsageGroup
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.proc.cpu_usage import CgroupCpu, NodeCpuTime
from koordebpf.kernel.proc.meminfo import NumaMeminfo
from koordebpf.units import NS_PER_S

TICK_NS = NS_PER_S // os.sysconf("SC_CLK_TCK")
KIB = 1024


def stat(*busy: int) -> str:
    """Return /proc/stat of CPUs that were busy for so many ticks."""
    rows = [f"cpu{number} {ticks} 0 0 9 9 0 0 9 0 0" for number, ticks in enumerate(busy)]
    return "\n".join([f"cpu  {sum(busy)} 0 0 9 9 0 0 9 0 0", *rows, "intr 1 2 3", ""])


def meminfo(node: int, total: int, free: int) -> str:
    rows = {"MemTotal": total, "MemFree": free, "Active(file)": 3, "Inactive(file)": 2, "SReclaimable": 1}
    return "".join(f"Node {node} {name}:    {value} kB\n" for name, value in rows.items())


def machine(nodes: int, *busy: int) -> dict[str, Any]:
    cpus = len(busy)
    return {
        "proc": {"stat": stat(*busy), "meminfo": "MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 70 kB\n"},
        "sys": {
            "cpu": {
                "online": f"0-{cpus - 1}\n",
                "present": f"0-{cpus - 1}\n",
                **{
                    f"cpu{cpu}": {
                        "topology": {
                            "core_id": f"{cpu}\n",
                            "physical_package_id": "0\n",
                            "core_cpus_list": f"{cpu}\n",
                            "thread_siblings_list": f"{cpu}\n",
                        }
                    }
                    for cpu in range(cpus)
                },
            },
            "node": {
                "online": "0-1\n",
                **{
                    f"node{node}": {
                        "meminfo": meminfo(node, 100, 50 - node),
                        "cpulist": f"{node * cpus // nodes}-{(node + 1) * cpus // nodes - 1}\n",
                    }
                    for node in range(nodes)
                },
            },
        },
    }


def test_each_cpu_and_all_of_them(tree):
    with NodeCpuTime(tree({"stat": stat(7, 0, 30)}) / "stat") as files:
        assert files.used_ns_by_cpu() == (37 * TICK_NS, {0: 7 * TICK_NS, 1: 0, 2: 30 * TICK_NS})
        assert files.used_ns() == 37 * TICK_NS


@pytest.mark.parametrize("text", [stat(1, 2)[:40], stat(1, 2).replace("2 0", "x 0"), ""])
def test_a_cpu_that_is_garbage_is_named(tree, text):
    with NodeCpuTime(tree({"stat": text}) / "stat") as files, pytest.raises(KernelFileError):
        files.used_ns_by_cpu()


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("nr_periods 10\nnr_throttled 3\nthrottled_time 99\n", (10, 3)),  # v1
        ("usage_usec 1\nnr_periods 0\nnr_throttled 0\nnr_bursts 0\n", (0, 0)),
        ("usage_usec 1\nuser_usec 1\n", None),  # v2 without the controller
    ],
)
def test_periods_of_a_cgroup(tree, text, counts):
    root = tree({"kubepods": {"cpu.stat": text}})
    with CgroupCpu({"cpu": ControllerMount(2, root)}, "kubepods") as cgroup:
        assert cgroup.throttling() == counts


def test_periods_that_are_garbage_are_named(tree):
    root = tree({"kubepods": {"cpu.stat": "nr_periods many\nnr_throttled 3\n"}})
    with (
        CgroupCpu({"cpu": ControllerMount(1, root)}, "kubepods") as cgroup,
        pytest.raises(KernelFileError, match="must have a row nr_periods <number>"),
    ):
        cgroup.throttling()


def test_a_numa_node_uses_what_is_neither_free_nor_reclaimable(tree):
    root = tree({"node": {"node0": {"meminfo": meminfo(0, 100, 50)}, "node2": {"meminfo": meminfo(2, 10, 9)}}})
    (root / "node" / "node1").mkdir()  # without memory
    with NumaMeminfo(root) as numa:
        assert numa.nodes == (0, 2)
        assert numa.used_bytes() == {0: 44 * KIB, 2: 0}


def test_a_numa_node_without_a_row_is_named(tree):
    root = tree({"node": {"node0": {"meminfo": "Node 0 MemTotal: 5 kB\n"}}})
    with NumaMeminfo(root) as numa, pytest.raises(KernelFileError, match="MemFree"):
        numa.used_bytes()


def test_a_machine_without_numa_nodes_has_none(tmp_path):
    with NumaMeminfo(tmp_path) as numa:
        assert (numa.nodes, numa.used_bytes()) == ((), {})


def test_cpus_count_for_their_numa_node_and_memory_for_the_machine(tree):
    root = tree(machine(2, 100, 100, 100, 100))
    with MachineUse(root / "proc", root / "sys") as use:
        first = use.read(0)
        assert (first.cpu, first.held_bytes, first.cached_bytes) == (None, 30 * KIB, 60 * KIB)
        assert first.numa_cpu == {}
        second_ticks = NS_PER_S // TICK_NS
        (root / "proc" / "stat").write_text(stat(100 + second_ticks, 100, 100, 100 + second_ticks // 2))
        second = use.read(NS_PER_S)
        assert second.cpu == pytest.approx(1.5)
        assert second.numa_cpu == {0: pytest.approx(1.0), 1: pytest.approx(0.5)}
        assert second.numa_held_bytes == {0: 44 * KIB, 1: 45 * KIB}


def test_a_cpu_whose_counter_went_back_is_left_out_and_the_machine_is_not(tree):
    root = tree(machine(2, 100, 100, 100, 100))
    with MachineUse(root / "proc", root / "sys") as use:
        use.read(0)
        (root / "proc" / "stat").write_text(stat(300, 50, 200, 100))
        again = use.read(NS_PER_S)
        assert again.cpu == pytest.approx(2.5)
        assert again.numa_cpu == {0: pytest.approx(2.0), 1: pytest.approx(1.0)}


def test_where_there_is_one_numa_node_it_is_the_machine(tree):
    root = tree(machine(1, 100, 100))
    with MachineUse(root / "proc", root / "sys") as use:
        use.read(0)
        (root / "proc" / "stat").write_text(stat(200, 100))
        assert use.read(NS_PER_S).numa_cpu == {0: pytest.approx(1.0)}


def test_garbage_of_a_numa_node_leaves_out_the_nodes_alone(tree, caplog):
    root = tree(machine(2, 100, 100, 100, 100))
    with MachineUse(root / "proc", root / "sys") as use:
        use.read(0)
        (root / "sys/node/node1/meminfo").write_text("nothing\n")
        for second in (1, 2):
            broken = use.read(second * NS_PER_S)
            assert (broken.cpu, broken.held_bytes, broken.numa_cpu, broken.numa_held_bytes) == (0, 30 * KIB, {}, {})
        assert "node1/meminfo" in use.problem
    assert len([record for record in caplog.records if "NUMA" in record.message]) == 1


def test_pods_are_read_in_turn_where_there_are_several_numa_nodes(tree):
    pods = {f"pod{number}": {"memory.numa_stat": f"anon N0={number} N1=100\nfile N0=7 N1=7\n"} for number in range(40)}
    root = tree(pods)
    scope: Any = SimpleNamespace(hierarchy=SimpleNamespace(mount_point=root, version=2))
    by_numa = PodsByNuma(scope, (0, 1))
    by_numa.watch({number: UsageGroup(number, f"pod{number}", "pod", str(number)) for number in range(40)})
    assert [by_numa.read({}) for _ in range(3)] == [None, None, {0: sum(range(40)), 1: 4000}]
    by_numa.watch({3: UsageGroup(3, "pod3", "pod", "3")})
    assert by_numa.read({}) == {0: 3, 1: 100}
    # One that is gone holds nothing.
    by_numa.watch({3: UsageGroup(3, "pod3", "pod", "3"), 99: UsageGroup(99, "gone", "pod", "99")})
    assert [by_numa.read({}) for _ in range(2)][-1] == {0: 3, 1: 100}


def test_where_there_is_one_numa_node_pods_hold_what_was_scanned():
    scope: Any = SimpleNamespace(hierarchy=None)
    by_numa = PodsByNuma(scope, (0,))
    by_numa.watch({1: UsageGroup(1, "a", "pod", "a"), 2: UsageGroup(2, "a/c", "container", "c", "a")})
    assert by_numa.read({1: 5, 2: 5}) == {0: 5}
