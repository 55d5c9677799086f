"""NVIDIA's GPUs and the processes on them, by NVML. The library is the driver's; nvidia-ml-py comes with the extra gpu.

Source:  docs.nvidia.com/deploy/nvml-api; koordinator pkg/koordlet/metricsadvisor/devices/gpu.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from koordebpf.errors import SupportError


class Gpu(msgspec.Struct, frozen=True):
    """One GPU; `minor` is N of /dev/nvidiaN."""

    minor: int
    uuid: str
    memory_bytes: int


class GpuProcess(msgspec.Struct, frozen=True):
    """What a process uses of a GPU. `core_percent`: of its time, 0 where the driver sampled nothing of the process.

    `pid` is as the driver sees it, in the machine's pid namespace. `memory_bytes` None: the driver does not tell.
    """

    gpu: Gpu
    pid: int
    core_percent: int
    memory_bytes: int | None


class Nvml:
    """The GPUs of this machine, found once."""

    def __init__(self) -> None:
        """Load the library.

        Raises:  SupportError: nvidia-ml-py is not installed, or there is no driver, or no GPU.
        """
        try:
            import pynvml
        except ImportError:
            raise SupportError(
                "GPUs", "nvidia-ml-py is not installed", "Install koordebpf with its extra: koordebpf[gpu]"
            ) from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise SupportError(
                "GPUs", f"NVML: {error}", "Mount the driver's libnvidia-ml.so.1 and /dev/nvidia*"
            ) from None
        try:
            self._gpus = self._find()
        except pynvml.NVMLError as error:
            self.close()
            raise SupportError("GPUs", f"NVML: {error}", "Look into the driver's log") from None
        # µs of the newest sample, by GPU: the driver keeps them for some seconds, and is asked for newer ones.
        self._seen_us = dict.fromkeys(self.gpus, 0)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that were found."""
        return tuple(self._gpus)

    def processes(self) -> tuple[GpuProcess, ...]:
        """Return the compute processes on all GPUs, by GPU and pid.

        Raises:  SupportError: the driver fails, as for a GPU that has fallen off the bus.
        Cost:    1 ms a GPU and more, in the driver.
        """
        try:
            return tuple(each for gpu, handle in self._gpus.items() for each in self._processes(gpu, handle))
        except self._nvml.NVMLError as error:
            raise SupportError("GPUs", f"NVML: {error}", "Look into the driver's log") from None

    def close(self) -> None:
        """Unload the library."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _find(self) -> dict[Gpu, Any]:
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return {self._gpu(each): each for each in handles}

    def _gpu(self, handle: Any) -> Gpu:
        nvml = self._nvml
        memory_bytes = nvml.nvmlDeviceGetMemoryInfo(handle).total
        return Gpu(nvml.nvmlDeviceGetMinorNumber(handle), _text(nvml.nvmlDeviceGetUUID(handle)), memory_bytes)

    def _processes(self, gpu: Gpu, handle: Any) -> list[GpuProcess]:
        busy = self._percents(gpu, handle)
        found = {each.pid: each.usedGpuMemory for each in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        return [GpuProcess(gpu, pid, busy.get(pid, 0), memory) for pid, memory in sorted(found.items())]

    # By pid, of the newest sample since the last look.
    def _percents(self, gpu: Gpu, handle: Any) -> dict[int, int]:
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us[gpu])
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_NOT_SUPPORTED):
                return {}
            raise
        percents: dict[int, int] = {}
        for each in sorted(samples, key=lambda sample: sample.timeStamp):
            percents[each.pid] = min(each.smUtil, 100)
            self._seen_us[gpu] = max(self._seen_us[gpu], each.timeStamp)
        return percents


def _text(value: str | bytes) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
