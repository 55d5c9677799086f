"""`koordebpf doctor` names containers whose CPU quota koordlet's CPU burst left above their limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.tools import doctor_quotas
from koordebpf.tools.pod_explain import known_originals
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


def doctor(bursty: BurstPodNode, folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the report."""
    config = folder / "doctor.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        f"node: {{cgroup: {bursty.node.path}, runDir: {folder / 'run'}}}\n"
    )
    command = [sys.executable, "-m", "koordebpf", "doctor", "--backend", "files", "--json", "--config", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def examined(bursty: BurstPodNode, folder: Path) -> dict[str, Any] | None:
    _, report = doctor(bursty, folder)
    assert SIGNAL not in {each["signal"] for each in report["sources"]}
    return next((each for each in report["notes"] if each["signal"] == SIGNAL), None)


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
        assert "koordlet" in line["cost"] and "koordlet" in line["remedy"]
        assert agent.stop() == 0


def test_a_quota_above_its_limit_does_not_degrade_the_agent(bursty: BurstPodNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path)) as agent:
        agent.becomes_ready()
        before, calm = doctor(bursty, tmp_path)
        leave_raised(bursty)
        after, report = doctor(bursty, tmp_path)
        assert [each["reason"] != "" for each in (*calm["notes"], *report["notes"])] == [False, True]
        assert (after, report["health"]) == (before, calm["health"])
        assert [each["works"] for each in report["sources"]] == [each["works"] for each in calm["sources"]]
        assert agent.stop() == 0


def test_where_koordlet_runs_what_it_raises_is_its_own(bursty: BurstPodNode, tmp_path: Path) -> None:
    bursty.node.add_pod("koordlet-x2x7v", be=False)
    bursty.node.pods[-1]["metadata"]["labels"]["koord-app"] = "koordlet"
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path)) as agent:
        agent.becomes_ready()
        leave_raised(bursty)
        line = examined(bursty, tmp_path)
        assert line is not None and line["reason"] == line["remedy"] == line["cost"] == ""
        assert line["how"] == (
            "1 of 2 are above their containers' limits: koordlet runs here, whose CPU burst raises and lowers them"
        )
        assert agent.stop() == 0


def test_a_burst_of_the_agent_that_starts_meanwhile_is_not_named(
    bursty: BurstPodNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent raises a quota after its journal was read, and before the file is."""
    looks = 0

    def slow(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        read = known_originals(*given)
        if looks == 1:
            bursty.burn()
            until(lambda: bursty.quotas[1] == 3 * LIMIT_US, lambda: f"a burst, but: {bursty.quotas}\n{agent.log}")
        return read

    monkeypatch.setattr(doctor_quotas, "known_originals", slow)
    arguments = bursty.arguments(tmp_path, sharePoolThresholdPercent=100)
    scope = open_scope(find_memory_hierarchy(), bursty.node.path)
    with (
        LiveAgent(tmp_path, *arguments, "--enforce") as agent,
        NodeWatch(scope, None, 1 << 62, backend="files") as watch,
    ):
        agent.becomes_ready()
        (note,) = doctor_quotas.quota_notes(watch, tmp_path / "run")
        assert looks == 2
        assert note.how == "none of 2 is above its container's limit"
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
