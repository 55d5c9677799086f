"""No row of a kernel file but those that are read changes what is found; of two rows of one key the first counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from koordebpf.collect.memory.files import LruStat
from koordebpf.kernel.backends import files, limit_events
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, ControllerMount, find_memory_hierarchy
from koordebpf.kernel.cgroup.idle_pages import FILE as IDLE_FILE
from koordebpf.kernel.cgroup.idle_pages import cold_bytes
from koordebpf.kernel.cgroup.tables import numa_held, parse_table
from koordebpf.kernel.host.machine import effective_capabilities
from koordebpf.kernel.host.processors import cpu_model
from koordebpf.kernel.host.written_texts import parse_schemata
from koordebpf.kernel.io.table import field, odd_rows
from koordebpf.kernel.proc.cpu_usage import CgroupCpu, NodeCpuTime
from koordebpf.kernel.proc.meminfo import Meminfo, NumaMeminfo, numa_total_bytes
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.kernel.proc.vmstat import Vmstat, Zoneinfo

NUMBER = rb" [0-9]{1,20}"
LIMIT = rb" +(?:[0-9]{1,20}(?:\.[0-9]{1,2})?|max) *"
KB = rb":[ ]*[0-9]{1,20} kB"
ALL = rb" 0 0 0 0 0 1 2 3"


class Reader(msgspec.Struct, frozen=True):
    """One reader of one file. `row`: the form of rows behind their keys; `keys`: that are read, rows of which count.

    `first`: rows that stand before all others.
    """

    name: str
    good: bytes
    keys: tuple[bytes, ...]
    row: bytes
    read: Callable[[Path], object]
    first: int = 0
    begins: bytes | None = None  # rows that begin so are not tried: others are below them
    is_counted: bool = True  # an odd row or a second one of a key

    def counts(self, line: bytes) -> bool:
        """Tell whether this is a good row of a key that is read."""
        if self.begins is not None and line.startswith(self.begins):
            return False
        keys = b"|".join(map(re.escape, self.keys))
        return re.fullmatch(b"[ ]*(?:%s)(?:%s)" % (keys, self.row), line) is not None


def closing(make: Callable[[Path], object], read: Callable[[object], object]) -> Callable[[Path], object]:
    def one(path: Path) -> object:
        with make(path) as opened:  # type: ignore[attr-defined]
            return read(opened)

    return one


def in_cgroup(version: int, read: Callable[[CgroupMemory], object]) -> Callable[[Path], object]:
    return closing(lambda path: CgroupMemory(path.parent, version), read)  # type: ignore[arg-type]


def of_cpu(read: Callable[[CgroupCpu], object]) -> Callable[[Path], object]:
    return closing(
        lambda path: CgroupCpu({"cpu": ControllerMount(2, path.parent.parent)}, path.parent.name),
        read,  # type: ignore[arg-type]
    )


def of_hierarchy(path: Path) -> object:
    mountinfo = path.with_name("mountinfo")
    mountinfo.write_bytes(b"31 22 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    return find_memory_hierarchy(mountinfo, path)


def numa(path: Path) -> object:
    at = path.parent / "sys/node/node0"
    at.mkdir(parents=True, exist_ok=True)
    (at / "meminfo").write_bytes(path.read_bytes())
    with NumaMeminfo(path.parent / "sys") as reader:
        return reader.used_bytes(), numa_total_bytes(0, at / "meminfo")


def model(path: Path) -> object:
    return cpu_model(path.parent / "none", path.parent)


LRU = (b"inactive_anon", b"active_anon", b"inactive_file", b"active_file", b"unevictable", b"shmem")
OF_POD = (*LRU[:4], b"workingset_refault_anon", b"workingset_refault_file", b"workingset_activate_file")
EVENTS = (b"high", b"max", b"oom", b"oom_kill")
V1_OWN = b"cache 9\ninactive_anon 9\nhierarchical_memory_limit 9223372036854771712\n"
ZONE = b"""Node 0, zone      DMA
  pages free     3840
        min      7
        low      8
        high     9
        present  3999
Node 0, zone   Normal
  pages free     111
        boost    0
        min      22
        low      33
        high     44
        present  5000
      nr_free_pages 111
      nr_zone_inactive_file 55
      nr_zone_active_file 66
"""
STAT = b"cpu 9 8 7 6 5 4 3 2 1 0\ncpu0 5 4 3 2 1 0 1 2 3 4\ncpu1 4 4 4 4 4 4 4 4 4 4\nintr 5 6\nctxt 7\n"
IDLE = (b"cfei", b"dfei", b"cfui", b"dfui")


def flat(keys: tuple[bytes, ...], prefix: bytes = b"") -> bytes:
    return b"".join(b"%s%s %d\n" % (prefix, key, 100 + at) for at, key in enumerate(keys))


def kb(keys: tuple[bytes, ...]) -> bytes:
    return b"".join(b"%s:    %d kB\n" % (key, 1000 - at) for at, key in enumerate(keys))


MEMINFO = tuple(
    b"MemTotal MemFree MemAvailable Cached SReclaimable SwapTotal SwapFree Hugetlb Balloon SUnreclaim KernelStack"
    b" PageTables SecPageTables Percpu".split()
)
OF_NODE = tuple(b"Node 0 " + each for each in b"MemTotal MemFree Active(file) Inactive(file) SReclaimable".split())
VMSTAT = tuple(
    b"allocstall_normal allocstall_movable compact_stall oom_kill pageoutrun pgscan_anon pgscan_file"
    b" pgsteal_kswapd workingset_refault_file".split()
)
WITH_ZONES = (*VMSTAT, b"allocstall", b"allocstall_dma", b"allocstall_dma32", b"allocstall_high", b"allocstall_device")

READERS = (
    Reader("memory.stat", flat((b"anon", *LRU, b"slab_reclaimable", b"hugetlb")),
           (*LRU, b"slab_reclaimable", b"hugetlb"), NUMBER, in_cgroup(2, CgroupMemory.read)),
    Reader("memory.stat v1", V1_OWN + flat(LRU, b"total_"), tuple(b"total_" + key for key in LRU), NUMBER,
           in_cgroup(1, CgroupMemory.read)),
    Reader("memory.stat of a pod", flat(OF_POD), OF_POD, NUMBER,
           closing(lambda path: LruStat(path.parent, 2), LruStat.rows)),  # type: ignore[arg-type]
    Reader("memory.stat of a pod v1", V1_OWN + flat(OF_POD, b"total_"), tuple(b"total_" + key for key in OF_POD),
           NUMBER, closing(lambda path: LruStat(path.parent, 1), LruStat.rows)),  # type: ignore[arg-type]
    Reader("memory.events", flat((b"low", *EVENTS)), EVENTS, NUMBER,
           in_cgroup(2, lambda cgroup: (cgroup.events(), cgroup.oom_kills()))),
    Reader("memory.oom_control", b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", EVENTS, NUMBER,
           in_cgroup(1, CgroupMemory.oom_kills)),
    Reader("memory.events.local", flat((b"low", *EVENTS)), EVENTS, NUMBER,
           lambda path: limit_events._counts(str(path))),
    Reader("memory.pressure", b"some avg10=1.00 avg60=2.00 avg300=3.00 total=4\n"
           b"full avg10=0.10 avg60=0.20 avg300=0.30 total=3\n", (b"some", b"full"),
           rb" avg10=\d+\.\d+ avg60=\d+\.\d+ avg300=\d+\.\d+ total=\d+", closing(PressureFile, PressureFile.read)),
    Reader("memory.pressure of a tree", b"some avg10=1.00 avg60=2.00 avg300=3.00 total=4\n", (b"some",),
           rb" avg10=\d+\.\d+ avg60=\d+\.\d+ avg300=\d+\.\d+ total=\d+",
           lambda path: files._some_us(SimpleNamespace(path=path.parent))),
    Reader("memory.numa_stat", b"anon N0=5 N1=6\nfile N0=9 N1=9\nshmem N0=1 N1=2\n", (b"anon", b"shmem"),
           rb"(?: +N\d+=\d+)+ *", lambda path: numa_held(path.parent, 2)),
    Reader("memory.numa_stat v1", b"total=9 N0=9\nhierarchical_anon=5 N0=5\nhierarchical_unevictable=1 N0=1\n",
           (b"hierarchical_anon", b"hierarchical_unevictable"), rb"=\d+(?: +N\d+=\d+)+ *",
           lambda path: numa_held(path.parent, 1)),
    Reader(IDLE_FILE, b"# version: 1.0\n" + b"".join(key + ALL + b"\n" for key in IDLE), IDLE, rb"(?: +\d+){8} *",
           lambda path: cold_bytes(path.parent)),
    Reader("cpu.stat", b"usage_usec 5\nuser_usec 4\nnr_periods 7\nnr_throttled 3\n",
           (b"usage_usec", b"nr_periods", b"nr_throttled"), NUMBER,
           of_cpu(lambda cpu: (cpu.used_ns(), cpu.throttling()))),
    Reader("io.max", b"8:0 rbps=1 wbps=max riops=max wiops=5\n8:16 rbps=max wbps=7 riops=max wiops=max\n",
           (b"8:0", b"8:16"), rb"(?: +[^ ]*=[^ ]*)+ *",
           lambda path: [parse_table(field(path.read_bytes()), each, "io.max") for each in ("rbps", "wiops")]),
    Reader("blkio.throttle", b"8:0 100\n8:16 200\n", (b"8:0", b"8:16"), LIMIT,
           lambda path: parse_table(field(path.read_bytes()), None, "blkio.throttle")),
    Reader("schemata", b"    MB:0= 100;1=  50\n    L3:0=7ff;1=00f\n    L2:0=ff\n", (b"MB", b"L3"),
           rb":[ ]*\d+=[ ]*[0-9a-f]+(?:;\d+=[ ]*[0-9a-f]+)*",
           lambda path: parse_schemata(field(path.read_bytes()), "schemata")),
    Reader("meminfo", kb(MEMINFO), MEMINFO, KB, closing(Meminfo, Meminfo.read)),
    Reader("meminfo of a NUMA node", kb(OF_NODE), OF_NODE, KB, numa),
    Reader("vmstat", flat((b"nr_free_pages", *VMSTAT)), WITH_ZONES, NUMBER,
           closing(Vmstat, lambda vmstat: (vmstat.read(), vmstat.refaulted_pages()))),  # type: ignore[attr-defined]
    Reader("zoneinfo", ZONE, (b"pages free", b"min", b"low", b"high", b"present",
           b"nr_zone_inactive_file", b"nr_zone_active_file"), rb".*", closing(Zoneinfo, Zoneinfo.read), 1,
           b"Node ", is_counted=False),
    Reader("stat", STAT, (b"cpu0", b"cpu1"), rb"(?: [0-9]{1,20}){8,}",
           closing(NodeCpuTime, NodeCpuTime.used_ns_by_cpu), 1, is_counted=False),
    Reader("cgroups", b"#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t4\t61\t1\n",
           (b"memory",), rb"\s+\d+\s+\d+\s+\d+", of_hierarchy),
    Reader("cpuinfo", b"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\n",
           (b"vendor_id", b"model name"), rb"\t*:.*", model, is_counted=False),
    Reader("status", b"Name:\tx\nCapEff:\t00000000a80425fb\n", (b"CapEff",), rb":\t[0-9a-f]{1,16}",
           effective_capabilities, is_counted=False),
)  # fmt: skip

FILES = {"meminfo of a NUMA node": "numa", "memory.pressure of a tree": "memory.pressure"}
each_reader = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
anything = st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"\r"))
separators = st.sampled_from([b"", b" ", b":", b"=", b"\t", b" \xff", "\u2028".encode(), b" -1", b" 1 ", b"\x0b7"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cgroup")
    for name in ("memory.current", "memory.usage_in_bytes"):
        (made / name).write_text("5\n")
    return made


def found(folder: Path, reader: Reader, lines: list[bytes]) -> object:
    path = folder / FILES.get(reader.name, reader.name.split(" ")[0])
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return reader.read(path)


@each_reader
@given(data=st.data())
def test_an_extra_row_changes_nothing(folder: Path, reader: Reader, data: st.DataObject) -> None:
    near = st.builds(lambda key, sep, rest: key + sep + rest, st.sampled_from(reader.keys), separators, anything)
    extra = data.draw(st.one_of(anything, near).filter(lambda line: not reader.counts(line)))
    assume(reader.begins is None or not extra.startswith(reader.begins))
    of_device = re.match(rb" *([0-9]+:[0-9]+)(?: |$)", extra)  # of a device that has no good row: an error
    assume(of_device is None or of_device[1] in reader.keys)
    rows = reader.good.split(b"\n")[:-1]
    at = data.draw(st.integers(reader.first, len(rows)))
    assert found(folder, reader, [*rows[:at], extra, *rows[at:]]) == found(folder, reader, rows)


@each_reader
def test_of_two_rows_of_a_key_the_first_counts_and_that_is_reported(folder: Path, reader: Reader) -> None:
    rows = reader.good.split(b"\n")[:-1]
    again = [re.sub(rb"[0-9](?=\D*$)", b"1", row) for row in rows if reader.counts(row)]
    assert again
    good, before = found(folder, reader, rows), sum(odd_rows().values())
    assert found(folder, reader, [*rows, *again]) == good
    if reader.is_counted:
        assert sum(odd_rows().values()) >= before + len(again)
