"""Proactive reclaim with swap: idle anonymous memory is swapped out before the node is short, and no pod is evicted."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.conftest import OTHER_MACHINE
from tests.host.live_agent import LiveAgent
from tests.support.nodes import MIB, NodeCgroup

LOADS = Path(__file__).parents[1] / "workloads/build"
NODE_MIB, IDLE_MIB, GROWS_MIB, RATE_MIB_S = 384, 160, 150, 2
THRESHOLD_PERCENT = 75  # 288 MiB: the idle pod and 128 MiB of the other one
WATCHED_S = GROWS_MIB / RATE_MIB_S + 20
CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates: {ProactiveReclaim: GATE}
strategies: {proactiveReclaim: {stepPercent: 10}}
"""


def started(*command: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)


def swapped_mib(pod: Path) -> int:
    return int((pod / "memory.swap.current").read_text()) // MIB


def evicted(memory_root: Path, folder: Path, *, is_on: bool) -> tuple[int, int]:
    """Let one pod idle and another one grow past the threshold; return pods evicted, and MiB of the first in swap."""
    with NodeCgroup(memory_root, 2, NODE_MIB * MIB) as node:
        (idle,), (grows,) = node.add_pod("idle"), node.add_pod("grows", priority=5000)
        folder.mkdir()
        manifest, config = folder / "pods.json", folder / "config.yaml"
        node.write_manifest(manifest, THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        config.write_text(CONFIG.replace("GATE", str(is_on).lower()))
        # It touches each page once, and peaks at no more than it keeps.
        loads = [started(LOADS / "holder", "--kind", "anon", "--mib", IDLE_MIB, "--cgroup", idle / "cgroup.procs",
                         "--hold", 600)]  # fmt: skip
        try:
            assert loads[0].stdout is not None
            assert loads[0].stdout.readline().startswith(b"ready")
            before = swapped_mib(node.pod_paths["idle"])
            given = "--pods", manifest, "--node-cgroup", node.path, "--config", config, "--executor", "cgroup"
            with LiveAgent(folder, *given, "--enforce") as agent:
                agent.becomes_ready()
                loads.append(started(LOADS / "hog", "--mib", GROWS_MIB, "--rate-mib-s", RATE_MIB_S, "--cgroup",
                                     grows / "cgroup.procs", "--hold", 600))  # fmt: skip
                end = time.monotonic() + WATCHED_S
                while time.monotonic() < end and all(each.poll() is None for each in loads):
                    time.sleep(0.5)
                killed = sum(each.poll() is not None for each in loads)
                swapped = swapped_mib(node.pod_paths["idle"]) - before
                print(f"gate {is_on}: {killed} evicted, {swapped} MiB of {IDLE_MIB} swapped out, node at "
                      f"{node.usage_bytes() // MIB} MiB\n{agent.log[-1500:]}")  # fmt: skip
                assert agent.stop() == 0
        finally:
            for each in loads:
                each.kill()
                each.communicate()
        return killed, swapped


@pytest.mark.slow
def test_idle_memory_in_swap_avoids_an_eviction(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path
) -> None:
    if hierarchy.version == 1 or len(Path("/proc/swaps").read_text().splitlines()) < 2:
        pytest.skip(f"{OTHER_MACHINE}it needs cgroup v2 and swap")
    without, _ = evicted(memory_cgroup, tmp_path / "off", is_on=False)
    with_it, swapped = evicted(memory_cgroup, tmp_path / "on", is_on=True)
    assert (without, with_it) == (1, 0)
    assert swapped >= 20
