"""When the agent looks again: near the threshold soon, and never later than its round of each second."""

from __future__ import annotations

import time
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.units import GIB, NS_PER_S
from tests.host.ticking_agent import ticking_agent
from tests.support.nodes import NodeCgroup


def test_a_look_between_two_rounds_puts_the_next_round_off_no_further(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path
) -> None:
    # GIVEN a node that is so far from its threshold that a look each second will do
    with NodeCgroup(memory_cgroup, hierarchy.version, 4096 * GIB) as node:
        manifest = node.write_manifest(tmp_path / "pods.json")
        with ticking_agent(hierarchy, node.path, manifest, EvictSettings().cool_time_ns) as agent:
            agent.tick()
            round_ns = time.monotonic_ns()
            # WHEN something wakes it in between THEN the next round is due a second after the last one
            assert agent.tick() <= round_ns + NS_PER_S
