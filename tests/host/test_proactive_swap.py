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
NODE_MIB, IDLE_MIB, GROWS_MIB, RATE_MIB_S = 384, 160, 150, 5
THRESHOLD_PERCENT = 75  # 288 MiB: the idle pod and 128 MiB of the other one
SWAPPED_MIB, SWAPPED_WITHIN_S = 40, 240.0  # an emulated CPU that has other machines beside it takes minutes for it
SETTLES_S = 10.0  # a node that is too full evicts within a second
GATE = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates: {ProactiveReclaim: %s}
strategies: {proactiveReclaim: {stepPercent: 10, mostZramPercent: 100}}
"""  # what others left in zram compresses badly, and would end it


def started(program: str, mib: int, container: Path, *arguments: object) -> subprocess.Popen[bytes]:
    joins = ("--cgroup", container / "cgroup.procs", "--hold", 600)
    command = [LOADS / program, "--mib", mib, *arguments, *joins]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)


def waits_for(load: subprocess.Popen[bytes], word: bytes) -> bool:
    """Tell whether it said so before it ended."""
    assert load.stdout is not None
    return any(line.startswith(word) for line in iter(load.stdout.readline, b""))


def swapped_mib(pod: Path) -> int:
    return int((pod / "memory.swap.current").read_text()) // MIB


def waits_until_swapped(pod: Path) -> None:
    ends_at = time.monotonic() + SWAPPED_WITHIN_S
    while swapped_mib(pod) < SWAPPED_MIB and time.monotonic() < ends_at:
        time.sleep(1.0)


def evicted(memory_root: Path, folder: Path, *, is_on: bool) -> tuple[int, int]:
    """Let one pod idle, then another one grow past the threshold; return pods evicted, and MiB of the first in swap."""
    folder.mkdir()
    with NodeCgroup(memory_root, 2, NODE_MIB * MIB) as node:
        (idle,), (grows,) = node.add_pod("idle"), node.add_pod("grows", priority=5000)
        manifest, config = folder / "pods.json", folder / "config.yaml"
        node.write_manifest(manifest, THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        config.write_text(GATE % str(is_on).lower())
        loads = [started("holder", IDLE_MIB, idle, "--kind", "anon")]  # it touches each page once
        try:
            assert waits_for(loads[0], b"ready")
            given = "--pods", manifest, "--node-cgroup", node.path, "--config", config, "--executor", "cgroup"
            with LiveAgent(folder, *given, "--enforce") as agent:
                agent.becomes_ready()
                if is_on:
                    waits_until_swapped(node.pod_paths["idle"])
                loads.append(started("hog", GROWS_MIB, grows, "--rate-mib-s", RATE_MIB_S))
                waits_for(loads[1], b"done")
                time.sleep(SETTLES_S)
                killed = sum(each.poll() is not None for each in loads)
                swapped = swapped_mib(node.pod_paths["idle"])
                print(f"gate {is_on}: {killed} evicted, {swapped} of {IDLE_MIB} MiB in swap")
                assert agent.stop() == 0
        finally:
            for each in loads:
                each.kill()
                each.communicate()
        return killed, swapped


@pytest.mark.slow
@pytest.mark.timeout(570)
def test_idle_memory_in_swap_avoids_an_eviction(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path
) -> None:
    if hierarchy.version == 1 or len(Path("/proc/swaps").read_text().splitlines()) < 2:
        pytest.skip(f"{OTHER_MACHINE}it needs cgroup v2 and swap")
    without, _ = evicted(memory_cgroup, tmp_path / "off", is_on=False)
    with_it, swapped = evicted(memory_cgroup, tmp_path / "on", is_on=True)
    assert (without, with_it) == (1, 0)
    assert swapped >= SWAPPED_MIB
