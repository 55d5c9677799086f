"""A machine that slept: CLOCK_BOOTTIME runs ahead of CLOCK_MONOTONIC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.stepped_clock import SteppedClock

SLEPT_S = 3600


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


@pytest.mark.slow
def test_after_a_suspend_nothing_is_evicted_until_pods_are_known_again(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    manifest = node.write_manifest(tmp_path / "pods.json")
    clock = SteppedClock(tmp_path / "clock")
    environ = ("env", *(f"{name}={value}" for name, value in clock.environ.items()))
    hog = Hog(container, 200, rate_mib_s=400, hold_s=600)
    given = ["--pods", manifest, "--node-cgroup", node.path]
    try:
        with LiveAgent(tmp_path, *given, before=environ) as agent:
            agent.said("evicting default/hog")
            assert "suspended" not in agent.log
            clock.step(boottime_s=SLEPT_S)
            agent.said(f"the machine was suspended for {SLEPT_S} s: cgroups and pods are read again")
            assert "Traceback" not in agent.log
            assert agent.stop() == 0
    finally:
        hog.stop()
