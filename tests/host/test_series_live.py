"""A running agent's series: asked for on the command line, and continued by the agent after it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.units import GIB
from tests.host import one_more_collector
from tests.host.live_agent import LiveAgent
from tests.support.nodes import NodeCgroup

CONFIGURATION = """\
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
series: {snapshot: 1s}
featureGates: {UsageSeries: true}
"""


def asked(run_dir: Path, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "koordebpf", "metrics", *options, "--run-dir", str(run_dir), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def count(run_dir: Path) -> int:
    (line,) = asked(run_dir, "load1", "--window", "30m")
    return 0 if line["values"] is None else int(line["values"]["count"])


@pytest.mark.slow
@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_agent_continues_the_series(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path, ends_by: signal.Signals
) -> None:
    # GIVEN an agent that has measured the load for some seconds
    before_it = (sys.executable, str(Path(one_more_collector.__file__)))
    config = tmp_path / "config.yaml"
    config.write_text(CONFIGURATION)
    with NodeCgroup(memory_cgroup, hierarchy.version, 4096 * GIB) as node:
        manifest = node.write_manifest(tmp_path / "pods.json")
        arguments = ("--pods", manifest, "--node-cgroup", node.path, "--config", config, "--enforce")
        with LiveAgent(tmp_path, *arguments, before=before_it) as first:
            first.started()
            time.sleep(8)
            before = count(first.run_dir)
            assert before >= 4
            assert {"schema": "koordebpf.metrics-kind/v1", "kind": "load1", "series": 1} in asked(first.run_dir)
            first.process.send_signal(ends_by)
            first.process.wait(20)
        # WHEN it has ended, in whatever way, and the next one has started
        (snapshot,) = first.run_dir.glob("*/series.snapshot")
        (kept,) = asked(first.run_dir, "load1", "--snapshot", str(snapshot))
        assert kept["values"]["count"] >= before - 3
        with LiveAgent(tmp_path, *arguments, before=before_it) as second:
            second.said("series continue from")
            second.started()
            # THEN its windows have the samples of both
            time.sleep(4)
            assert count(second.run_dir) >= before


@pytest.mark.slow
def test_an_agent_that_stood_by_continues_them_and_counts_each_moment_once(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path
) -> None:
    # GIVEN an agent that acts, and for its last five seconds one beside it that stands by
    config = tmp_path / "config.yaml"
    config.write_text(CONFIGURATION)
    before_it = (sys.executable, str(Path(one_more_collector.__file__)))
    with NodeCgroup(memory_cgroup, hierarchy.version, 4096 * GIB) as node:
        manifest = node.write_manifest(tmp_path / "pods.json")
        arguments = ("--pods", manifest, "--node-cgroup", node.path, "--config", config, "--enforce")
        with LiveAgent(tmp_path, *arguments, before=before_it) as first:
            first.started()
            started_s = time.monotonic()
            time.sleep(5)
            with LiveAgent(tmp_path, *arguments, "--stand-by", before=before_it) as second:
                second.started()
                time.sleep(5)
                before = count(first.run_dir)
                # WHEN the one that acts ends
                first.process.send_signal(signal.SIGTERM)
                second.said("series continue from")
                time.sleep(3)
                # THEN the other one has the samples of both
                assert before < count(second.run_dir) <= (time.monotonic() - started_s) / 0.95 + 1
