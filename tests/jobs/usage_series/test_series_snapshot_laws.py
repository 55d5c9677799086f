"""Whatever lies where a snapshot should: the agent starts, and what it measures is counted right."""

from __future__ import annotations

import struct
import tempfile
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.jobs.usage_series.snapshot import SnapshotWriter, restore_series
from koordebpf.state.series.kinds import NODE_CPU, POD_CPU
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_S

_HEAD = len(b"koordebpf.series/v1\n")
_FRAME = struct.Struct("<cII")


def whole() -> bytes:
    """Return a snapshot of two pods and the node, of 200 seconds."""
    store = SeriesStore()
    for second in range(1, 201):
        values = {(POD_CPU, "a"): second / 7, (POD_CPU, "b"): 1.0, (NODE_CPU,): second / 3}
        store.append_round(second * NS_PER_S, values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.snapshot"
        SnapshotWriter(path, store).write(200 * NS_PER_S)
        return path.read_bytes()


WHOLE = whole()


def restored(raw: bytes) -> SeriesStore:
    store = SeriesStore()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.snapshot"
        path.write_bytes(raw)
        restore_series(path, store, 201 * NS_PER_S)
    return store


def measures_on(store: SeriesStore) -> None:
    now_ns = 0
    for second in range(202, 302):
        now_ns = second * NS_PER_S
        store.append_round(now_ns, {(POD_CPU, "a"): 2.0, (NODE_CPU,): 3.0})
    for key in ((POD_CPU, "a"), (NODE_CPU,)):
        assert store.query(key, now_ns, 100 * NS_PER_S, "count") == 100
    assert store.query((POD_CPU, "a"), now_ns, 100 * NS_PER_S, "avg") == 2.0


@given(raw=st.binary(max_size=200), keeps=st.integers(0, 60))
def test_any_bytes(raw, keeps):
    measures_on(restored(WHOLE[:keeps] + raw))


@given(place=st.integers(_HEAD, len(WHOLE) - 1), value=st.integers(0, 255), cut=st.integers(0, 3))
def test_a_changed_byte_or_a_cut_is_noticed(place, value, cut):
    raw = bytearray(WHOLE)
    raw[place] = value
    store = restored(bytes(raw[: len(raw) - cut]))
    assert len(store) == (3 if bytes(raw) == WHOLE and not cut else 0)
    measures_on(store)


@given(place=st.integers(0, len(WHOLE)), value=st.integers(0, 255))
def test_a_changed_byte_whose_checksum_is_right_harms_no_new_sample(place, value):
    raw, at = bytearray(WHOLE), _HEAD
    while at < len(raw):
        tag, length, _ = _FRAME.unpack_from(raw, at)
        begin, end = at + _FRAME.size, at + _FRAME.size + length
        if begin <= place < end:
            raw[place] = value
            raw[at:begin] = _FRAME.pack(tag, length, zlib.crc32(raw[begin:end], zlib.crc32(tag)))
        at = end
    measures_on(restored(bytes(raw)))
