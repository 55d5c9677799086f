"""What an agent leaves in the kernel when it ends, however it ends: nothing. Counted by the kernel's own ids."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.host.live_agent import LiveAgent
from tests.support.bpf_ids import held_by, wait_for_none
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

_PINS = Path("/sys/fs/bpf")
_USES_BPF = os.environ.get("KOORDEBPF_BACKEND") != "files"


def pinned() -> list[Path]:
    return sorted(_PINS.rglob("*"))


def test_no_program_map_or_link_outlives_the_agent(hierarchy: MemoryHierarchy, tmp_path: Path) -> None:
    pins = pinned()
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        node.add_pod("first")
        arguments = ("--pods", node.write_manifest(tmp_path / "pods.json"), "--node-cgroup", node.path)
        cgroups = sorted(node.path.rglob("*"))
        # What the one that was killed left would be in the next one's way.
        for by, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
            with LiveAgent(tmp_path, *arguments) as agent:
                agent.becomes_ready()
                held = held_by(agent.process.pid)
                assert bool(held.prog and held.map and held.link) is _USES_BPF, held
                assert agent.stop(by) == code
            assert not wait_for_none(held.alive, patience(30))
            assert pinned() == pins
            assert sorted(node.path.rglob("*")) == cgroups
