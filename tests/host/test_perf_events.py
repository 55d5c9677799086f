"""Counters of cgroups by perf events. Where machines have no PMU, the kernel's software clocks stand for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.errors import CgroupGone, SupportError
from koordebpf.jobs.hardware.cpi import CpiCollector
from koordebpf.jobs.hardware.loop import ContainerCgroup
from koordebpf.kernel.cgroup.perf_events import CYCLES, INSTRUCTIONS, CgroupCounters, Event, find_perf_event_mount
from koordebpf.state.series.kinds import CONTAINER_CPI
from koordebpf.state.series.store import node_series
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.contract.apiserver import until
from tests.support.patience import patience

CPU_CLOCK, TASK_CLOCK = Event("cpu-clock", 1, 0), Event("task-clock", 1, 1)
CLOCKS = (TASK_CLOCK, CPU_CLOCK)
SPIN = [sys.executable, "-c", "while True: pass"]
CPUS = range(os.cpu_count() or 1)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    mount = find_perf_event_mount()
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root and a hierarchy of perf_event")
    path = mount / f"koordebpf-perf-{os.getpid()}"
    path.mkdir()
    (path / "child").mkdir()
    yield path
    (path / "child").rmdir()
    path.rmdir()


@contextlib.contextmanager
def spinning(cgroup: Path) -> Iterator[None]:
    with subprocess.Popen(SPIN) as process:
        (cgroup / "cgroup.procs").write_text(f"{process.pid}")
        try:
            yield
        finally:
            process.kill()


def counted(counters: CgroupCounters, for_s: float) -> tuple[int, ...]:
    counters.enable()
    time.sleep(for_s)
    counters.disable()
    counts = counters.read()
    assert counts is not None
    return counts


def test_a_cgroup_is_counted_with_what_lies_below_it(cgroup: Path) -> None:
    counters = CgroupCounters(cgroup, CLOCKS, CPUS)
    assert len(counters) == 2 * len(CPUS)
    with spinning(cgroup / "child"):
        before = time.monotonic_ns()
        counters.enable()
        until(lambda: (counters.read() or (0,))[0] > 100 * NS_PER_MS, "100 ms of CPU")
        counters.disable()
        took_ns = time.monotonic_ns() - before
        counts = counters.read()
    counters.close()
    assert counts is not None
    task, cpu = counts
    assert task <= 1.1 * took_ns
    assert cpu == pytest.approx(task, rel=0.1)  # both in one group: over the same time


def test_others_are_not_counted_and_what_is_idle_counts_nothing(cgroup: Path) -> None:
    counters = CgroupCounters(cgroup, CLOCKS, CPUS)
    with subprocess.Popen(SPIN) as other:
        try:
            assert counted(counters, 0.2) == (0, 0)
        finally:
            other.kill()
            counters.close()


def test_what_ran_before_and_after_the_window_is_not_counted(cgroup: Path) -> None:
    counters = CgroupCounters(cgroup, CLOCKS, CPUS)
    with spinning(cgroup):
        time.sleep(0.3)
        assert counters.read() == (0, 0)
        counted(counters, 0.1)
        stopped = counters.read()
        time.sleep(0.3)
        assert counters.read() == stopped
    counters.close()


def test_a_cgroup_that_is_gone_and_one_without_fds_left_leave_none_open(cgroup: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CgroupGone):
        CgroupCounters(cgroup / "none", CLOCKS, CPUS)
    with pytest.raises(SupportError, match="has no perf events"):
        CgroupCounters(Path("/proc"), CLOCKS, CPUS)
    with pytest.raises(SupportError, match="this processor has none"):
        CgroupCounters(cgroup, (CPU_CLOCK, Event("no such", 1, 999)), CPUS)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_without_a_pmu_it_says_so_once_and_appends_nothing(cgroup: Path, caplog: pytest.LogCaptureFixture) -> None:
    try:
        CgroupCounters(cgroup, (CYCLES, INSTRUCTIONS), CPUS).close()
    except SupportError:
        pass
    else:
        pytest.skip("this machine has a PMU")
    series = node_series()
    one = ContainerCgroup("uid", "id", cgroup.name)
    collector = CpiCollector(lambda: [one], lambda: CPUS, cgroup.parent, every_ns=1, window_ns=NS_PER_MS)
    for _ in range(20):
        collector.collect(time.monotonic_ns(), series)
        time.sleep(0.01)
    collector.close()
    assert caplog.text.count("cycles per instruction are not counted: performance counter cycles") == 1
    assert len(series) == 0


def test_each_container_is_counted_over_the_window(cgroup: Path) -> None:
    series = node_series()
    busy, idle = (
        ContainerCgroup("u", "busy", f"{cgroup.name}/child"),
        ContainerCgroup("u", "gone", f"{cgroup.name}/none"),
    )
    collector = CpiCollector(
        lambda: [idle, busy], lambda: CPUS, cgroup.parent, events=CLOCKS, every_ns=NS_PER_S, window_ns=200 * NS_PER_MS
    )
    keys = [(CONTAINER_CPI, "u", "busy", resource) for resource in ("cycle", "instruction")]

    def latest() -> list[float | None]:
        now_ns = time.monotonic_ns()
        collector.collect(now_ns, series)
        # Where the machine is busy, nothing of it may have run within one window.
        return [series.query(key, now_ns, 60 * NS_PER_S, "latest") or None for key in keys]

    with spinning(cgroup / "child"):
        task, cpu = until(lambda: (found := latest())[0] is not None and found, "a sample")
    collector.close()
    assert task is not None
    assert task > 0
    assert cpu == pytest.approx(task, rel=0.1)
    assert len(series) == 2


def test_containers_that_are_in_another_hierarchy_are_said_to_be_missing_once(
    cgroup: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = ContainerCgroup("u", "c", "kubepods/none")
    collector = CpiCollector(lambda: [one], lambda: CPUS, cgroup.parent, events=CLOCKS, every_ns=1, window_ns=NS_PER_MS)
    series = node_series()

    def said() -> int:
        collector.collect(time.monotonic_ns(), series)
        return caplog.text.count("no container has a cgroup below")

    until(said, "the sentence")
    for _ in range(5):
        said()
        time.sleep(0.01)
    collector.close()
    assert said() == 1


def test_closing_does_not_wait_for_the_window(cgroup: Path) -> None:
    one = ContainerCgroup("u", "c", cgroup.name)
    collector = CpiCollector(lambda: [one], lambda: CPUS, cgroup.parent, events=CLOCKS, window_ns=600 * NS_PER_S)
    collector.collect(time.monotonic_ns(), node_series())
    began = time.monotonic()
    collector.close()
    assert time.monotonic() - began < patience(10)
