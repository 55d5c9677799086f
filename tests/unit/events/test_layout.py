"""Decoders against bytes packed by hand from bpf/include/koord_events.h."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.errors import DecodeError, SupportError
from koordebpf.events import layout
from koordebpf.events.records import (
    CgroupMkdir,
    CgroupPopulated,
    CgroupRename,
    CgroupRmdir,
    CompactionStall,
    KswapdRun,
    MemoryStall,
    OomKill,
    ReclaimStall,
    TaskMigration,
    ThrottleStall,
)


def head(kind: int, size: int, cgroup_id: int = 77) -> bytes:
    return struct.pack("<IIQQ", kind, size, 1_000, cgroup_id)


def test_reclaim() -> None:
    buf = head(1, 80) + struct.pack("<QQQIIII16s", 5, 2_000, 31, 10, 11, 1, 3, b"java\0garbage")
    assert layout.decode(buf) == ReclaimStall(1_000, 77, 5, 2_000, 31, 10, 11, True, 3, "java")


def test_oom_kill() -> None:
    buf = head(2, 88) + struct.pack("<QQQQQII16s", 5, 900, 500, 20, 1, 10, 0, b"hog")
    assert layout.decode(buf) == OomKill(1_000, 77, 5, 900, 500, 20, 1, 10, False, "hog")


@pytest.mark.parametrize(("kind", "record"), [(3, CgroupMkdir), (4, CgroupRmdir), (5, CgroupRename)])
def test_cgroup(kind: int, record: type) -> None:
    buf = head(kind, 176) + struct.pack("<QII136s", 1, 4, 0, b"pod7")
    assert layout.decode(buf) == record(1_000, 77, 1, 4, "pod7", False)


def test_kswapd() -> None:
    assert layout.decode(head(6, 40, 0) + struct.pack("<QII", 9, 1, 0)) == KswapdRun(1_000, 0, 9, 1, 0)


@pytest.mark.parametrize(("kind", "record"), [(7, CompactionStall), (8, ThrottleStall), (9, MemoryStall)])
def test_wait(kind: int, record: type) -> None:
    buf = head(kind, 64) + struct.pack("<QIIII16s", 2_000, 10, 11, 5, 1, b"java")
    assert layout.decode(buf) == record(1_000, 77, 2_000, 10, 11, 5, True, "java")


@pytest.mark.parametrize("populated", [True, False])
def test_populated(populated: bool) -> None:
    assert layout.decode(head(10, 32) + struct.pack("<II", populated, 4)) == CgroupPopulated(1_000, 77, populated, 4)


@pytest.mark.parametrize("threadgroup", [True, False])
def test_migration(threadgroup: bool) -> None:
    buf = head(11, 48) + struct.pack("<II16s", 10, threadgroup, b"runc")
    assert layout.decode(buf) == TaskMigration(1_000, 77, 10, threadgroup, "runc")


def test_a_name_that_is_not_utf8_is_kept_readable() -> None:
    buf = head(3, 176) + struct.pack("<QII136s", 1, 4, 0, b"a\xffb")
    assert layout.decode(buf).name == "a\\xffb"


@pytest.mark.parametrize(
    ("buf", "why"),
    [
        (b"", "shorter than its head"),
        (bytes(23), "shorter than its head"),
        (head(99, 24), "kind 99"),
        (head(1, 80) + bytes(55), "79 bytes"),
        (head(1, 80) + bytes(57), "81 bytes"),
        (head(1, 64) + bytes(56), "says 64"),
    ],
)
def test_a_record_that_is_not_its_layout_is_refused(buf: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        layout.decode(buf)


@given(st.binary(max_size=200))
def test_decode_is_total(buf: bytes) -> None:
    try:
        layout.decode(buf)
    except DecodeError:
        return


SIZES = [(1, 80), (2, 88), (3, 176), (4, 176), (5, 176), (6, 40), (7, 64), (8, 64), (9, 64), (10, 32), (11, 48)]


@given(st.sampled_from(SIZES), st.data())
def test_every_body_of_the_right_length_decodes(kind_size: tuple[int, int], data: st.DataObject) -> None:
    kind, size = kind_size
    body = data.draw(st.binary(min_size=size - 24, max_size=size - 24))
    assert layout.decode(head(kind, size) + body).cgroup_id == 77


def test_stall_and_totals() -> None:
    sums = struct.pack("<4Q32I", 2, 300, 200, 64, *range(32))
    stall = layout.decode_stall(
        (77).to_bytes(8, "little"), sums + bytes(160 * 5) + struct.pack("<3Q2I", 9, 8, 42, 1, 0)
    )
    assert (stall.cgroup_id, stall.global_.total_ns, stall.global_.hist[31], stall.limit.count) == (77, 300, 31, 0)
    assert (stall.some_ns, stall.changed_ts_ns, stall.last_ts_ns, stall.stalled) == (9, 8, 42, 1)
    totals = layout.decode_totals(struct.pack("<214Q", *range(214)))
    assert (totals.episodes, totals.ignored, totals.node_stalled) == (0, 14, 20)
    assert (totals.kswapd_wakes[0], totals.kswapd_awake_ns[63]) == (22, 149)


def test_a_stall_without_histograms_is_the_same_but_for_them() -> None:
    sums = b"".join(struct.pack("<4Q32I", *range(36 * cause, 36 * cause + 36)) for cause in range(6))
    value = sums + struct.pack("<3Q2I", 9, 8, 42, 1, 0)
    whole = layout.decode_stall((77).to_bytes(8, "little"), value)
    parts = ("global_", "limit", "compaction", "throttled", "other_global", "other_limit")
    bare = {part: msgspec.structs.replace(getattr(whole, part), hist=()) for part in parts}
    expected = msgspec.structs.replace(whole, **bare)
    assert layout.decode_stall((77).to_bytes(8, "little"), value, histograms=False) == expected != whole


@pytest.mark.parametrize(("key", "value"), [(8, 100), (7, layout.STALL_BYTES), (16, layout.STALL_BYTES)])
def test_a_stall_of_the_wrong_length_is_refused(key: int, value: int) -> None:
    with pytest.raises(DecodeError, match="must be 8"):
        layout.decode_stall(bytes(key), bytes(value))


def test_memcgs_in_bytes_and_no_limit_is_none() -> None:
    row = struct.pack("<15Q", 7, 1, 10, (1 << 63) // 4096, 3, 77, 1, 2, 3, 4, 1, 2, 3, 4, 5)
    limited = struct.pack("<15Q", 8, 7, 10, 256, 0, layout.NOT_KNOWN, *[0] * 9)
    first, second = layout.decode_memcgs(memoryview(row + limited), 4096)
    assert first.max_bytes is None
    assert second.max_bytes == 1 << 20
    assert (first.usage_bytes, first.inactive_anon_bytes, first.unevictable_bytes) == (40960, 4096, 20480)
    assert (first.swap_bytes, first.high_events, first.oom_kill_events) == (12288, 1, 4)
    assert (first.slab_reclaimable_bytes, second.slab_reclaimable_bytes) == (77, None)


def test_one_scan_in_one_row_is_the_root_and_the_sums() -> None:
    root = struct.pack("<15Q", 7, 1, 100, 256, *[0] * 6, 1, 2, 3, 4, 5)
    child = struct.pack("<15Q", 8, 7, 60, 128, *[9] * 6, 10, 20, 30, 40, 50)
    assert layout.sum_memcgs(memoryview(root + child)) == (7, 1, 100, 256, *[0] * 6, 11, 22, 33, 44, 55)
    assert layout.sum_memcgs(memoryview(b"")) is None


def test_a_structure_of_another_build_is_refused() -> None:
    size, offsets = layout.expected_offsets("koord_reclaim")
    layout.check_layout("koord_reclaim", (size, offsets))
    with pytest.raises(SupportError, match="make bpf"):
        layout.check_layout("koord_reclaim", (size, offsets | {"delta_ns": 40}))
