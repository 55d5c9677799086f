"""The layouts of bpf/include/koord_events.h, and the decoders for them.

Shape:   little endian, no holes, as the C structures; `check_layout` holds them against the object's BTF.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from koordebpf.errors import DecodeError, SupportError
from koordebpf.events.records import (
    CgroupMkdir,
    CgroupPopulated,
    CgroupRename,
    CgroupRmdir,
    CgroupStall,
    CompactionStall,
    KswapdRun,
    MemcgSample,
    MemoryStall,
    OomKill,
    ReclaimStall,
    Record,
    StallSum,
    TaskMigration,
    ThrottleStall,
    Totals,
)

Members = tuple[tuple[str, str], ...]  # member and struct code, in the order of the C structure
Layouts = Mapping[str, Members]
CPU_LEVELS = 32  # KOORD_CPU_LEVELS
KOORD_NAME_LEN = 136
KOORD_HIST_SLOTS = 32
KOORD_MAX_NUMA_NODES = 64
# Members of struct koord_stall, each a koord_stall_sum, in their order.
STALL_CAUSES = ("global", "limit", "compaction", "throttled", "other_global", "other_limit")
NOT_KNOWN = (1 << 64) - 1  # koord_events.h: KOORD_NOT_KNOWN
NO_LIMIT_PAGES = 1 << 46  # koord_events.h: include/linux/page_counter.h PAGE_COUNTER_MAX is LONG_MAX / page size
_HEAD = (("head", "24s"),)
_SUM = f"4Q{KOORD_HIST_SLOTS}I"
_SUM_WORDS = 4 + KOORD_HIST_SLOTS
# Member → struct code, in the order of the C structure.
LAYOUTS: Layouts = {
    "koord_head": (("kind", "I"), ("size", "I"), ("ts_ns", "Q"), ("cgroup_id", "Q")),
    "koord_reclaim": (
        *_HEAD,
        ("limit_id", "Q"),
        ("delta_ns", "Q"),
        ("nr_reclaimed", "Q"),
        ("tgid", "I"),
        ("tid", "I"),
        ("is_global", "I"),
        ("order", "I"),
        ("comm", "16s"),
    ),
    "koord_oom_kill": (
        *_HEAD,
        ("limit_id", "Q"),
        ("total_vm_pages", "Q"),
        ("anon_rss_pages", "Q"),
        ("file_rss_pages", "Q"),
        ("shmem_rss_pages", "Q"),
        ("tgid", "I"),
        ("is_global", "I"),
        ("comm", "16s"),
    ),
    "koord_cgroup": (
        *_HEAD,
        ("parent_id", "Q"),
        ("level", "I"),
        ("name_cut", "I"),
        ("name", f"{KOORD_NAME_LEN}s"),
    ),
    "koord_kswapd": (*_HEAD, ("delta_ns", "Q"), ("nid", "I"), ("order", "I")),
    "koord_wait": (
        *_HEAD,
        ("delta_ns", "Q"),
        ("tgid", "I"),
        ("tid", "I"),
        ("detail", "I"),
        ("is_global", "I"),
        ("comm", "16s"),
    ),
    "koord_populated": (*_HEAD, ("populated", "I"), ("level", "I")),
    "koord_migration": (*_HEAD, ("pid", "I"), ("threadgroup", "I"), ("comm", "16s")),
    "koord_stall_sum": (
        ("count", "Q"),
        ("total_ns", "Q"),
        ("max_ns", "Q"),
        ("reclaimed_pages", "Q"),
        ("hist", f"{KOORD_HIST_SLOTS}I"),
    ),
    "koord_stall": (
        *((cause, "160s") for cause in STALL_CAUSES),
        ("some_ns", "Q"),
        ("changed_ts_ns", "Q"),
        ("last_ts_ns", "Q"),
        ("stalled", "I"),
        ("epoch", "I"),
    ),
    "koord_totals": (
        ("episodes", "Q"),
        ("compactions", "Q"),
        ("throttles", "Q"),
        ("memstalls", "Q"),
        ("populated", "Q"),
        ("migrations", "Q"),
        ("oom_kills", "Q"),
        ("births", "Q"),
        ("deaths", "Q"),
        ("ring_sent", "Q"),
        ("ring_lost", "Q"),
        ("unmatched_ends", "Q"),
        ("begun_full", "Q"),
        ("stalls_full", "Q"),
        ("ignored", "Q"),
        ("lost_ends", "Q"),
        ("missed_runs", "Q"),
        ("missed_births", "Q"),
        ("node_some_ns", "Q"),
        ("node_changed_ts_ns", "Q"),
        ("node_stalled", "Q"),
        ("node_epoch", "Q"),
        ("kswapd_wakes", f"{KOORD_MAX_NUMA_NODES}Q"),
        ("kswapd_awake_ns", f"{KOORD_MAX_NUMA_NODES}Q"),
        ("kswapd_woken_ts_ns", f"{KOORD_MAX_NUMA_NODES}Q"),
    ),
    "koord_settings": (
        ("min_stall_ns", "Q"),
        ("node_cgroup_id", "Q"),
        ("hierarchy_id", "I"),
        ("node_level", "I"),
        ("numa_nodes", "I"),
        ("kinds", "I"),
        ("only_wanted", "I"),
        ("memcgs", "I"),
        ("memcgs_full", "I"),
        ("epoch", "I"),
        ("page_shift", "I"),
        ("reserved", "I"),
    ),
    "koord_memcg": (
        ("cgroup_id", "Q"),
        ("parent_id", "Q"),
        ("usage_pages", "Q"),
        ("max_pages", "Q"),
        ("swap_pages", "Q"),
        ("slab_reclaimable_bytes", "Q"),
        ("events", "4Q"),
        ("lru_pages", "5Q"),
    ),
}
CPU_LAYOUTS: Layouts = {
    "koord_cpu_key": (("cgroup_id", "Q"), ("hierarchy", "Q")),
    "koord_cpu": (
        ("usage_pass", "Q"),
        ("usage_ns", "Q"),
        ("throttle_pass", "Q"),
        ("nr_periods", "Q"),
        ("nr_throttled", "Q"),
        ("throttled_ns", "Q"),
    ),
    "koord_cpu_settings": (
        ("cpus", "I"),
        ("reserved", "I"),
        ("pass", "Q"),
        ("hierarchy", "Q"),
        ("is_v2", "Q"),
        ("path", f"{CPU_LEVELS}I"),
    ),
}
CPU_WORDS = len(CPU_LAYOUTS["koord_cpu"])  # every member is a u64
_STRUCT_STALL = struct.Struct(f"<{_SUM * len(STALL_CAUSES)}3Q2I")
_STRUCT_STALL_SUMS = struct.Struct(f"<{f'4Q{4 * KOORD_HIST_SLOTS}x' * len(STALL_CAUSES)}3Q2I")
STALL_BYTES = _STRUCT_STALL.size
# Where `swap_pages` is in a row of numbers, struct koord_memcg, and where `lru_pages` begins.
MEMCG_SWAP_AT, MEMCG_LRU_AT = 4, 10
KIND_NUMBERS: Mapping[str, int] = {
    "reclaim": 1,
    "oom_kill": 2,
    "cgroup_mkdir": 3,
    "cgroup_rmdir": 4,
    "cgroup_rename": 5,
    "kswapd": 6,
    "compaction": 7,
    "throttled": 8,
    "memstall": 9,
    "populated": 10,
    "migration": 11,
}


def offsets_of(members: Members) -> tuple[int, dict[str, int]]:
    """Return the size of a structure and the offset of each member, in bytes."""
    offsets: dict[str, int] = {}
    size = 0
    for member, code in members:
        offsets[member] = size
        size += struct.calcsize("<" + code)
    return size, offsets


def compare_layout(name: str, actual: tuple[int, Mapping[str, int]], members: Members) -> None:
    """Hold the structure of this name against its members.

    Raises:  SupportError: a member is missing, moved, or the size differs.
    """
    expected = offsets_of(members)
    if actual != expected:
        raise SupportError(
            f"BPF record {name}",
            f"the object lays it out as {actual}, this package as {expected}",
            "Build the objects from this package's sources: make bpf.",
        )


def check_cpu_layout(name: str, actual: tuple[int, Mapping[str, int]]) -> None:
    """Hold one structure of the object's BTF against this module.

    Raises:  SupportError: a member is missing, moved, or the size differs.
    """
    compare_layout(name, actual, CPU_LAYOUTS[name])


def _struct(name: str) -> struct.Struct:
    return struct.Struct("<" + "".join(code for _, code in LAYOUTS[name]).replace("24s", "IIQQ"))


_STRUCT_HEAD = _struct("koord_head")
_STRUCT_RECLAIM = _struct("koord_reclaim")
_STRUCT_OOM_KILL = _struct("koord_oom_kill")
_STRUCT_CGROUP = _struct("koord_cgroup")
_STRUCT_KSWAPD = _struct("koord_kswapd")
_STRUCT_WAIT = _struct("koord_wait")
_STRUCT_POPULATED = _struct("koord_populated")
_STRUCT_MIGRATION = _struct("koord_migration")
_STRUCT_TOTALS = _struct("koord_totals")
_STRUCT_MEMCG = _struct("koord_memcg")

MEMCG_WORDS = _STRUCT_MEMCG.size // 8  # every member is a u64


def expected_offsets(name: str) -> tuple[int, dict[str, int]]:
    """Return the size of a structure and the offset of each member, in bytes."""
    return offsets_of(LAYOUTS[name])


def check_layout(name: str, actual: tuple[int, Mapping[str, int]]) -> None:
    """Hold one structure of an object's BTF against this module.

    Raises:  SupportError: a member is missing, moved, or the size differs.
    """
    compare_layout(name, actual, LAYOUTS[name])


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="backslashreplace")


def _reclaim(buf: bytes) -> ReclaimStall:
    _, _, ts_ns, cgroup_id, limit_id, delta_ns, pages, tgid, tid, is_global, order, comm = _STRUCT_RECLAIM.unpack(buf)
    return ReclaimStall(
        ts_ns, cgroup_id, limit_id, delta_ns, pages, tgid, tid, bool(is_global), order, _text(comm)
    )  # fmt: skip


def _oom_kill(buf: bytes) -> OomKill:
    _, _, ts_ns, cgroup_id, limit_id, total_vm, anon, file, shmem, tgid, is_global, comm = _STRUCT_OOM_KILL.unpack(buf)
    return OomKill(ts_ns, cgroup_id, limit_id, total_vm, anon, file, shmem, tgid, bool(is_global), _text(comm))


def _cgroup(kind: type[CgroupMkdir] | type[CgroupRmdir] | type[CgroupRename]) -> Callable[[bytes], Record]:
    def decode_cgroup(buf: bytes) -> Record:
        _, _, ts_ns, cgroup_id, parent_id, level, name_cut, name = _STRUCT_CGROUP.unpack(buf)
        return kind(ts_ns, cgroup_id, parent_id, level, _text(name), bool(name_cut))

    return decode_cgroup


def _kswapd(buf: bytes) -> KswapdRun:
    _, _, ts_ns, cgroup_id, delta_ns, nid, order = _STRUCT_KSWAPD.unpack(buf)
    return KswapdRun(ts_ns, cgroup_id, delta_ns, nid, order)


def _wait(kind: type[CompactionStall] | type[ThrottleStall] | type[MemoryStall]) -> Callable[[bytes], Record]:
    def decode_wait(buf: bytes) -> Record:
        _, _, ts_ns, cgroup_id, delta_ns, tgid, tid, detail, is_global, comm = _STRUCT_WAIT.unpack(buf)
        return kind(ts_ns, cgroup_id, delta_ns, tgid, tid, detail, bool(is_global), _text(comm))

    return decode_wait


def _populated(buf: bytes) -> CgroupPopulated:
    _, _, ts_ns, cgroup_id, populated, level = _STRUCT_POPULATED.unpack(buf)
    return CgroupPopulated(ts_ns, cgroup_id, bool(populated), level)


def _migration(buf: bytes) -> TaskMigration:
    _, _, ts_ns, cgroup_id, pid, threadgroup, comm = _STRUCT_MIGRATION.unpack(buf)
    return TaskMigration(ts_ns, cgroup_id, pid, bool(threadgroup), _text(comm))


# enum koord_kind → size, decoder
_DECODERS: Mapping[int, tuple[int, Callable[[bytes], Record]]] = {
    1: (_STRUCT_RECLAIM.size, _reclaim),
    2: (_STRUCT_OOM_KILL.size, _oom_kill),
    3: (_STRUCT_CGROUP.size, _cgroup(CgroupMkdir)),
    4: (_STRUCT_CGROUP.size, _cgroup(CgroupRmdir)),
    5: (_STRUCT_CGROUP.size, _cgroup(CgroupRename)),
    6: (_STRUCT_KSWAPD.size, _kswapd),
    7: (_STRUCT_WAIT.size, _wait(CompactionStall)),
    8: (_STRUCT_WAIT.size, _wait(ThrottleStall)),
    9: (_STRUCT_WAIT.size, _wait(MemoryStall)),
    10: (_STRUCT_POPULATED.size, _populated),
    11: (_STRUCT_MIGRATION.size, _migration),
}


def kinds_mask(kinds: Collection[str]) -> int:
    """Return the bits of koord_settings.kinds for these kinds, as the records' tags spell them; none: all."""
    return sum(1 << KIND_NUMBERS[kind] for kind in set(kinds or KIND_NUMBERS) if kind in KIND_NUMBERS)


def decode(buf: bytes) -> Record:
    """Return the record in `buf`, one entry of the ring buffer.

    Raises:  DecodeError: the kind is unknown, or the length is not the kind's.
    """
    if len(buf) < _STRUCT_HEAD.size:
        raise DecodeError(f"record of {len(buf)} bytes: shorter than its head of {_STRUCT_HEAD.size}")
    kind, size = struct.unpack_from("<II", buf)
    try:
        expected, decoder = _DECODERS[kind]
    except KeyError:
        raise DecodeError(f"record of kind {kind}: known are {sorted(_DECODERS)}") from None
    if len(buf) != expected or size != expected:
        raise DecodeError(f"record of kind {kind}: {len(buf)} bytes, says {size}, must be {expected}")
    return decoder(buf)


def decode_totals(buf: bytes) -> Totals:
    """Return the counters in the first bytes of `buf`, struct koord_totals."""
    numbers = _STRUCT_TOTALS.unpack_from(buf)
    nodes = KOORD_MAX_NUMA_NODES
    members: list[Any] = [*numbers[: -3 * nodes], numbers[-3 * nodes : -2 * nodes], numbers[-2 * nodes : -nodes]]
    return Totals(*members)


def decode_stall(cgroup_id: bytes, value: bytes, *, histograms: bool = True) -> CgroupStall:
    """Return one element of the map `stalls`; without its histograms for who reads all of them over and over.

    Raises:  DecodeError: the key is not 8 bytes or the value not struct koord_stall.
    Cost:    6.5 µs; without histograms 1.5 µs.
    """
    if len(cgroup_id) != 8 or len(value) != STALL_BYTES:
        raise DecodeError(f"stall of {len(cgroup_id)} + {len(value)} bytes: must be 8 + {STALL_BYTES}")
    if histograms:
        numbers = _STRUCT_STALL.unpack(value)
        sums = [_stall_sum(numbers, at) for at in range(0, _SUM_WORDS * len(STALL_CAUSES), _SUM_WORDS)]
    else:
        numbers = _STRUCT_STALL_SUMS.unpack(value)
        sums = [StallSum(*numbers[at : at + 4]) for at in range(0, 4 * len(STALL_CAUSES), 4)]
    some_ns, changed_ts_ns, last_ts_ns, stalled, _ = numbers[-5:]
    return CgroupStall(
        int.from_bytes(cgroup_id, "little"),
        sums[0],
        sums[1],
        sums[2],
        sums[3],
        sums[4],
        sums[5],
        some_ns=some_ns,
        changed_ts_ns=changed_ts_ns,
        last_ts_ns=last_ts_ns,
        stalled=stalled,
    )


def _stall_sum(numbers: tuple[int, ...], at: int) -> StallSum:
    count, total_ns, max_ns, pages = numbers[at : at + 4]
    return StallSum(count, total_ns, max_ns, pages, numbers[at + 4 : at + _SUM_WORDS])


def unpack_memcgs(rows: memoryview) -> Iterator[tuple[int, ...]]:
    """Yield each struct koord_memcg of one scan as numbers: the members in their order, arrays as their elements.

    For sums over all cgroups, where a value for each would cost more than the sum. Units: pages.
    """
    return _STRUCT_MEMCG.iter_unpack(rows)


def sum_memcgs(rows: memoryview) -> tuple[int, ...] | None:
    """Return one scan as a single row: the root's own members, but `lru_pages` summed over all rows. None: no rows.

    Units:   pages.
    Cost:    0.08 ms for 440 rows, a quarter of a loop over `unpack_memcgs`.
    """
    if not rows:
        return None
    with rows.cast("Q") as numbers:  # every member is a u64
        members = _STRUCT_MEMCG.size // numbers.itemsize
        root = tuple(numbers[:MEMCG_LRU_AT])  # parents come first
        return (*root, *(sum(numbers[at::members]) for at in range(MEMCG_LRU_AT, members)))


def decode_memcgs(rows: memoryview, page_bytes: int) -> Iterator[MemcgSample]:
    """Yield the memory cgroups that one scan wrote; `rows` holds whole struct koord_memcg."""
    for row in _STRUCT_MEMCG.iter_unpack(rows):
        cgroup_id, parent_id, usage, limit, swap, slab, high, maximum, oom, oom_kill, ia, aa, ifile, af, unevictable = (
            row
        )
        yield MemcgSample(
            cgroup_id,
            parent_id,
            usage * page_bytes,
            None if limit >= NO_LIMIT_PAGES else limit * page_bytes,
            ia * page_bytes,
            aa * page_bytes,
            ifile * page_bytes,
            af * page_bytes,
            unevictable * page_bytes,
            swap * page_bytes,
            high,
            maximum,
            oom,
            oom_kill,
            None if slab == NOT_KNOWN else slab,
        )
