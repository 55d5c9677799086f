"""A running agent that predicts: it continues from koordlet's models, and the next agent from its own."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from koordebpf.jobs.prediction.checkpoint import decode_checkpoint
from koordebpf.jobs.prediction.models import restored_model
from koordebpf.jobs.prediction.values import PredictionSettings
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.usage_node import UsageNode, uid_of

PERIOD_S = 5
RUNS = Path(__file__).parents[1] / "golden/prediction/koordlet-histograms.jsonl"


def config_of(folder: Path, theirs: Path) -> Path:
    path = folder / "agent.yaml"
    head = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration"}
    gates, prediction = {"PeakPrediction": True}, {"koordletFolder": str(theirs), "trainEvery": f"{PERIOD_S}s"}
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
    usage_node: UsageNode, tmp_path: Path, theirs: Path
) -> None:
    # GIVEN a node with a pod that uses a core, as far as there is one
    (container,) = usage_node.add_pod("busy")
    usage_node.burn(container)
    node, uid = usage_node.node, uid_of(usage_node, "busy")
    manifest = node.write_manifest(tmp_path / "pods.json")
    arguments = ("--pods", manifest, "--node-cgroup", node.path, "--config", config_of(tmp_path, theirs))
    # AND an agent that only watches: it reads and writes nothing
    with LiveAgent(tmp_path, *arguments) as agent:
        agent.said("prediction begins with 3 models that were kept")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(30) == 0
    assert not list((tmp_path / "run").rglob("prediction"))
    # WHEN one acts, and ends
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        agent.said("prediction begins with 3 models that were kept")
        peak = "koordlet_node_predicted_resource_peak{node="
        until(lambda: peak in agent.get("/metrics")[1] or None, "a prediction", 60)
        time.sleep(PERIOD_S)  # one more training: by then the pod was measured twice
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(30) == 0
    (folder,) = (tmp_path / "run").rglob("prediction")
    kept = sorted(path.name for path in folder.iterdir())
    assert {"__node__", "__node-sys__", "__node-koord-prod__"} <= set(kept)
    assert uid in kept, "the pod's own usage was learned"
    assert "uid-of-no-pod" not in kept and (theirs / "uid-of-no-pod").exists()
    learned = decode_checkpoint((folder / uid).read_bytes(), uid, "file")
    model = restored_model(learned, PredictionSettings().half_lives, time.time_ns())
    assert 0.1 < model.cpu.percentile(0.95) < 1.2 and model.memory.percentile(0.98) > 0
    # THEN the next one continues from those
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        agent.said(f"prediction begins with {len(kept)} models that were kept")
