"""What is asked of perf_event_open(2), byte for byte."""

from __future__ import annotations

import struct

import pytest

from koordebpf.kernel.cgroup.perf_events import CYCLES, INSTRUCTIONS, Event, event_attr


@pytest.mark.parametrize(("event", "config"), [(CYCLES, 0), (INSTRUCTIONS, 1)])
def test_an_event_is_counted_in_its_group_with_its_times_and_never_sampled(event: Event, config: int) -> None:
    made = event_attr(event, 1)
    assert len(made) == 112
    kind, size, asked, period, sample, read_format, flags = struct.unpack_from("<IIQQQQQ", made)
    assert (kind, size, asked) == (0, 112, config)  # PERF_TYPE_HARDWARE, PERF_ATTR_SIZE_VER5
    assert (period, sample) == (0, 0)
    assert read_format == 0b1011  # time enabled, time running, group
    assert flags == 1  # disabled
    assert made[48:] == bytes(64)
