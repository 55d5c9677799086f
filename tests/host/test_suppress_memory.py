"""Best-effort growth that makes others stall for memory costs CPU first, by the kernel's own stalls."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.conftest import OTHER_MACHINE
from tests.host.live_agent import LiveAgent
from tests.host.rigs.held_node import HeldNode
from tests.host.rigs.live_node import or_skipped
from tests.host.test_suppress_agent import lines_of
from tests.support.loads.workloads import BUILD, Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB = 300
READ_MIB = 250  # more than the hog leaves
GROWN_MIB = 150
CONFIG = {
    "apiVersion": "koordebpf.io/v1alpha1",
    "kind": "AgentConfiguration",
    "featureGates": {"BEMemoryEvict": False},
    "suppress": {"memoryPressure": {"isOn": True, "startRatio": 0.001, "judge": "2s"}},
}


@pytest.fixture
def held(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[HeldNode]:
    with NodeCgroup(memory_cgroup, hierarchy.version, NODE_MIB * MIB) as node:
        made = or_skipped(lambda: HeldNode(node))
        yield made
        made.close()


def held_by_quota(agent: LiveAgent, file: Path) -> list[dict[str, str]]:
    changes = (line["change"] for line in lines_of(agent))
    return [each for each in changes if each["path"] == str(file) and "made others stall" in each["reason"]]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_who_makes_others_stall_loses_cpu_until_no_pod_stalls(held: HeldNode, tmp_path: Path, policy: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(CONFIG))
    (reader,) = (path for path in held.node.pod_paths["ls"].iterdir() if path.is_dir())
    command = [BUILD / "thrash", "/var/tmp", str(READ_MIB), "120", reader / "cgroup.procs"]
    with LiveAgent(tmp_path, "--config", config, *held.arguments(tmp_path, policy), "--enforce") as agent:
        # With policy cpuset there is no quota before: what is taken then is time all the same.
        agent.said(str(held.quota_file) if policy == "cfsQuota" else "watching the node cgroup")
        if "each stall is timed" not in agent.log:
            pytest.skip(f"{OTHER_MACHINE}no program times stalls here, and no pod is charged with them")
        thrash = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        grow = None
        try:
            deadline = time.monotonic() + patience(60)
            while not (taken := held_by_quota(agent, held.quota_file)):
                assert time.monotonic() < deadline, agent.log
                if grow is None or grow.process.poll() is not None:
                    if grow is not None:
                        grow.stop()
                    grow = Hog(held.container, GROWN_MIB, rate_mib_s=60, hold_s=1)
                time.sleep(0.2)
        finally:
            thrash.kill()
            thrash.wait()
            if grow is not None:
                grow.stop()
        before = taken[0]["old"].split()[0]
        assert before in ("-1", "max") if policy == "cpuset" else int(taken[0]["new"].split()[0]) < int(before)
        agent.said("the hold ends")
        assert agent.stop() == 0
