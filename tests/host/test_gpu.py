"""Usage of GPUs by what NVML says. These machines have no GPU: a library of the tests' own stands for the driver's."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from koordebpf.demo.node import remove_subtree
from koordebpf.errors import SupportError
from koordebpf.jobs.hardware.gpu import GpuCollector
from koordebpf.jobs.hardware.loop import ContainerCgroup
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.host.gpu import Gpu, GpuProcess, Nvml
from koordebpf.state.series.kinds import KINDS
from koordebpf.state.series.store import NodeSeries, node_series
from koordebpf.units import GIB, NS_PER_S
from tests.contract.apiserver import until
from tests.support.loads.workloads import BUILD

FAKE = BUILD / "fake_nvml.so"
TWO = "gpu 0 GPU-a\ngpu 3 GPU-b\n"
A, B = Gpu(0, "GPU-a", 16 * GIB), Gpu(3, "GPU-b", 16 * GIB)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the library answers from."""
    path = tmp_path / "said"
    path.write_text(TWO)
    monkeypatch.setenv("FAKE_NVML", str(path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(FAKE)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return path


@pytest.fixture
def nvml(said: Path) -> Iterator[Nvml]:
    made = Nvml()
    yield made
    made.close()


def test_the_drivers_library_is_found_as_the_driver_names_it(said: Path, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").symlink_to(FAKE)
    said.write_text(f"{TWO}process 1 42 {GIB}\n")
    code = "from koordebpf.kernel.host.gpu import Nvml; print(Nvml().processes())"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str((GpuProcess(B, 42, 0, GIB),))


def test_without_driver_or_package_it_says_what_is_missing(said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", "/none")
    with pytest.raises(SupportError, match="Driver Not Loaded"):
        Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    with pytest.raises(SupportError, match=r"koordebpf\[gpu\]"):
        Nvml()


def test_a_process_has_its_memory_and_its_newest_sample_on_each_gpu(said: Path, nvml: Nvml) -> None:
    assert nvml.gpus == (A, B)
    assert nvml.processes() == ()
    said.write_text(f"{TWO}process 0 7 {GIB}\nprocess 1 7 5\nprocess 1 9 6\nsample 1 7 30 200\nsample 1 7 20 100\n")
    assert nvml.processes() == (GpuProcess(A, 7, 0, GIB), GpuProcess(B, 7, 30, 5), GpuProcess(B, 9, 0, 6))
    # Nothing newer: it was idle since.
    assert nvml.processes()[1] == GpuProcess(B, 7, 0, 5)


def test_memory_that_the_driver_does_not_tell_is_unknown(said: Path, nvml: Nvml) -> None:
    said.write_text(f"{TWO}process 0 7 {(1 << 64) - 1}\n")
    assert nvml.processes() == (GpuProcess(A, 7, 0, None),)


@pytest.fixture
def containers() -> Iterator[list[ContainerCgroup]]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups")
    hierarchy = find_memory_hierarchy()
    top = hierarchy.mount_point / f"koordebpf-gpu-{os.getpid()}"
    names = ("one", "two/nested")
    for name in names:
        (top / name).mkdir(parents=True)
    yield [ContainerCgroup("uid-a", "c-one", f"{top.name}/one"), ContainerCgroup("uid-a", "c-two", f"{top.name}/two")]
    remove_subtree(top, hierarchy.version)


def latest(series: NodeSeries, *key: str) -> float | None:
    assert len(key) == len(KINDS[key[0]]) + 1
    return series.query(key, time.monotonic_ns(), 60 * NS_PER_S, "latest")


def test_pods_and_containers_have_the_sums_of_their_processes(said: Path, containers: list[ContainerCgroup]) -> None:
    mount = find_memory_hierarchy().mount_point
    series = node_series()
    collector = GpuCollector(Nvml(), lambda: containers, mount)
    top = containers[0].path.partition("/")[0]
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as two:
        try:
            (mount / top / "one/cgroup.procs").write_text(f"{one.pid}")
            (mount / top / "two/nested/cgroup.procs").write_text(f"{two.pid}")
            uses = [f"process 1 {pid} {memory}" for pid, memory in ((one.pid, GIB), (two.pid, 2 * GIB), (1, 5))]
            uses += [f"sample 1 {pid} {percent} 100" for pid, percent in ((one.pid, 40), (two.pid, 20), (1, 1))]
            said.write_text(TWO + "\n".join(uses) + "\n")

            def measured() -> bool:
                collector.collect(time.monotonic_ns(), series)
                return latest(series, "node_gpu_core_usage", "3", "GPU-b") is not None

            until(measured, "a sample")
        finally:
            one.kill()
            two.kill()
            collector.close()
    assert latest(series, "node_gpu_core_usage", "3", "GPU-b") == 61
    assert latest(series, "node_gpu_memory_usage", "3", "GPU-b") == 3 * GIB + 5
    assert latest(series, "node_gpu_core_usage", "0", "GPU-a") == 0
    assert latest(series, "node_gpu_memory_total", "0", "GPU-a") == 16 * GIB
    assert latest(series, "pod_gpu_core_usage", "uid-a", "3", "GPU-b") == 60
    assert latest(series, "pod_gpu_memory_usage", "uid-a", "3", "GPU-b") == 3 * GIB
    assert latest(series, "container_gpu_core_usage", "c-one", "3", "GPU-b") == 40
    assert latest(series, "container_gpu_memory_usage", "c-two", "3", "GPU-b") == 2 * GIB
    assert latest(series, "pod_gpu_core_usage", "uid-a", "0", "GPU-a") is None


def test_a_driver_that_fails_is_said_once_and_measured_again_afterwards(
    said: Path, caplog: pytest.LogCaptureFixture
) -> None:
    series = node_series()
    said.write_text(f"{TWO}broken 15\n")
    nvml = Nvml()
    said.write_text(f"{TWO}broken 15\n")
    collector = GpuCollector(nvml, list, Path("/none"))

    def collect() -> bool:
        collector.collect(time.monotonic_ns(), series)
        return latest(series, "node_gpu_core_usage", "0", "GPU-a") is not None

    until(lambda: collect() or "usage of GPUs: not measured" in caplog.text, "the sentence")
    for _ in range(3):
        collect()
        time.sleep(0.02)
    assert caplog.text.count("usage of GPUs: not measured") == 1
    assert len(series) == 0
    said.write_text(TWO)
    until(collect, "a sample")
    collector.close()
