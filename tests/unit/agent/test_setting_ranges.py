"""Which numbers each setting takes: the least and the most of them, and nothing beyond."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, get_args, get_origin

import msgspec
import pytest

from koordebpf.configuration.schema import Setting, settings
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S

MINUTE, HOUR = 60 * NS_PER_S, 3600 * NS_PER_S
LEAST = 1e-9  # more than nothing
Range = tuple[float, float | None]

# The others: a ratio is 0 to 1, a percentage 0 to 100, and anything else 0 or more.
RANGES: Mapping[str, Range] = {
    "sampling.floor": (NS_PER_MS, None),
    "sampling.cap": (NS_PER_MS, 10 * NS_PER_S),
    "eviction.maxGraceSeconds": (1, None),
    "eviction.stall.fullPercent": (1, 99),
    "eviction.stall.seconds": (1, 120),
    "eviction.katalyst.sync": (NS_PER_MS, None),
    "eviction.katalyst.deadline": (10 * NS_PER_MS, 10 * NS_PER_S),
    "eviction.katalyst.inner.rssOveruse.factor": (LEAST, None),
    "eviction.katalyst.inner.systemMemory.freeMinimum": (0, 1 << 60),
    "eviction.katalyst.inner.systemMemory.somePercent": (0, 1 << 60),
    "eviction.katalyst.inner.systemMemory.podsPercent": (0, 1 << 60),
    "eviction.katalyst.inner.systemMemory.kswapdPages": (1, None),
    **{
        f"eviction.katalyst.inner.{plugin}.{factor}": (LEAST, None)
        for plugin in ("reclaimedNuma", "reclaimedResources")
        for factor in ("cpuFactor", "memoryFactor", "softCpuFactor", "softMemoryFactor")
    },
    "strategies.proactiveReclaim.podStallRatio": (LEAST, 1),
    "strategies.proactiveReclaim.sensitiveStallRatio": (LEAST, 1),
    "strategies.proactiveReclaim.stepPercent": (0, 10),
    "strategies.cpuBurst.raisePercent": (101, 400),
    "strategies.cpuBurst.lowerPercent": (1, 99),
    "strategies.cpuBurst.returnAfter": (0, 86_400),
    "strategies.systemConfig.mostMinFreePercent": (1, 100),
    "strategies.rdtResctrl.absoluteBandwidth": (1, 1 << 20),
    "strategies.memoryQos.mostPriority": (0, 12),
    "strategies.bePageCacheSuppress.refaultRate": (1, None),
    "strategies.bePageCacheSuppress.podRefaultRate": (1, None),
    "strategies.bePageCacheSuppress.stepPercent": (1, 100),
    "strategies.bePageCacheSuppress.gainPercent": (1, 100),
    "strategies.bePageCacheSuppress.step": (MIB, None),
    "strategies.bePageCacheSuppress.floor": (MIB, None),
    "strategies.bePageCacheSuppress.trial": (NS_PER_S, HOUR),
    "strategies.bePageCacheSuppress.rest": (NS_PER_S, HOUR),
    "strategies.bePageCacheSuppress.hold": (NS_PER_S, HOUR),
    "strategies.bePageCacheSuppress.podStallRatio": (LEAST, 1),
    "strategies.hooks.leastOomScoreAdj": (-1000, 1000),
    "wake.budgetRatio": (LEAST, 1),
    "wake.wait": (NS_PER_MS // 10, 10 * NS_PER_S),
    "wake.burstWindow": (10 * NS_PER_MS, 10 * NS_PER_S),
    "wake.rounds": (1, 20),
    "deadMan.after": (100 * NS_PER_MS, None),
    "prediction.cpuHalfLife": (MINUTE, None),
    "prediction.memoryHalfLife": (MINUTE, None),
    "prediction.trainEvery": (5 * NS_PER_S, 10 * MINUTE),
    "prediction.expire": (MINUTE, None),
    "prediction.checkpointEvery": (MINUTE, None),
    "prediction.checkpointsPerStep": (1, 1000),
    "series.keep": (NS_PER_S, 24 * HOUR),
    "series.budget": (MIB, None),
    "series.snapshot": (NS_PER_S, None),
    "nodeMetric.quiet": (30 * NS_PER_S, 10 * MINUTE),
    "nodeMetric.latest": (MINUTE, 10 * MINUTE),
    "nodeMetric.movedPercent": (0, 50),
    "nodeMetric.totalPercent": (0, 50),
    "nodeMetric.ignoredPercent": (0, 50),
    "nri.registrationTimeout": (100 * NS_PER_MS, MINUTE),
    "nri.backoff": (10 * NS_PER_MS, MINUTE),
    "nri.backoffCap": (NS_PER_S, 10 * MINUTE),
    "recorder.maxSize": (MIB, None),
    "report.podSeries": (0, 2000),
}
_BY_NAME: Mapping[str, Range] = {"Ratio": (0, 1), "Percent": (0, 100)}


def kind_of(setting: Setting) -> type | None:
    of = get_args(setting.type)[0] if get_origin(setting.type) is Annotated else setting.type
    return of if of in (int, float) else None


NUMBERS = {each.path: each for each in settings() if kind_of(each) is not None}


def is_taken(setting: Setting, value: float) -> bool:
    try:
        msgspec.convert(value, setting.type)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("path", NUMBERS)
def test_a_number_is_taken_in_its_range_alone(path: str) -> None:
    setting = NUMBERS[path]
    by_name = next((each for end, each in _BY_NAME.items() if path.endswith(end)), (0, None))
    lowest, highest = RANGES.get(path, by_name)
    step = 1 if kind_of(setting) is int else LEAST
    assert is_taken(setting, lowest)
    assert not is_taken(setting, lowest - step)
    if highest is not None:
        assert is_taken(setting, highest)
        assert not is_taken(setting, highest + step)


def test_each_range_is_that_of_a_setting() -> None:
    assert RANGES.keys() <= NUMBERS.keys()
