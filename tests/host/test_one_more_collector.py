"""A running agent with a collector more than it has: a class and a line in the tuple."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.units import GIB
from tests.host import one_more_collector
from tests.host.live_agent import LiveAgent
from tests.support.nodes import NodeCgroup
from tests.support.patience import patience


@pytest.mark.slow
def test_one_more_collector_is_asked_at_its_own_pace(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path
) -> None:
    # GIVEN a node with nothing to do, whose agent looks once a second, and a collector of 300 ms
    with NodeCgroup(memory_cgroup, hierarchy.version, 4096 * GIB) as node:
        manifest = node.write_manifest(tmp_path / "pods.json")
        before = (sys.executable, str(Path(one_more_collector.__file__)))
        with LiveAgent(tmp_path, "--pods", manifest, "--node-cgroup", node.path, before=before) as agent:
            # WHEN it was asked ten times
            line = agent.said(f"asked {one_more_collector.SAMPLES} times")
            # THEN that took nine periods, each at most a tenth early; one sample a second is kept
            took_ms, kept = map(int, re.findall(r"in (\d+) ms: (\d+) kept", line)[0])
            assert took_ms >= 9 * 270
            assert took_ms < patience(9 * 400)
            assert 2 <= kept <= took_ms / 950 + 1
            agent.process.send_signal(signal.SIGTERM)
            agent.said("load average is closed")
