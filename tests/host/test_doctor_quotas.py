"""`koordebpf doctor` names containers whose CPU quota koordlet's CPU burst left above their limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.apiserver import until
from tests.host.burst_pod_node import LIMIT_US, BurstPodNode
from tests.host.held_node import or_skipped
from tests.host.live_agent import ROOT, LiveAgent
from tests.support.nodes import NodeCgroup

SIGNAL = "CPU quotas"


@pytest.fixture
def bursty(node: NodeCgroup) -> Iterator[BurstPodNode]:
    made = or_skipped(lambda: BurstPodNode(node))
    yield made
    made.close()


def examined(bursty: BurstPodNode, folder: Path) -> dict[str, Any] | None:
    config = folder / "doctor.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        f"node: {{cgroup: {bursty.node.path}, runDir: {folder / 'run'}}}\n"
    )
    command = [sys.executable, "-m", "koordebpf", "doctor", "--backend", "files", "--json", "--config", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return next((each for each in json.loads(done.stdout)["sources"] if each["signal"] == SIGNAL), None)


def leave_raised(bursty: BurstPodNode) -> None:
    """As koordlet ends while the first of two containers is in a burst."""
    for directory, quota_us in ((bursty.pod, 4 * LIMIT_US), (bursty.containers[0], 3 * LIMIT_US)):
        bursty.put(directory, quota_us)


def test_who_has_more_than_its_limit_is_named(bursty: BurstPodNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path)) as agent:
        agent.becomes_ready()
        calm = examined(bursty, tmp_path)
        assert calm is not None and (calm["how"], calm["reason"]) == ("none of 2 is above its container's limit", "")
        leave_raised(bursty)
        line = examined(bursty, tmp_path)
        assert line is not None and line["how"] == "1 of 2 are above their containers' limits"
        assert line["reason"].startswith("default/web ")
        assert line["reason"].endswith(f" has {3 * LIMIT_US} of 100000 µs for a limit of {LIMIT_US // 100}m")
        assert "koordlet" in line["cost"] and line["remedy"]
        assert agent.stop() == 0


def test_what_the_agent_itself_has_raised_is_not_named(bursty: BurstPodNode, tmp_path: Path) -> None:
    arguments = bursty.arguments(tmp_path, sharePoolThresholdPercent=100)
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        agent.becomes_ready()
        bursty.burn()
        until(lambda: bursty.quotas[1] == 3 * LIMIT_US, lambda: f"a burst, but: {bursty.quotas}\n{agent.log}")
        line = examined(bursty, tmp_path)
        assert line is not None and line["how"] == "none of 2 is above its container's limit"
        assert agent.stop() == 0


def test_without_an_agent_nothing_is_known_of_limits(bursty: BurstPodNode, tmp_path: Path) -> None:
    leave_raised(bursty)
    assert examined(bursty, tmp_path) is None
