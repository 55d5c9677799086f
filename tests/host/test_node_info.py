"""What this machine is made of, beside what lscpu(1) and the kernel's own files say."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from koordebpf.jobs.node_topology.report import TopologyInput, topology_report
from koordebpf.jobs.node_topology.run import NodeInfoReader
from koordebpf.kube.cache.objects import Node, ObjectMeta
from koordebpf.units import PAGE_BYTES


def test_it_is_what_lscpu_says() -> None:
    if shutil.which("lscpu") is None:
        pytest.skip("no lscpu here")
    info = NodeInfoReader().read()
    assert info is not None
    command = ["lscpu", "-e=CPU,NODE,SOCKET,CORE,CACHE,ONLINE"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    header, *rows = (line.split() for line in lines)
    assert rows
    said = {}
    for row in rows:
        fields = dict(zip(header, row, strict=False))
        if row[-1] != "yes":
            continue
        numbers = [0 if fields.get(name, "-") == "-" else int(fields[name]) for name in ("NODE", "SOCKET", "CORE")]
        caches = row[-2].split(":") if ":" in row[-2] else []
        l3 = int(caches[3]) if len(caches) > 3 and caches[3] != "-" else None
        said[int(row[0])] = (*numbers, l3)
    assert {each.cpu: (each.numa_node, each.socket, each.core, each.l3) for each in info.processors} == said


def test_zones_are_the_machines_numa_nodes_with_all_of_their_cpus_and_memory() -> None:
    info = NodeInfoReader().read()
    assert info is not None
    report = topology_report(TopologyInput(info, Node(ObjectMeta(name="n1"))))
    there = sorted(path.name for path in Path("/sys/devices/system/node").glob("node[0-9]*")) or ["node0"]
    assert [zone.name.replace("-", "") for zone in report.zones] == there
    assert sum(len(info.of_node(int(name[4:]))) for name in there) == len(info.processors)
    # Where a hypervisor gives memory later, MemTotal has been twice what all zones had: it is known of whom that is
    # where there is one node.
    managed_pages = sum(map(int, re.findall(r"^ +managed +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)))
    total = re.search(r"^MemTotal: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert total is not None
    with_memory = [each for each in info.numa if each.memory_bytes]
    expected = int(total[1]) << 10 if len(with_memory) == 1 else managed_pages * PAGE_BYTES
    assert sum(each.memory_bytes or 0 for each in with_memory) == pytest.approx(expected, rel=0.01)
