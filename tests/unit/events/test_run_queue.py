"""Records and histograms of the scheduler's object as values."""

from __future__ import annotations

import struct

import pytest

from koordebpf.errors import DecodeError, SupportError
from koordebpf.events.run_queue import (
    LAYOUTS,
    SLOTS,
    RunQueueHistogram,
    RunQueueWait,
    added,
    check_layout,
    decode_histograms,
    decode_wait,
)


def group(count: int, total_ns: int, **slots: int) -> bytes:
    hist = [slots.get(f"slot_{index}", 0) for index in range(SLOTS)]
    return struct.pack(f"<IIQQ{SLOTS}I", 1, 0, count, total_ns, *hist)


def test_a_wait_is_decoded():
    assert decode_wait(struct.pack("<4QII", 9, 7, 4_000_000, 8, 23, 0)) == RunQueueWait(9, 7, 4_000_000, 8, 23)


@pytest.mark.parametrize("size", [0, 39, 41])
def test_another_length_is_refused(size):
    with pytest.raises(DecodeError, match="40 bytes"):
        decode_wait(bytes(size))


def test_cgroups_without_a_wait_have_no_histogram():
    groups = [((7).to_bytes(8, "little"), group(3, 5_000, slot_2=3)), ((8).to_bytes(8, "little"), group(0, 0))]
    found = decode_histograms(groups)
    assert list(found) == [7]
    assert (found[7].count, found[7].total_ns, found[7].slots[2], sum(found[7].slots)) == (3, 5_000, 3, 3)


def test_histograms_add_up():
    one = RunQueueHistogram(2, 10, (2, *(0,) * (SLOTS - 1)))
    other = RunQueueHistogram(1, 7, (0, 1, *(0,) * (SLOTS - 2)))
    assert added([one, other]) == RunQueueHistogram(3, 17, (2, 1, *(0,) * (SLOTS - 2)))
    assert added([]) == RunQueueHistogram() == RunQueueHistogram(0, 0, (0,) * SLOTS)


def test_a_drift_is_refused():
    right = (40, {name: 8 * at for at, (name, _) in enumerate(LAYOUTS["koord_run_queue_wait"])} | {"reserved": 36})
    check_layout("koord_run_queue_wait", right)
    with pytest.raises(SupportError, match="koord_run_queue_wait"):
        check_layout("koord_run_queue_wait", (48, right[1]))
