"""Shadow mode beside a live dry run: what enforcing would have done for a real hog, after a restart too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
shadow:
  folder: {folder}
  kubeletHard: 100Mi
  configurations:
    - name: enforced
    - name: eager
      settings:
        memoryEvictThresholdPercent: 40
        memoryEvictLowerPercent: 30
"""


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as node:
        yield node


def koordebpf(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordebpf", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=patience(60))


@pytest.mark.slow
def test_a_dry_run_says_what_enforcing_would_have_done(node: NodeCgroup, tmp_path: Path) -> None:
    (hog,) = node.add_pod("hog")
    node.add_pod("calm", be=False)
    manifest = node.write_manifest(tmp_path / "pods.json", 70, 60)
    config = tmp_path / "agent.yaml"
    config.write_text(CONFIG.format(folder=tmp_path / "kept"))
    kept = tmp_path / "kept" / "shadow" / f"{node.path.name}.json"
    arguments = ("--pods", manifest, "--node-cgroup", node.path, "--config", config)
    enforced = 'koordebpf_shadow_evictions_total{configuration="enforced"}'
    in_time = 'koordebpf_shadow_decisions_total{configuration="eager",kind="in_time"}'
    with LiveAgent(tmp_path, *arguments).started() as agent:
        until(kept.exists, "a week")
        assert agent.metric(enforced) == 0
        eater = Hog(hog, 450, rate_mib_s=30, hold_s=60)
        try:
            until(lambda: agent.metric(enforced) == 1, "an eviction of the shadow")
            until(lambda: agent.metric(in_time) == 1, "kubelet's threshold")
            time.sleep(2)
            assert agent.metric(enforced) == 1  # the dry run names the hog again and again, and here it is gone
            assert eater.process.poll() is None  # and nothing was done to it
        finally:
            eater.stop()
        assert agent.metric('koordebpf_sink_errors_total{sink="shadow"}') == 0
        assert agent.stop() == 0
    with LiveAgent(tmp_path, *arguments).started() as again:
        until(lambda: again.metric("koordebpf_ticks_total"), "a tick")
        assert again.stop() == 0
    week = json.loads(koordebpf("shadow", kept, "--json").stdout)
    day = week["days"][-1]
    assert (day["node"]["evictions"], day["node"]["kubelet"], day["node"].get("really", 0)) == (1, 1, 0)
    first, eager = (day["shadows"][name] for name in ("enforced", "eager"))
    assert first["evictions"] == eager["evictions"] == 1
    assert eager["over_kubelet"]["sum_s"] > first["over_kubelet"]["sum_s"] > 0
    assert eager["over_acting"]["sum_s"] > 0.5  # 150 MiB at 30 MiB/s, less seconds between two rounds
    page = koordebpf("shadow", kept).stdout
    assert "enforced would have evicted 1 pod, " in page
