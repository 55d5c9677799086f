"""CPU topologies: sysfs trees as kernels show them, written down file by file or generated, and what they stand for.

`topologies/*.json`: the files below /sys/devices/system; `online` as [cpu, core, socket, NUMA node].
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordebpf.errors import KernelFileError, SupportError
from koordebpf.kernel.proc.cpu_topology import Cpu, CpuTopology, CpuTopologyFiles
from tests.support.values.machines import machine, without, write_sysfs

RECORDED = sorted((Path(__file__).parent / "topologies").glob("*.json"))
SHAPES = [
    # sockets, nodes a socket, cores a node, threads: 1 to 512 CPUs, 1 to 8 sockets, 1 to 8 threads
    (1, 1, 1, 1),
    (1, 1, 1, 2),
    (1, 1, 3, 1),
    (2, 1, 4, 2),
    (1, 4, 16, 2),
    (4, 1, 6, 4),
    (2, 2, 4, 8),
    (8, 1, 32, 2),
    (8, 2, 4, 8),
]
NUMBERINGS = ["siblings together", "siblings last", "sockets in turn"]


def read(root: Path) -> CpuTopology:
    with CpuTopologyFiles(root) as files:
        return files.read()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_tree(path, tmp_path):
    recorded = json.loads(path.read_text())
    for name, text in recorded["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = CpuTopology(tuple(Cpu(*row) for row in recorded["online"]), tuple(recorded["offline"]))
    assert read(tmp_path) == expected


def test_every_recorded_tree_is_there():
    assert len(RECORDED) >= 10


@pytest.mark.parametrize("numbering", NUMBERINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_generated_machine(shape, numbering, tmp_path):
    sockets, nodes, cores, threads = shape
    expected = machine(sockets=sockets, nodes=nodes, cores=cores, threads=threads, numbering=numbering)
    assert len(expected.online) == sockets * nodes * cores * threads
    assert read(write_sysfs(tmp_path, expected)) == expected


@pytest.mark.parametrize("older", [False, True])
def test_every_third_cpu_offline(older, tmp_path):
    whole = machine(sockets=2, cores=8, threads=2)
    expected = without(whole, range(0, 32, 3))
    assert read(write_sysfs(tmp_path, expected, older=older)) == expected


def test_without_numa_everything_is_node_0(tmp_path):
    whole = machine(sockets=2, cores=2)
    assert {each.numa_node for each in read(write_sysfs(tmp_path, whole, has_numa=False)).online} == {0}


def test_a_cpu_that_is_unplugged_and_comes_back(tmp_path):
    whole = machine(cores=4, threads=2)
    with CpuTopologyFiles(write_sysfs(tmp_path, whole)) as files:
        assert files.read() == whole
        assert files.read() is files.read()  # nothing changed: nothing is read again
        write_sysfs(tmp_path, without(whole, [0, 5]))
        assert files.read() == without(whole, [0, 5])
        write_sysfs(tmp_path, whole)
        assert files.read() == whole


def test_a_cpu_that_goes_offline_while_it_is_read_is_offline(tmp_path):
    write_sysfs(tmp_path, without(machine(cores=4), [3]))
    (tmp_path / "cpu" / "online").write_text("0-3\n")  # read before it went, the rest after
    with CpuTopologyFiles(tmp_path) as files:
        assert files.read() == without(machine(cores=4), [3])
        write_sysfs(tmp_path, machine(cores=4))  # AND it is back before the next look: the list is the same
        assert files.read() == machine(cores=4)


@pytest.mark.parametrize(
    ("isolated", "nohz_full", "expected"),
    [
        ("\n", "\n", ()),
        ("\n", "  (null)\n", ()),  # before Linux 5.14, without the parameter
        ("4-7\n", "\n", (4, 5, 6, 7)),
        ("\n", "2-3\n", (2, 3)),
        ("4-5\n", "5-6,9\n", (4, 5, 6)),  # 9 is not there
        (None, None, ()),
    ],
)
def test_isolated_cpus(isolated, nohz_full, expected, tmp_path):
    write_sysfs(tmp_path, machine(cores=8))
    for name, text in (("isolated", isolated), ("nohz_full", nohz_full)):
        if text is not None:
            (tmp_path / "cpu" / name).write_text(text)
    topology = read(tmp_path)
    assert topology.isolated == expected
    assert topology.cpus == tuple(range(8))


def test_isolated_cpus_are_read_again_with_those_that_are_online(tmp_path):
    write_sysfs(tmp_path, machine(cores=4))
    (tmp_path / "cpu" / "isolated").write_text("2-3\n")
    with CpuTopologyFiles(tmp_path) as files:
        assert files.read().isolated == (2, 3)
        write_sysfs(tmp_path, without(machine(cores=4), [3]))
        assert files.read().isolated == (2,)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cpu/isolated", "some\n"),
        ("cpu/nohz_full", "1-\n"),
        ("cpu/online", "zero\n"),
        ("cpu/online", "3-0\n"),
        ("cpu/online", "0-99999\n"),
        ("cpu/online", "\n"),
        ("cpu/cpu0/topology/physical_package_id", "first\n"),
        ("cpu/cpu0/topology/core_cpus_list", "0;1\n"),
        ("node/node0/cpulist", "0-\n"),
    ],
)
def test_garbage_is_named(file, text, tmp_path):
    write_sysfs(tmp_path, machine(cores=2))
    (tmp_path / file).write_text(text)
    with pytest.raises(KernelFileError) as error:
        read(tmp_path)
    assert error.value.path == str(tmp_path / file)


def test_no_sysfs_says_what_to_do(tmp_path):
    with pytest.raises(SupportError, match="Mount sysfs"):
        CpuTopologyFiles(tmp_path)


def test_this_machine():
    topology = read(Path("/sys/devices/system"))
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    assert len(topology.online) == sum(
        int(last or first) - int(first) + 1 for first, _, last in (part.partition("-") for part in online.split(","))
    )
