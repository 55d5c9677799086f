"""The names of a node's series: koordlet's metric kinds, and the properties that tell the series of a kind apart.

A key is the kind and then the values of its properties, in the order of `KINDS`: `("node_cpu_usage",)`,
`("pod_cpu_usage", uid)`, `("container_psi", uid, container_id, "mem", "10", "some")`.

What is saved of a series are its blocks, with the newest samples as one more. The times of their rounds are saved once
for each kind.

Units:   CPU in cores (`node_be` too, which koordlet has in millicores), memory in bytes, ratios from 0 to 1,
         `*_cpu_throttled` periods throttled per period.
Source:  koordinator pkg/koordlet/metriccache/metric_resources.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

NODE_CPU: Final = "node_cpu_usage"
NODE_MEMORY: Final = "node_memory_usage"
NODE_MEMORY_WITH_PAGE_CACHE: Final = "node_memory_usage_with_page_cache"
NODE_MEMORY_WITH_HOT_PAGES: Final = "node_memory_with_hot_page_usage"
NODE_MEMORY_COLD: Final = "node_memory_cold_page_size"
NODE_NUMA_CPU: Final = "node_numa_cpu_usage"
NODE_NUMA_MEMORY: Final = "node_numa_memory_usage"
NODE_BE: Final = "node_be"
SYSTEM_CPU: Final = "sys_cpu_usage"
SYSTEM_MEMORY: Final = "sys_memory_usage"
SYSTEM_NUMA_CPU: Final = "sys_numa_cpu_usage"
SYSTEM_NUMA_MEMORY: Final = "sys_numa_memory_usage"
POD_CPU: Final = "pod_cpu_usage"
POD_MEMORY: Final = "pod_memory_usage"
POD_MEMORY_WITH_PAGE_CACHE: Final = "pod_memory_usage_with_page_cache"
POD_MEMORY_WITH_HOT_PAGES: Final = "pod_memory_with_hot_page_usage"
POD_MEMORY_COLD: Final = "pod_memory_cold_page_size"
POD_THROTTLED: Final = "pod_cpu_throttled"
POD_PSI: Final = "pod_psi"
CONTAINER_CPU: Final = "container_cpu_usage"
CONTAINER_MEMORY: Final = "container_memory_usage"
CONTAINER_MEMORY_WITH_PAGE_CACHE: Final = "container_memory_usage_with_page_cache"
CONTAINER_MEMORY_WITH_HOT_PAGES: Final = "container_memory_with_hot_page_usage"
CONTAINER_MEMORY_COLD: Final = "container_memory_cold_page_size"
CONTAINER_THROTTLED: Final = "container_cpu_throttled"
CONTAINER_CPI: Final = "container_cpi"
CONTAINER_PSI: Final = "container_psi"
HOST_APPLICATION_CPU: Final = "host_application_cpu_usage"
HOST_APPLICATION_MEMORY: Final = "host_application_memory_usage"
HOST_APPLICATION_MEMORY_WITH_PAGE_CACHE: Final = "host_application_memory_usage_with_page_cache"
NODE_GPU_CORE: Final = "node_gpu_core_usage"  # percent of one GPU, as those below
NODE_GPU_MEMORY: Final = "node_gpu_memory_usage"
NODE_GPU_MEMORY_TOTAL: Final = "node_gpu_memory_total"  # koordlet keeps it beside its series
POD_GPU_CORE: Final = "pod_gpu_core_usage"
POD_GPU_MEMORY: Final = "pod_gpu_memory_usage"
CONTAINER_GPU_CORE: Final = "container_gpu_core_usage"
CONTAINER_GPU_MEMORY: Final = "container_gpu_memory_usage"
SeriesKey = tuple[str, ...]
BE_CPU: Final[SeriesKey] = (NODE_BE, "cpu", "usage")
BE_CPU_REQUEST: Final[SeriesKey] = (NODE_BE, "cpu", "request")
BE_CPU_LIMIT: Final[SeriesKey] = (NODE_BE, "cpu", "real-limit")
_POD, _CONTAINER, _NUMA = ("pod_uid",), ("container_id",), ("numa_node_id",)
_GPU = ("gpu_minor", "gpu_device_uuid")
_PSI = ("psi_resource", "psi_precision", "psi_degree")
# Properties by kind.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys((NODE_CPU, NODE_MEMORY, NODE_MEMORY_WITH_PAGE_CACHE), ()),
    **dict.fromkeys((NODE_MEMORY_WITH_HOT_PAGES, NODE_MEMORY_COLD, SYSTEM_CPU, SYSTEM_MEMORY), ()),
    **dict.fromkeys((NODE_NUMA_CPU, NODE_NUMA_MEMORY, SYSTEM_NUMA_CPU, SYSTEM_NUMA_MEMORY), _NUMA),
    NODE_BE: ("be_resource", "be_allocation"),
    **dict.fromkeys((POD_CPU, POD_MEMORY, POD_MEMORY_WITH_PAGE_CACHE, POD_THROTTLED), _POD),
    **dict.fromkeys((POD_MEMORY_WITH_HOT_PAGES, POD_MEMORY_COLD), _POD),
    POD_PSI: (*_POD, *_PSI),
    **dict.fromkeys((CONTAINER_CPU, CONTAINER_MEMORY, CONTAINER_MEMORY_WITH_PAGE_CACHE), _CONTAINER),
    **dict.fromkeys((CONTAINER_MEMORY_WITH_HOT_PAGES, CONTAINER_MEMORY_COLD, CONTAINER_THROTTLED), _CONTAINER),
    CONTAINER_CPI: (*_POD, *_CONTAINER, "cpi_resource"),
    CONTAINER_PSI: (*_POD, *_CONTAINER, *_PSI),
    **dict.fromkeys((HOST_APPLICATION_CPU, HOST_APPLICATION_MEMORY), ("host_app_name",)),
    HOST_APPLICATION_MEMORY_WITH_PAGE_CACHE: ("host_app_name",),
    **dict.fromkeys((NODE_GPU_CORE, NODE_GPU_MEMORY, NODE_GPU_MEMORY_TOTAL), _GPU),
    **dict.fromkeys((POD_GPU_CORE, POD_GPU_MEMORY), (*_POD, *_GPU)),
    **dict.fromkeys((CONTAINER_GPU_CORE, CONTAINER_GPU_MEMORY), (*_CONTAINER, *_GPU)),
}


class SavedSeries(msgspec.Struct, frozen=True, array_like=True):
    """One series; the oldest block is the first."""

    key: tuple[str, ...]
    blocks: tuple[bytes, ...]


class SavedRounds(msgspec.Struct, frozen=True, array_like=True):
    """The rounds of one kind: the number of the first, and when each was (CLOCK_MONOTONIC ns, 8 bytes each)."""

    kind: str
    base: int
    times: bytes
