"""Columns say of every record what `decode` says of it alone."""

from __future__ import annotations

import mmap
import random
import struct
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.errors import DecodeError
from koordebpf.events.columns import STRUCTS, columns, dtype_of
from koordebpf.events.layout import KIND_NUMBERS, LAYOUTS, decode, expected_offsets
from koordebpf.events.records import Record
from koordebpf.kernel.bpf.ring import look
from tests.support.values.ring_image import ring_image

RING_BYTES = 16 * mmap.PAGESIZE
KINDS = {number: STRUCTS[kind] for kind, number in KIND_NUMBERS.items()}


def body(kind: int, seed: random.Random, size: int | None = None) -> bytes:
    size = size or expected_offsets(KINDS[kind])[0]
    return struct.pack("<II", kind, size) + seed.randbytes(size - 8)


def decoded(buf: bytes) -> Record | None:
    try:
        return decode(buf)
    except DecodeError:
        return None


def same(column: Any, value: Any) -> bool:
    if isinstance(value, str):
        return bool(column.split(b"\0", 1)[0].decode(errors="backslashreplace") == value)
    return bool(column) == value if isinstance(value, bool) else bool(column == value)


def check(records: list[bytes]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Hold the columns of `records` in a ring against each one decoded; return the ring and the last columns."""
    memory, producer = ring_image(RING_BYTES, 4096, [(0, each) for each in records])
    rows: dict[str, list[Any]] = defaultdict(list)
    views: dict[str, np.ndarray] = {}
    undecodable, consumer = 0, 4096
    while batch := look(memory, consumer, producer):
        found = columns(batch)
        undecodable += found.undecodable
        for name, each in found.rows.items():
            rows[name] += list(each)
            views[name] = each
        consumer = batch.end
    values = [(buf, decoded(buf)) for buf in records]
    assert undecodable == sum(value is None for _, value in values)
    for name in set(KINDS.values()):
        expected = [(buf, value) for buf, value in values if value is not None and KINDS[buf[0]] == name]
        assert len(rows[name]) == len(expected)
        for row, (buf, value) in zip(rows[name], expected, strict=True):
            fields = msgspec.structs.asdict(value)
            shared = fields.keys() & set(row.dtype.names)
            assert {"ts_ns", "cgroup_id"} < shared
            assert {field: row[field] for field in shared if not same(row[field], fields[field])} == {}
            assert row.tobytes() == buf
    return memory, views


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 60)), max_size=12), st.integers(0, 2**32))
def test_a_mixture_of_runs(runs: list[tuple[int, int]], seed: int) -> None:
    chance = random.Random(seed)
    check([body(kind, chance) for kind, count in runs for _ in range(count)][: RING_BYTES // 184])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_run_of_one_kind_is_the_ring_itself(kind: int) -> None:
    count = 300
    memory, views = check([body(kind, random.Random(kind)) for _ in range(count)])
    assert [(name, len(view)) for name, view in views.items()] == [(KINDS[kind], count)]
    assert np.shares_memory(views[KINDS[kind]], memory)


def test_kinds_of_one_structure_share_its_columns() -> None:
    chance = random.Random(1)
    _, views = check([body((3, 4, 5)[i % 3], chance) for i in range(300)])
    assert views["koord_cgroup"]["kind"].tolist() == [3, 4, 5] * 100


def test_unknown_kinds_and_sizes_are_counted() -> None:
    chance = random.Random(2)
    odd = [struct.pack("<II", 99, 80) + bytes(72), struct.pack("<II", 2**32 - 1, 80) + bytes(72), body(1, chance, 64)]
    good = [body(1, chance), body(6, chance)]
    for records in (odd, odd * 100, [*odd, *good] * 20, [odd[0]] * 300, [bytes(80)] * 300):
        check(records)


def test_every_kind_has_its_structure() -> None:
    assert STRUCTS.keys() == KIND_NUMBERS.keys()
    assert set(STRUCTS.values()) <= LAYOUTS.keys()


@pytest.mark.parametrize("name", [*sorted(set(STRUCTS.values())), "koord_memcg"])
def test_a_dtype_has_the_layout(name: str) -> None:
    size, offsets = expected_offsets(name)
    dtype = dtype_of(name)
    assert dtype.itemsize == size
    assert dtype.fields is not None
    assert {field: dtype.fields[field][1] for field in offsets if field != "head"} == {
        field: at for field, at in offsets.items() if field != "head"
    }
