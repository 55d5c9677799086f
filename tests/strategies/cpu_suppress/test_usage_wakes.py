"""Suppression woken by what pods use: looks between two rounds, the rounds that they bring, and the rest after them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cpu.collector import BurstLook
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.loop import Loop
from koordebpf.strategies.cpu_suppress.choose import BeAmount
from koordebpf.strategies.cpu_suppress.run import Suppression
from koordebpf.strategies.cpu_suppress.sched_tracing import WakeMetrics
from koordebpf.strategies.cpu_suppress.values import WakeSettings
from koordebpf.strategies.cpu_suppress.wake import SuppressionWake, open_wake
from koordebpf.units import NS_PER_MS, NS_PER_S

# Of ten CPUs the last round left two to latency-sensitive pods and one to host applications.
LEFT = BeAmount(
    be_millicpu=4_000,
    capacity_millicpu=10_000,
    threshold_percent=70,
    pods_millicpu=2_000,
    host_applications_millicpu=1_000,
    system_millicpu=0,
)
MORE = BurstLook(others_millicpu=4_000, best_effort_millicpu=5_000)
AS_LEFT = replace(MORE, others_millicpu=3_000)
ROSE = "latency-sensitive pods use more, 4 CPUs used where 3 CPUs were left"


class Cpus:
    """What the last round of suppression left, and who uses the CPUs; `looks` were taken."""

    def __init__(self) -> None:
        self.amount: BeAmount | None = LEFT
        self.used: BurstLook | None = AS_LEFT
        self.looks = 0

    def sample_burst(self, _now_ns: int) -> BurstLook | None:
        self.looks += 1
        return self.used


class Waits:
    """The loop's part: calls its looks when a test says so."""

    def __init__(self) -> None:
        self.looks: list[Callable[[int], int]] = []
        self.wakes = 0

    def set_timer(self, look: Callable[[int], int]) -> None:
        self.looks.append(look)

    def stop_timer(self, look: Callable[[int], int]) -> None:
        self.looks.remove(look)

    def wake(self) -> None:
        self.wakes += 1


class Rig:
    def __init__(self, folder: Path) -> None:
        self.now_ns = 1000 * NS_PER_S
        self.cpus, self.loop, self.metrics = Cpus(), Waits(), WakeMetrics()
        self.wake = SuppressionWake(
            WakeSettings(pressure=False),
            ControllerMount(2, folder),
            CgroupIndex(),
            cast("CpuSampler", self.cpus),
            cast("Suppression", self.cpus),
            cast("Loop", self.loop),
            self.metrics,
        )

    def between(self, after_ms: int = 0) -> int:
        """Let the loop look after so long; return in how many milliseconds it looks again."""
        self.now_ns += after_ms * NS_PER_MS
        (look,) = self.loop.looks
        return (look(self.now_ns) - self.now_ns) // NS_PER_MS

    def why(self, after_ms: int = 0) -> str | None:
        """Return why a round is worth it after so long."""
        self.now_ns += after_ms * NS_PER_MS
        return self.wake.poll(self.now_ns)

    @property
    def due_ms(self) -> int | None:
        return None if self.wake.due_ns is None else (self.wake.due_ns - self.now_ns) // NS_PER_MS


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_while_they_use_what_was_left_nothing_is_woken(rig: Rig) -> None:
    assert rig.between() == 50
    assert (rig.loop.wakes, rig.why(), rig.due_ms) == (0, None, None)
    assert rig.metrics.wakes == {}


def test_a_rise_ends_the_wait_and_is_followed_by_a_round_at_once(rig: Rig) -> None:
    rig.cpus.used = MORE
    rig.between()
    rig.between(50)
    assert (rig.loop.wakes, rig.cpus.looks) == (1, 1)  # what is seen is seen, until it is taken
    assert rig.why() == ROSE
    assert rig.metrics.wakes == {("usage", "round"): 1}


def test_another_look_follows_a_round_and_none_follows_one_that_shows_nothing(rig: Rig) -> None:
    rig.cpus.used = MORE
    rig.between()
    rig.why()
    assert rig.due_ms == 30
    rig.between(29)
    assert rig.cpus.looks == 1  # meanwhile nothing else looks
    assert rig.why() is None
    assert rig.why(1) == ROSE
    rig.cpus.used = AS_LEFT
    assert rig.why(30) is None
    assert rig.due_ms is None
    assert rig.cpus.looks == 3
    assert rig.metrics.wakes == {("usage", "round"): 2, ("usage", "nothing"): 1}


def test_after_four_rounds_it_rests_until_a_second_after_the_first(rig: Rig) -> None:
    rig.cpus.used = MORE
    rig.between()
    assert [rig.why(30 * at) for at in (0, 1, 1, 1)] == [ROSE] * 4
    assert rig.due_ms is None
    looks = rig.cpus.looks
    assert rig.between() == 1000 - 90
    assert rig.cpus.looks == looks
    rig.between(1000 - 90)
    assert rig.why() == ROSE


@pytest.mark.parametrize("used", [None, replace(MORE, best_effort_millicpu=99)], ids=["not known", "idle"])
def test_while_there_is_nothing_to_take_it_looks_less_often(used: BurstLook | None, rig: Rig) -> None:
    rig.cpus.used = used
    assert rig.between() == 500
    assert rig.loop.wakes == 0


def test_while_no_pod_is_suppressed_it_does_not_look(rig: Rig) -> None:
    rig.cpus.used, rig.cpus.amount = MORE, None
    assert rig.between() == 1000
    assert rig.cpus.looks == 0


def test_a_rise_is_nothing_once_no_pod_is_suppressed(rig: Rig) -> None:
    rig.cpus.used = MORE
    rig.between()
    rig.cpus.amount = None
    assert (rig.why(), rig.due_ms) == (None, None)


def test_what_cannot_be_measured_is_worth_no_round(rig: Rig) -> None:
    rig.cpus.used = MORE
    rig.between()
    rig.why()
    rig.cpus.used = None
    assert rig.why(30) is None


def test_where_nothing_is_to_wake_it_nothing_is_opened(rig: Rig) -> None:
    settings = WakeSettings(pressure=False, usage=False)
    cpus, suppression, loop = cast("CpuSampler", rig.cpus), cast("Suppression", rig.cpus), cast("Loop", rig.loop)
    with contextlib.ExitStack() as stack:
        assert open_wake(settings, CgroupIndex(), cpus, suppression, loop, rig.metrics, stack) is None


def test_closed_it_looks_no_more(rig: Rig) -> None:
    rig.wake.close()
    assert rig.loop.looks == []
