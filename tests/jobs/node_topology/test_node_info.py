"""What a node is made of, by small trees in place of sysfs: what machines have, what is missing, and garbage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import KernelFileError
from koordebpf.jobs.node_topology.run import NodeInfoReader
from koordebpf.kernel.host.numa_nodes import NumaNode, numa_nodes, with_all_memory
from koordebpf.kernel.host.processors import CpuModel, Processor, ProcessorFiles, cpu_model
from koordebpf.units import GIB, MIB

Make = Callable[[Any], Path]
SYSTEM = "devices/system"
CPUINFO = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon: gold\n\nprocessor\t: 1\nmodel name\t: other\n"


def cpu(core: str, package: str, **caches: str) -> dict[str, Any]:
    """Return a CPU's files; caches: index → level, type, id or none, shared CPUs."""
    files: dict[str, Any] = {"topology": {"core_cpus_list": core, "package_cpus_list": package}}
    for index, text in caches.items():
        level, kind, number, shared = text.split()
        files[f"cache/{index}"] = {"level": level, "type": kind, "shared_cpu_list": shared}
        if number != "-":
            files[f"cache/{index}"]["id"] = number
    return files


def meminfo(node: int, kib: int) -> str:
    return f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        1 kB\n"


def two_sockets() -> dict[str, Any]:
    # Threads of a core are 4 apart, as firmware numbers them; the second socket is package 3.
    files: dict[str, Any] = {f"{SYSTEM}/cpu/online": "0-7\n"}
    for number in range(8):
        core, package = f"{number % 4},{number % 4 + 4}", "0-1,4-5" if number % 4 < 2 else "2-3,6-7"
        files[f"{SYSTEM}/cpu/cpu{number}"] = cpu(
            core, package, index0=f"1 Data {number % 4} {core}", index3=f"3 Unified {number % 4 // 2 * 8} {package}"
        )
    files[f"{SYSTEM}/node/node0"] = {"cpulist": "0-1,4-5\n", "meminfo": meminfo(0, 4 << 20)}
    files[f"{SYSTEM}/node/node1"] = {"cpulist": "2-3,6-7\n", "meminfo": meminfo(1, 8 << 20)}
    return files


def test_cores_and_sockets_are_counted_as_lscpu_counts_them(tree: Make) -> None:
    found = ProcessorFiles(tree(two_sockets())).read()
    assert [each.cpu for each in found] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert found[1] == Processor(4, 0, 0, 0, 0, 0)
    assert found[-1] == Processor(7, 3, 1, 1, 3, 8)


def test_a_cpu_that_is_offline_is_left_out_and_the_next_look_has_it_again(tree: Make) -> None:
    root = tree(two_sockets())
    files, online = ProcessorFiles(root), root / SYSTEM / "cpu/online"
    whole = files.read()
    assert files.read() is whole
    online.write_text("0-3,5-7\n")
    assert [each.cpu for each in files.read()] == [0, 1, 5, 2, 6, 3, 7]
    online.write_text("0-7\n")
    assert files.read() == whole


def test_a_cpu_that_the_list_has_and_that_has_no_files_is_named(tree: Make) -> None:
    root = tree(two_sockets() | {f"{SYSTEM}/cpu/online": "0-8\n"})
    with pytest.raises(KernelFileError, match="must name CPUs whose topology can be read") as caught:
        ProcessorFiles(root).read()
    assert caught.value.path == str(root / SYSTEM / "cpu/online")


def test_caches_without_ids_are_counted_and_those_of_instructions_are_none(tree: Make) -> None:
    files = {f"{SYSTEM}/cpu/online": "0-1\n"}
    each = [
        cpu(f"{n}", "0-1", index0=f"1 Data - {n}", index1=f"1 Instruction 9 {n}", index2="3 Unified - 0-1")
        for n in (0, 1)
    ]
    found = ProcessorFiles(tree(files | {f"{SYSTEM}/cpu/cpu{n}": each[n] for n in (0, 1)})).read()
    assert [(one.l1, one.l3, one.numa_node) for one in found] == [(0, 0, 0), (1, 0, 0)]


def test_a_machine_without_caches_and_with_older_names_has_cores_all_the_same(tree: Make) -> None:
    old = {"topology": {"thread_siblings_list": "0-1", "core_siblings_list": "0-1"}}
    root = tree({f"{SYSTEM}/cpu/online": "0-1", f"{SYSTEM}/cpu/cpu0": old, f"{SYSTEM}/cpu/cpu1": old})
    assert ProcessorFiles(root).read() == (Processor(0, 0, 0, 0), Processor(1, 0, 0, 0))


@pytest.mark.parametrize("text", ["", "zero", "0-", "3-1"])
def test_a_list_of_cpus_that_is_none_is_named(tree: Make, text: str) -> None:
    with pytest.raises(KernelFileError, match="must"):
        ProcessorFiles(tree({f"{SYSTEM}/cpu/online": text})).read()


def test_the_model_is_that_of_the_first_cpu_and_what_is_missing_is_off(tree: Make, tmp_path: Path) -> None:
    root = tree(
        {
            "proc/cpuinfo": CPUINFO,
            f"sys/{SYSTEM}/cpu/smt/active": "1\n",
            f"sys/{SYSTEM}/cpu/intel_pstate/no_turbo": "0\n",
            "sys/fs/resctrl/info/L3/cbm_mask": "7ff\n",
        }
    )
    assert cpu_model(root / "sys", root / "proc") == CpuModel("Xeon: gold", "GenuineIntel", True, True, "7ff")
    assert cpu_model(tmp_path / "none", tmp_path / "none") == CpuModel()


def test_numa_nodes_have_their_memory_and_huge_pages(tree: Make) -> None:
    huge = {
        "hugepages-2048kB/nr_hugepages": "512\n",
        "hugepages-1048576kB/nr_hugepages": "1\n",
        "hugepages-64kB/nr_hugepages": "0\n",
    }
    root = tree(
        {
            f"{SYSTEM}/node/node0": {"meminfo": meminfo(0, 4 << 20), "hugepages": huge},
            f"{SYSTEM}/node/node10": {"meminfo": meminfo(10, 1 << 20)},
        }
    )
    zero, ten = numa_nodes(root)
    assert zero == NumaNode(0, 4 * GIB, ((2 * MIB, 512), (GIB, 1)))
    assert zero.huge_bytes == 2 * GIB
    assert ten == NumaNode(10, GIB)


def test_a_node_without_memory_is_one_unless_it_only_initiates_accesses(tree: Make) -> None:
    root = tree(
        {
            f"{SYSTEM}/node": {"has_memory": "0\n", "has_generic_initiator": "0,2\n"},
            f"{SYSTEM}/node/node0": {"meminfo": meminfo(0, 1024)},
            f"{SYSTEM}/node/node1": {"meminfo": meminfo(1, 0)},
            f"{SYSTEM}/node/node2": {"meminfo": meminfo(2, 0)},
        }
    )
    assert numa_nodes(root) == (NumaNode(0, MIB), NumaNode(1, 0))


def test_a_node_without_meminfo_has_unknown_memory_and_garbage_is_named(tree: Make, tmp_path: Path) -> None:
    root = tree({f"{SYSTEM}/node/node0/cpulist": "0\n"})
    assert numa_nodes(root) == (NumaNode(0, None),)
    assert numa_nodes(tmp_path / "none") == ()
    for name, text in (("meminfo", "MemTotal: 1 kB"), ("hugepages/hugepages-2048kB/nr_hugepages", "many")):
        path = root / SYSTEM / "node/node0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        with pytest.raises(KernelFileError, match="must") as caught:
            numa_nodes(root)
        assert caught.value.path == str(path)
        path.unlink()


def test_what_cannot_be_read_leaves_the_last_good_value_and_is_said_once(
    tree: Make, caplog: pytest.LogCaptureFixture
) -> None:
    root = tree(two_sockets())
    reader = NodeInfoReader(root, root)
    good = reader.read()
    assert good is not None
    assert [len(good.of_node(each)) for each in (0, 1)] == [4, 4]
    (root / SYSTEM / "cpu/online").write_text("many\n")
    with caplog.at_level(logging.WARNING):
        assert reader.read() is good
        assert reader.read() is good
    assert len(caplog.records) == 1
    assert "'many" in caplog.text
    assert "the last good one stays in force" in caplog.text
    (root / SYSTEM / "cpu/online").write_text("0-7\n")
    assert reader.read() == good
    assert reader.problem == ""


def test_a_node_that_was_never_readable_is_not_known(tmp_path: Path) -> None:
    assert NodeInfoReader(tmp_path, tmp_path).read() is None


def test_memory_that_was_added_later_is_in_the_zone_of_the_only_node(tree: Make) -> None:
    total, node = 23 * GIB, 20 * GIB
    rows = "MemTotal: {} kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n"
    files = two_sockets()
    del files[f"{SYSTEM}/node/node1"]
    files[f"{SYSTEM}/node/node0"] = {"cpulist": "0-7\n", "meminfo": meminfo(0, node >> 10)}
    root = tree(files | {"proc/meminfo": rows.format(total >> 10)})
    found = NodeInfoReader(root, root / "proc").read()
    assert found is not None
    assert [each.memory_bytes for each in found.numa] == [total]
    (root / "proc/meminfo").unlink()
    again = NodeInfoReader(root, root / "proc").read()
    assert again is not None
    assert [each.memory_bytes for each in again.numa] == [node]


def test_of_several_nodes_each_has_what_the_kernel_says_of_it() -> None:
    nodes = NumaNode(0, 4 * GIB), NumaNode(1, 8 * GIB)
    assert with_all_memory(nodes, 13 * GIB) == nodes
    without = NumaNode(0, 4 * GIB), NumaNode(1, 0), NumaNode(2, None)
    assert with_all_memory(without, 5 * GIB) == (NumaNode(0, 5 * GIB), *without[1:])
    assert with_all_memory(without, 4 * GIB - 1) == without
    assert with_all_memory(without, None) == without
