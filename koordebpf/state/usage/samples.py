"""The samples of one round, by series. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordebpf.state.series.kinds import (
    CONTAINER_CPU,
    CONTAINER_MEMORY,
    CONTAINER_MEMORY_WITH_PAGE_CACHE,
    CONTAINER_THROTTLED,
    HOST_APPLICATION_CPU,
    HOST_APPLICATION_MEMORY,
    HOST_APPLICATION_MEMORY_WITH_PAGE_CACHE,
    POD_CPU,
    POD_MEMORY,
    POD_MEMORY_WITH_PAGE_CACHE,
    POD_THROTTLED,
    SYSTEM_CPU,
    SYSTEM_MEMORY,
    SYSTEM_NUMA_CPU,
    SYSTEM_NUMA_MEMORY,
    SeriesKey,
)

# What is measured of a cgroup of each kind: CPU, memory, that with page cache, throttled ratio.
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pod": (POD_CPU, POD_MEMORY, POD_MEMORY_WITH_PAGE_CACHE, POD_THROTTLED),
    "container": (CONTAINER_CPU, CONTAINER_MEMORY, CONTAINER_MEMORY_WITH_PAGE_CACHE, CONTAINER_THROTTLED),
    "host_application": (HOST_APPLICATION_CPU, HOST_APPLICATION_MEMORY, HOST_APPLICATION_MEMORY_WITH_PAGE_CACHE),
}

Samples = dict[SeriesKey, float]


class GroupKeys:
    """The series of many cgroups, by cgroup id. A kind that has no such series has no key."""

    def __init__(self, groups: Mapping[int, tuple[str, str]]) -> None:
        """Take kind and name of each."""
        self.of: tuple[dict[int, SeriesKey], ...] = ({}, {}, {}, {})  # as `_KINDS`
        for group, (kind, name) in groups.items():
            for keys, series in zip(self.of, _KINDS.get(kind, ()), strict=False):
                keys[group] = (series, name)

    def fill(
        self, into: Samples, which: int, values: Mapping[int, float], only: Mapping[int, float] | None = None
    ) -> None:
        """Add the values of those cgroups that have such a series; of those in `only`, where it is given."""
        keys = self.of[which].items()
        if only is None:
            into.update({key: values[group] for group, key in keys if group in values})
        else:
            into.update({key: values[group] for group, key in keys if group in only and group in values})


def system_samples(
    cpu: float | None,
    held_bytes: float | None,
    within: tuple[float, float],
    numa_cpu: Mapping[int, float],
    numa_held: Mapping[int, float],
) -> Samples:
    """Return what all that is neither pod nor host application uses, never below zero.

    Args:
        cpu: of the node, in cores; None: not known.
        held_bytes: of the node, without page cache.
        within: the same of pods and host applications together.
        numa_cpu: of each NUMA node, in cores; the system's is shared out by it.
        numa_held: memory of each NUMA node, less that of pods.
    """
    samples: Samples = {}
    if cpu is not None:
        system = samples[SYSTEM_CPU,] = max(cpu - within[0], 0.0)
        together = sum(numa_cpu.values())
        for node, used in numa_cpu.items():
            samples[SYSTEM_NUMA_CPU, str(node)] = system * used / together if together > 0 else 0.0
    if held_bytes is not None:
        samples[SYSTEM_MEMORY,] = max(held_bytes - within[1], 0.0)
    for node, held in numa_held.items():
        samples[SYSTEM_NUMA_MEMORY, str(node)] = max(held, 0.0)
    return samples
