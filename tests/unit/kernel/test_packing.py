"""What the files backend packs is what `koordebpf.events` decodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordebpf.events.layout import STALL_BYTES, STALL_CAUSES, decode, decode_stall, decode_totals, expected_offsets
from koordebpf.events.records import CgroupMkdir, CgroupPopulated, CgroupRename, CgroupRmdir, OomKill
from koordebpf.kernel.backends import files

U64 = st.integers(0, (1 << 64) - 1)
KINDS = {
    files.KOORD_CGROUP_MKDIR: CgroupMkdir,
    files.KOORD_CGROUP_RMDIR: CgroupRmdir,
    files.KOORD_CGROUP_RENAME: CgroupRename,
}


@settings(deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), ts=U64, own=U64, parent=U64, level=st.integers(0, (1 << 32) - 1))
def test_a_cgroup(kind: int, ts: int, own: int, parent: int, level: int) -> None:
    assert decode(files.pack_cgroup(kind, ts, own, parent, level, "pod1")) == KINDS[kind](
        ts, own, parent, level, "pod1", False
    )


@pytest.mark.parametrize(("length", "is_cut"), [(1, False), (135, False), (136, True), (255, True)])
def test_a_name_that_is_too_long_is_cut_and_marked(length: int, is_cut: bool) -> None:
    made = decode(files.pack_cgroup(files.KOORD_CGROUP_MKDIR, 1, 2, 3, 4, "n" * length))
    assert isinstance(made, CgroupMkdir)
    assert (made.name, made.name_cut) == ("n" * min(length, files.KOORD_NAME_LEN - 1), is_cut)


@settings(deadline=None)
@given(ts=U64, own=U64, limit=U64, is_global=st.booleans())
def test_an_oom_kill(ts: int, own: int, limit: int, is_global: bool) -> None:
    record = decode(files.pack_oom_kill(ts, own, limit, is_global=is_global))
    assert record == OomKill(ts, own, limit, 0, 0, 0, 0, 0, is_global, "")


@settings(deadline=None)
@given(ts=U64, own=U64, populated=st.booleans())
def test_populated(ts: int, own: int, populated: bool) -> None:
    assert decode(files.pack_populated(ts, own, 7, populated=populated)) == CgroupPopulated(ts, own, populated, 7)


@settings(deadline=None)
@given(sums=st.lists(st.tuples(U64, U64), min_size=6, max_size=6), some=U64, changed=U64)
def test_a_stall(sums: list[tuple[int, int]], some: int, changed: int) -> None:
    packed = files.pack_stall(sums, some, changed)
    assert len(packed) == STALL_BYTES
    stall = decode_stall((77).to_bytes(8, "little"), packed)
    decoded = [getattr(stall, {"global": "global_"}.get(cause, cause)) for cause in STALL_CAUSES]
    assert [(each.count, each.total_ns) for each in decoded] == sums
    assert (stall.cgroup_id, stall.some_ns, stall.changed_ts_ns, stall.stalled) == (77, some, changed, 0)


def test_a_stall_of_too_few_causes_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 6"):
        files.pack_stall([(1, 1)] * 5, 0, 0)


def test_totals() -> None:
    numbers = {
        "episodes": 1,
        "compactions": 2,
        "populated": 3,
        "oom_kills": 4,
        "births": 5,
        "deaths": 6,
        "ring_sent": 7,
        "ring_lost": 8,
        "node_some_ns": 9,
        "node_changed_ts_ns": 10,
    }
    packed = files.pack_totals(**numbers, kswapd_runs=11)
    assert len(packed) == expected_offsets("koord_totals")[0]
    totals = decode_totals(packed)
    assert {name: getattr(totals, name) for name in numbers} == numbers
    assert totals.kswapd_wakes == (11, *(0,) * (files.KOORD_MAX_NUMA_NODES - 1))
    assert (totals.throttles, totals.memstalls, totals.migrations, totals.node_stalled) == (0, 0, 0, 0)
    assert sum(totals.kswapd_awake_ns) == 0
