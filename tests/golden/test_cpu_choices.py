"""Which CPUs are chosen on machines of all kinds: Koordinator's own examples, and the recorded topologies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordebpf.state.cpu.measured import Cpu
from koordebpf.strategies.cpu_suppress.choose import choose_cpus
from tests.support.values.machines import machine, without

TOPOLOGIES = Path(__file__).parent / "topologies"


def recorded(name: str) -> list[Cpu]:
    return [Cpu(*row) for row in json.loads((TOPOLOGIES / f"{name}.json").read_text())["online"]]


@pytest.mark.parametrize(
    ("cpus", "chosen"),
    [
        # Koordinator's: two NUMA nodes of two cores of two threads
        (machine(nodes=2, cores=2, threads=2, numbering="siblings together").online, {3: "0 1 4", 5: "0 1 4 5 2"}),
        (machine(nodes=2, cores=2, threads=2).online, {3: "0 4 2"}),
        (recorded("one-cpu"), {1: "0", 2: "0"}),
        (recorded("vm-two-cpus"), {1: "0", 2: "0 1"}),
        (recorded("two-sockets-siblings-last"), {2: "0 4", 4: "0 4 2 6", 5: "0 4 2 6 1", 8: "0 4 2 6 1 5 3 7"}),
        (recorded("sockets-in-turn"), {2: "0 1", 3: "0 1 2"}),  # no siblings: one after the other from each socket
        (recorded("power-smt4-gaps"), {3: "0 1 88", 4: "0 1 88 89", 5: "0 1 88 89 4"}),
        (recorded("hybrid-cores"), {3: "0 1 2", 5: "0 1 2 3 4", 6: "0 1 2 3 4 5"}),
        (recorded("cluster-on-die"), {2: "0 1", 3: "0 1 2"}),
        (recorded("first-thread-offline"), {2: "1 5", 7: "1 5 2 6 3 7 4"}),
        # eight threads a core: siblings are taken two by two, and in turn from both sockets
        (machine(sockets=2, cores=1, threads=8).online, {4: "0 2 1 3", 6: "0 2 1 3 4 6"}),
        # LSE pods have taken the second threads: only single CPUs are left
        ([each for each in machine(sockets=2, cores=4, threads=2).online if each.cpu < 8], {3: "0 4 1"}),
        # a NUMA node of which a CPU is offline comes after the whole one
        (without(machine(nodes=2, cores=4), [1]).online, {1: "4", 3: "4 0 5"}),
        # after the last pair single CPUs begin at the first bucket, also where the pairs end in its middle
        ([Cpu(cpu, core, 0, node) for cpu, core, node in (
            (0, 0, 0), (1, 0, 0), (2, 2, 0), (3, 3, 0), (4, 4, 1), (5, 4, 1), (6, 6, 1), (7, 7, 2), (8, 8, 2))],
         {5: "0 1 4 5 7", 6: "0 1 4 5 2 6", 8: "0 1 4 5 2 6 7 3"}),
        # two sockets and a kernel without NUMA: they take turns all the same
        ([Cpu(each.cpu, each.core, each.socket, 0) for each in machine(sockets=2, cores=2, threads=2).online],
         {4: "0 4 2 6"}),
    ],
    ids=range(15),
)  # fmt: skip
def test_the_choice(cpus, chosen):
    for count, expected in chosen.items():
        assert " ".join(map(str, choose_cpus(cpus, count))) == expected
        assert " ".join(map(str, choose_cpus(reversed(list(cpus)), count))) == expected  # in whatever order they come


def test_half_of_a_large_machine_is_half_of_every_node_in_whole_cores():
    topology = machine(sockets=8, nodes=2, cores=16, threads=2)
    chosen = set(choose_cpus(topology.online, 256))
    for node in range(16):
        of_node = [each for each in topology.online if each.numa_node == node]
        taken = [each for each in of_node if each.cpu in chosen]
        assert len(taken) * 2 == len(of_node) == 32
        assert len({each.core for each in taken}) == 8
