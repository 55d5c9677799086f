"""deploy/examples: what stands there runs, on this kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PODS = "deploy/examples/pods.yaml"
COMMAND = [sys.executable, "-m", "koordebpf"]


def test_an_agent_runs_with_the_pods_and_settings(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    text = (ROOT / "deploy/examples/settings.yaml").read_text()
    settings.write_text(text.replace("127.0.0.1:9320", "127.0.0.1:0"))
    assert settings.read_text() != text
    run_dir = ["--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(
        [*COMMAND, "run", "--config", str(settings), *run_dir], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stderr is not None
        said = []
        until = time.monotonic() + 30
        for line in agent.stderr:
            said.append(line)
            if "watching " in line or time.monotonic() > until:
                break
        agent.send_signal(signal.SIGTERM)
        said += agent.stderr.readlines()
    assert agent.returncode == 0, said
    assert any("pods from file, dry run" in line for line in said), said
    assert not [line for line in said if " E " in line], said


@pytest.mark.slow
def test_top_knows_the_pods_threshold() -> None:
    done = subprocess.run(
        [*COMMAND, "top", "--pods", PODS, "--frame"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    frame = json.loads(done.stdout)
    assert {pod["metadata"]["name"] for pod in frame["pods"]} == {"web", "crunch"}
    planned = subprocess.run(
        [*COMMAND, "plan", "-"], cwd=ROOT, input=done.stdout, capture_output=True, text=True, check=True,
        env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip
    assert "70 %" in planned.stdout
