"""An hour of a node with 110 pods, second by second: the usage that its agent would measure.

Made with a seed, of what a mixed node has: daemons that idle, services with a load that wanders and noise, batch jobs
in phases, and jobs that come and go. A pod's CPU jumps from one second to the next as measured rates do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from koordebpf.state.series import kinds
from koordebpf.state.series.kinds import SeriesKey
from koordebpf.units import GIB, MIB

CAPACITY_MILLICPU, CAPACITY_BYTES = 32_000, 128 * GIB
PODS = 110


@dataclass
class PlayedPod:
    """A pod of the hour."""

    name: str
    qos: str
    priority: int


@dataclass
class Load(PlayedPod):
    """One with `cpu` and `memory` of a second. `until` is when its job ends and another takes its place."""

    cpu: Callable[[int], float]
    memory: Callable[[int], float]
    until: float = math.inf


class SeededHour:
    """Plays second by second: `samples(second)` has each key's value, `pods` are those of that second."""

    def __init__(self, seed: int = 7, pods: int = PODS) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self.pods: list[Load] = [self._load(number, 0) for number in range(pods)]

    def samples(self, second: int) -> Iterator[tuple[SeriesKey, float]]:
        for number, load in enumerate(self.pods):
            if second >= load.until:
                self.pods[number] = self._load(number, second)
        cpu_sum = memory_sum = 0.0
        for load in self.pods:
            cores, used_bytes = load.cpu(second), load.memory(second)
            cpu_sum += cores
            memory_sum += used_bytes
            yield (kinds.POD_CPU, f"uid-{load.name}"), cores
            yield (kinds.POD_MEMORY, f"uid-{load.name}"), used_bytes
        system_cores = 0.8 + 0.15 * abs(self._random.gauss(0, 1))
        system_bytes = 3 * GIB + 20 * MIB * math.sin(second / 700) + self._random.gauss(0, 2 * MIB)
        yield (kinds.SYSTEM_CPU,), system_cores
        yield (kinds.SYSTEM_MEMORY,), system_bytes
        yield (kinds.NODE_CPU,), cpu_sum + system_cores
        yield (kinds.NODE_MEMORY,), memory_sum + system_bytes

    def _load(self, number: int, now: int) -> Load:
        self._count += 1
        name, draw = f"p{number:03}-{self._count}", self._random
        share = number / PODS
        if share < 0.3:
            return self._daemon(name)
        if share < 0.75:
            return self._service(name)
        load = self._batch(name)
        if share > 0.93:  # jobs
            load.until = now + draw.uniform(400, 1500)
        return load

    def _daemon(self, name: str) -> Load:
        draw = self._random
        base, used = draw.uniform(0.001, 0.012), draw.uniform(15, 90) * MIB
        return Load(
            name,
            "Burstable",
            9000,
            lambda _: max(draw.gauss(base, base), 0.0),
            lambda second: used + 0.2 * MIB * math.sin(second / 50),
        )

    def _service(self, name: str) -> Load:
        draw = self._random
        base, used, phase = draw.uniform(0.05, 0.7), draw.uniform(0.2, 1.6) * GIB, draw.uniform(0, 7000)
        wander = 0.0

        def cpu(second: int) -> float:
            nonlocal wander
            wander = 0.998 * wander + draw.gauss(0, 0.006)
            level = base * (1 + 0.25 * math.sin((second + phase) / 1100)) * math.exp(wander)
            return max(level * draw.gauss(1, 0.35), 0.0)

        return Load(name, "Burstable", 9000, cpu, lambda second: used * (1 + 0.02 * math.sin((second + phase) / 900)))

    def _batch(self, name: str) -> Load:
        draw = self._random
        peak, used, period, start = draw.uniform(0.3, 1.5), draw.uniform(0.5, 2) * GIB, draw.uniform(300, 1500), 0
        start = int(draw.uniform(0, period))

        def cpu(second: int) -> float:
            is_busy = ((second + start) // period) % 2 == 0
            return max(draw.gauss(peak, peak * 0.1) if is_busy else draw.gauss(0.01, 0.01), 0.0)

        def memory(second: int) -> float:
            return used * (0.4 + 0.6 * (((second + start) % period) / period))

        return Load(name, "BestEffort", 5500, cpu, memory)
