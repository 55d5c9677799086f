"""A running agent that predicts: it continues from koordlet's models, and the next agent from its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.nodes import MIB, NodeCgroup

RUNS = Path(__file__).parents[1] / "golden/prediction/koordlet-histograms.jsonl"


def config_of(folder: Path, theirs: Path) -> Path:
    path = folder / "agent.yaml"
    head = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration"}
    gates, prediction = {"PeakPrediction": True}, {"koordletFolder": str(theirs), "trainEvery": "5s"}
    path.write_text(json.dumps({**head, "featureGates": gates, "prediction": prediction}))
    return path


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    runs = {run["name"]: run for run in map(json.loads, RUNS.read_text().splitlines())}
    folder = tmp_path / "koordlet"
    folder.mkdir()
    for uid in ("__node__", "__node-sys__", "__node-koord-prod__", "uid-of-no-pod"):
        parts = {"CPU": runs["minutes"]["checkpoint"], "Memory": runs["memory"]["checkpoint"]}
        (folder / uid).write_text(json.dumps({"UID": uid, **parts, "LastUpdated": "2026-03-05T09:23:41Z"}))
    return folder


@pytest.mark.slow
def test_models_of_koordlet_and_of_the_agent_before_are_the_start(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path, theirs: Path
) -> None:
    with NodeCgroup(memory_cgroup, hierarchy.version, 256 * MIB) as node:
        node.add_pod("first")
        manifest = node.write_manifest(tmp_path / "pods.json")
        arguments = ("--pods", manifest, "--node-cgroup", node.path, "--config", config_of(tmp_path, theirs))
        # GIVEN an agent that only watches: it reads and writes nothing
        with LiveAgent(tmp_path, *arguments) as agent:
            agent.said("prediction begins with 3 models that were kept")
            agent.process.send_signal(signal.SIGTERM)
            assert agent.process.wait(30) == 0
        assert not list((tmp_path / "run").rglob("prediction"))
        # WHEN one acts, and ends
        with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
            agent.said("prediction begins with 3 models that were kept")
            folder = until(lambda: next(iter((tmp_path / "run").rglob("prediction")), None), "its files", 90)
            assert isinstance(folder, Path)
            agent.process.send_signal(signal.SIGTERM)
            assert agent.process.wait(30) == 0
        kept = sorted(path.name for path in folder.iterdir())
        assert {"__node__", "__node-sys__", "__node-koord-prod__"} <= set(kept)
        assert "uid-of-no-pod" not in kept and (theirs / "uid-of-no-pod").exists()
        # THEN the next one continues from those
        with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
            agent.said(f"prediction begins with {len(kept)} models that were kept")
