"""GPUs in the usages of a NodeMetric. Pure.

Source: koordinator pkg/koordlet/statesinformer/impl/states_nodemetric.go, collectNodeGPUMetric;
apis/scheduling/v1alpha1/device_types.go; apis/extension/device_share.go.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from koordebpf.quantity import memory_text
from koordebpf.state.series import kinds
from koordebpf.state.series.store import SeriesStore

Json = dict[str, Any]

GPU_CORE: Final = "koordinator.sh/gpu-core"
GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"

_Gpu = tuple[str, str]  # minor number and UUID, as in the keys of series


class Devices:
    """What a node and its pods use of GPUs: averages over a window of what the collector of GPUs appended.

    A GPU is left out where its usage or its memory as a whole was not measured in the window.
    """

    def __init__(self, usage: SeriesStore, now_ns: int, window_ns: int) -> None:
        """Look which GPUs there are, and who used them."""
        self._usage = usage
        self._window = now_ns, window_ns
        self._of_node: list[_Gpu] = [(minor, uuid) for _, minor, uuid in usage.keys(kinds.NODE_GPU_CORE)]
        self._of_pods: dict[str, list[_Gpu]] = defaultdict(list)
        for _, uid, minor, uuid in usage.keys(kinds.POD_GPU_CORE) if self._of_node else ():
            self._of_pods[uid].append((minor, uuid))

    def of_node(self) -> list[Json]:
        """Return `nodeUsage.devices`, by minor number."""
        return self._used(self._of_node, (kinds.NODE_GPU_CORE,), (kinds.NODE_GPU_MEMORY,))

    def of_pod(self, uid: str) -> list[Json]:
        """Return `podUsage.devices` of a pod, by minor number."""
        return self._used(self._of_pods.get(uid, []), (kinds.POD_GPU_CORE, uid), (kinds.POD_GPU_MEMORY, uid))

    def _used(self, gpus: list[_Gpu], core: tuple[str, ...], memory: tuple[str, ...]) -> list[Json]:
        found = []
        for minor, uuid in sorted(gpus, key=lambda gpu: int(gpu[0])):
            percent = self._usage.query((*core, minor, uuid), *self._window, "avg")
            used = self._usage.query((*memory, minor, uuid), *self._window, "avg")
            whole = self._usage.query((kinds.NODE_GPU_MEMORY_TOTAL, minor, uuid), *self._window, "latest")
            if percent is None or used is None or not whole:
                continue
            resources = {
                GPU_CORE: str(int(percent)),
                GPU_MEMORY: memory_text(int(used)),
                GPU_MEMORY_RATIO: str(int(100 * used / whole)),
            }
            # koordlet does not know whether a GPU is well, and its field has to be there.
            found.append({"type": "gpu", "id": uuid, "minor": int(minor), "health": False, "resources": resources})
        return found
