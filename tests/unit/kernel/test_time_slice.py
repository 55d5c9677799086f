"""A thread that asks for a short time slice, as the running kernel takes it."""

from __future__ import annotations

import ctypes
import os
import platform
import threading

import pytest

from koordebpf.kernel.proc.tasks import SHORTEST_NS, _SchedAttr, shorten_time_slice

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


def attributes() -> _SchedAttr:
    attr = _SchedAttr()
    size = ctypes.sizeof(attr)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(_SCHED_GETATTR[os.uname().machine], 0, ctypes.byref(attr), size, 0) == 0
    return attr


@pytest.mark.skipif(os.uname().machine not in _SCHED_GETATTR, reason="not this kind of machine: another architecture")
def test_a_threads_slice_is_shortened_and_its_nice_level_stays():
    found: list[tuple[str | None, int, int, int]] = []

    def ask() -> None:
        before = attributes().sched_nice
        problem = shorten_time_slice()
        after = attributes()
        found.append((problem, before, after.sched_nice, after.sched_runtime))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    ((problem, before, after, slice_ns),) = found
    assert problem is None
    assert before == after
    if kernel() >= (6, 12):
        assert slice_ns == SHORTEST_NS
        assert attributes().sched_runtime != SHORTEST_NS  # of this thread, which has not asked
