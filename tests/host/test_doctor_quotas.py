"""`koordebpf doctor` names containers whose CPU quota koordlet's CPU burst left above their limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, find_memory_hierarchy
from koordebpf.kernel.signals import SignalSource
from koordebpf.tools.doctor.checks import quota_notes
from koordebpf.tools.pod_explain import known_originals
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.rigs.burst_pod_node import LIMIT_US, BurstPodNode
from tests.host.rigs.live_node import or_skipped
from tests.support.nodes import MIB, NodeCgroup

pytestmark = pytest.mark.slow

SIGNAL = "CPU quotas"


@contextmanager
def bursty_at(hierarchy: MemoryHierarchy) -> Iterator[BurstPodNode]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as node:
        made = or_skipped(lambda: BurstPodNode(node))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def bursty(hierarchy: MemoryHierarchy) -> Iterator[BurstPodNode]:
    with bursty_at(hierarchy) as made:
        yield made


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


def noted(report: dict[str, Any]) -> dict[str, Any] | None:
    assert SIGNAL not in {each["signal"] for each in report["sources"]}
    return next((each for each in report["notes"] if each["signal"] == SIGNAL), None)


def examined(bursty: BurstPodNode, folder: Path) -> dict[str, Any] | None:
    return noted(doctor(bursty, folder)[1])


def leave_raised(bursty: BurstPodNode) -> None:
    """As koordlet ends while the first of two containers is in a burst."""
    for directory, quota_us in ((bursty.pod, 4 * LIMIT_US), (bursty.containers[0], 3 * LIMIT_US)):
        bursty.limit_cpu(directory, quota_us)


class LeftRaised(NamedTuple):
    """What doctor says beside one agent: before, after, and once koordlet is on the agent's list too."""

    calm: tuple[int, dict[str, Any]]
    raised: tuple[int, dict[str, Any]]
    beside_koordlet: tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")
def left_raised(hierarchy: MemoryHierarchy, tmp_path_factory: pytest.TempPathFactory) -> LeftRaised:
    with bursty_at(hierarchy) as bursty:
        folder = tmp_path_factory.mktemp("left-raised")
        with LiveAgent(folder, *bursty.arguments(folder)) as agent:
            agent.becomes_ready()
            calm = doctor(bursty, folder)
            leave_raised(bursty)
            raised = doctor(bursty, folder)
            bursty.node.add_pod("koordlet-x2x7v", be=False)
            bursty.node.pods[-1]["metadata"]["labels"]["koord-app"] = "koordlet"
            bursty.write(folder)
            until(lambda: agent.metric('koordebpf_pods{state="attributed"}') == 2, "koordlet's pod is known")
            beside_koordlet = doctor(bursty, folder)
            assert agent.stop() == 0
    return LeftRaised(calm, raised, beside_koordlet)


def test_who_has_more_than_its_limit_is_named(left_raised: LeftRaised) -> None:
    calm, line = (noted(report) for _, report in (left_raised.calm, left_raised.raised))
    assert calm is not None and (calm["how"], calm["reason"]) == ("none of 2 is above its container's limit", "")
    assert line is not None and line["how"] == "1 of 2 are above their containers' limits"
    assert line["reason"].startswith("default/web ")
    assert line["reason"].endswith(f" has {3 * LIMIT_US} of 100000 µs for a limit of {LIMIT_US // 100}m")
    assert "koordlet" in line["cost"] and "koordlet" in line["remedy"]


def test_a_quota_above_its_limit_does_not_degrade_the_agent(left_raised: LeftRaised) -> None:
    (before, calm), (after, report) = left_raised.calm, left_raised.raised
    assert [each is not None and each["reason"] != "" for each in map(noted, (calm, report))] == [False, True]
    assert (after, report["health"]) == (before, calm["health"])
    assert [each["works"] for each in report["sources"]] == [each["works"] for each in calm["sources"]]


def test_where_koordlet_runs_what_it_raises_is_its_own(left_raised: LeftRaised) -> None:
    line = noted(left_raised.beside_koordlet[1])
    assert line is not None and line["reason"] == line["remedy"] == line["cost"] == ""
    assert line["how"] == (
        "1 of 2 are above their containers' limits: koordlet runs here, whose CPU burst raises and lowers them"
    )


class RaisedByAgent(NamedTuple):
    """What is said of a burst of the agent: of one that starts between two looks, and of one in progress."""

    looks: int
    meanwhile: SignalSource
    in_progress: dict[str, Any] | None


@pytest.fixture(scope="module")
def raised_by_agent(hierarchy: MemoryHierarchy, tmp_path_factory: pytest.TempPathFactory) -> RaisedByAgent:
    """The agent raises a quota after its journal was read, and before the file is."""
    looks, folder = 0, tmp_path_factory.mktemp("raised")

    def slow(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        read = known_originals(*given)
        if looks == 1:
            bursty.burn()
            until(lambda: bursty.quotas[1] == 3 * LIMIT_US, lambda: f"a burst, but: {bursty.quotas}\n{agent.log}")
        return read

    with bursty_at(hierarchy) as bursty:
        arguments = bursty.arguments(folder, sharePoolThresholdPercent=100)
        scope = open_scope(find_memory_hierarchy(), bursty.node.path)
        with (
            LiveAgent(folder, *arguments, "--enforce") as agent,
            NodeWatch(scope, None, 1 << 62, backend="files") as watch,
        ):
            agent.becomes_ready()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("koordebpf.tools.doctor.checks.known_originals", slow)
                (note,) = quota_notes(watch, folder / "run")
            until(lambda: bursty.quotas[1] == 3 * LIMIT_US, lambda: f"a burst, but: {bursty.quotas}\n{agent.log}")
            line = examined(bursty, folder)
            assert agent.stop() == 0
    return RaisedByAgent(looks, note, line)


def test_a_burst_of_the_agent_that_starts_meanwhile_is_not_named(raised_by_agent: RaisedByAgent) -> None:
    assert raised_by_agent.looks == 2
    assert raised_by_agent.meanwhile.how == "none of 2 is above its container's limit"


def test_what_the_agent_itself_has_raised_is_not_named(raised_by_agent: RaisedByAgent) -> None:
    line = raised_by_agent.in_progress
    assert line is not None and line["how"] == "none of 2 is above its container's limit"


def test_without_an_agent_nothing_is_known_of_limits(bursty: BurstPodNode, tmp_path: Path) -> None:
    leave_raised(bursty)
    assert examined(bursty, tmp_path) is None
