"""GPUs in a NodeMetric, as koordlet's collectNodeGPUMetric and collectPodGPUMetric write them."""

from __future__ import annotations

from typing import Any

from koordebpf.jobs.node_metric.sending import limits, settled, status_patch
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.state.series import kinds
from koordebpf.units import GIB
from tests.jobs.node_metric.test_node_metric_status import Samples, pod, status

_A, _B = ("0", "GPU-a"), ("10", "GPU-b")


def samples(*, used_bytes: float = GIB, percent: float = 50.9) -> Samples:
    made = Samples().node().pod("trains").pod("idles")
    for gpu in (_B, _A):
        made.fill((kinds.NODE_GPU_CORE, *gpu), percent, seconds=60)
        made.fill((kinds.NODE_GPU_MEMORY, *gpu), used_bytes, seconds=60)
        made.fill((kinds.NODE_GPU_MEMORY_TOTAL, *gpu), 16 * GIB, seconds=60)
    made.fill((kinds.POD_GPU_CORE, "uid-trains", *_B), percent, seconds=60)
    return made.fill((kinds.POD_GPU_MEMORY, "uid-trains", *_B), used_bytes, seconds=60)


def gpu(minor: int, uuid: str, core: str = "50", memory: str = "1Gi", ratio: str = "6") -> dict[str, Any]:
    resources = {
        "koordinator.sh/gpu-core": core,
        "koordinator.sh/gpu-memory": memory,
        "koordinator.sh/gpu-memory-ratio": ratio,
    }
    return {"type": "gpu", "id": uuid, "minor": minor, "health": False, "resources": resources}


def test_the_node_and_the_pods_that_use_them_have_their_gpus_by_minor_number() -> None:
    made = status(samples(), pod("trains"), pod("idles"))
    node = made["nodeMetric"]["nodeUsage"]
    assert node["resources"] == {"cpu": "2", "memory": "1Gi"}
    assert node["devices"] == [gpu(0, "GPU-a"), gpu(10, "GPU-b")]
    idles, trains = made["podsMetric"]
    assert trains["podUsage"]["devices"] == [gpu(10, "GPU-b")]
    assert "devices" not in idles["podUsage"]


def test_a_gpu_that_was_not_measured_is_left_out_and_is_not_zero() -> None:
    made = samples()
    gone = ("3", "GPU-gone")  # measured before the window alone
    for kind in (kinds.NODE_GPU_CORE, kinds.NODE_GPU_MEMORY, kinds.NODE_GPU_MEMORY_TOTAL):
        made.fill((kind, *gone), 1.0, seconds=60, ago_s=600)
    unknown = ("4", "GPU-whose-memory-the-driver-does-not-tell")
    made.fill((kinds.NODE_GPU_CORE, *unknown), 1.0, seconds=60)
    made.fill((kinds.NODE_GPU_MEMORY_TOTAL, *unknown), GIB, seconds=60)
    devices = status(made)["nodeMetric"]["nodeUsage"]["devices"]
    assert [each["id"] for each in devices] == ["GPU-a", "GPU-b"]


def test_a_gpu_that_moved_is_sent_and_one_that_did_not_is_not() -> None:
    within = limits(NodeMetricSettings(), 16_000, 64 * GIB)
    base = status(samples(), pod("trains"))
    assert settled(base, status(samples(percent=51.5, used_bytes=GIB + 1000), pod("trains")), within) == base
    moved = settled(base, status(samples(percent=60), pod("trains")), within)
    cores = b'"/status/podsMetric/0/podUsage/devices/0/resources/koordinator.sh~1gpu-core","value":"60"'
    assert cores in status_patch("7", base, moved)
    assert status_patch("7", base, moved).count(b'"op"') == 4  # the version, two of the node, one of the pod


def test_a_gpu_that_was_idle_and_is_used_at_all_is_sent() -> None:
    within = limits(NodeMetricSettings(), 16_000, 64 * GIB)
    base = status(samples(percent=0))
    made = settled(base, status(samples(percent=1)), within)
    assert made["nodeMetric"]["nodeUsage"]["devices"][0]["resources"]["koordinator.sh/gpu-core"] == "1"
