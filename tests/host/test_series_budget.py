"""How many series a scrape of a full node has: with those that name pods, which are bounded, 200 at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.report.prom.pods import POD_SERIES
from tests.bench.nodes import full_node
from tests.host.live_agent import LiveAgent

PODS, CONTAINERS, MOST_SERIES = 110, 330, 200


@pytest.mark.slow
@pytest.mark.usefixtures("require_root")
def test_a_full_node_has_200_series_at_most(tmp_path: Path) -> None:
    with full_node(PODS, CONTAINERS) as node:
        manifest = node.cgroup.write_manifest(tmp_path / "pods.json")
        given = ("--pods", manifest, "--node-cgroup", node.cgroup.path, "--enforce")
        with LiveAgent(tmp_path, *given, keeps_frames=False) as agent:
            agent.becomes_ready()
            shown = [line for line in agent.get("/metrics")[1].splitlines() if not line.startswith("#")]
            assert agent.stop() == 0
    of_pods = [line for line in shown if 'pod="' in line or 'victim="' in line]
    print(f"{len(shown)} series, {len(of_pods)} of them with a pod's name")
    assert len(shown) - len(of_pods) <= MOST_SERIES - POD_SERIES
