"""Bursts beside 55 innocent best-effort pods: the one that bursts is evicted, every time, and no other.

A decision on usage from before the burst would find the hog small, and take the others in its place. There are 20 of
them, and a hundred in `make soak`: KOORDEBPF_BURSTS.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.support.agent_process import AgentProcess
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

BURSTS = int(os.environ.get("KOORDEBPF_BURSTS", "20"))
INNOCENTS = 55
NODE_MIB = 2048
THRESHOLD_PERCENT, LOWER_PERCENT = 50, 48
# Below the node's limit together with the innocents: were the agent late, nothing would be killed at all.
HOG_MIB = 1200


@pytest.fixture
def node(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> NodeCgroup:
    return NodeCgroup(memory_cgroup, hierarchy.version, NODE_MIB * MIB)


@pytest.mark.slow
def test_only_the_hog_is_evicted(node: NodeCgroup, tmp_path: Path) -> None:
    chance = random.Random(23)
    with node:
        (hog_container,) = node.add_pod("hog")
        hog_uid = node.pods[0]["metadata"]["uid"]
        innocents: list[Hog] = []
        try:
            for number in range(INNOCENTS):
                (container,) = node.add_pod(f"innocent-{number:02}")
                innocents.append(Hog(container, 4 + number % 9, hold_s=600))
            for innocent in innocents:
                innocent.wait_for("done")
            manifest = node.write_manifest(tmp_path / "pods.json", THRESHOLD_PERCENT, LOWER_PERCENT)
            with AgentProcess(node, manifest, audit=tmp_path / "audit.jsonl") as agent:
                for burst in range(BURSTS):
                    # Any growth and any phase of the agent's samples: at full speed in half of the bursts.
                    rate = chance.choice((0, 0, 1024, 2048))
                    hog = Hog(hog_container, HOG_MIB, rate_mib_s=rate, hold_s=60)
                    try:
                        hog.story(timeout_s=patience(30))
                    finally:
                        hog.stop()
                    assert hog.process.returncode == -9, f"burst {burst}: the hog ended by itself"
                    plan = agent.wait_for_eviction(burst)
                    assert [outcome["uid"] for outcome in plan["outcomes"]] == [hog_uid], f"burst {burst}"
                    dead = [at for at, innocent in enumerate(innocents) if _is_dead(innocent.process)]
                    assert not dead, f"burst {burst}: innocent pods {dead} went"
                assert len(agent.evictions()) == BURSTS
        finally:
            for innocent in innocents:
                innocent.stop()


def _is_dead(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None
