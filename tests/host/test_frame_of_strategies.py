"""`top --frame | plan -`: a frame of one moment holds what every strategy decides from, whatever its gate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import OWN_STRATEGIES
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.runner.context import NodeContext
from koordebpf.strategies.hooks.decide import HOOKS_PART
from koordebpf.tools.top import one_frame as module
from tests.host.rigs.live_node import CONTROLLERS
from tests.host.rigs.memory_qos_node import MemoryQosNode
from tests.host.test_proactive_reclaim import read_once, sleeper
from tests.support.nodes import NodeCgroup

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ALL = ",".join(f"{each.gate}=true" for each in OWN_STRATEGIES)
MORE_PODS = 20  # than runtime hooks look at in an agent's first round


def koordebpf(*arguments: object, given: str | None = None) -> str:
    command = [sys.executable, "-m", "koordebpf", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def planned(frame: str, *options: str) -> dict[str, Any]:
    made = json.loads(koordebpf("plan", "-", "--json", "--feature-gates", ALL, *options, given=frame))
    strategies: dict[str, Any] = made["after"]["strategies"]
    return strategies


def test_every_strategy_is_due_and_sees_all_pods(node: NodeCgroup, tmp_path: Path) -> None:
    names = [f"more-{each}" for each in range(MORE_PODS)]
    with MemoryQosNode(node, CONTROLLERS) as qos:
        for name in names:
            qos.add_pod(name, be=False)
        before = qos.texts()
        frame = koordebpf("top", "--frame", *qos.arguments(tmp_path))
        assert qos.texts() == before
    strategies = planned(frame)
    assert {each.name for each in OWN_STRATEGIES} == strategies.keys()
    assert not [name for name, each in strategies.items() if each["skipped"] in ("not_due", "not_known")]
    # Of the frame's own gate and with its configuration, as a page.
    config = str(tmp_path / "config.yaml")
    page = koordebpf("plan", "-", "--config", config, given=frame)
    assert "memoryQos\n  memory QoS: " in page
    assert max(map(len, page.splitlines())) <= 80
    made = json.loads(koordebpf("plan", "-", "--config", config, "--json", given=frame))["strategies"]["memoryQos"]
    wanted = {node.pod_paths[name].name for name in ("ls", *names)}
    assert {path.split("/")[-1] for path in (each["path"] for each in made["writes"])} >= wanted


def test_what_would_be_taken_is_shown_for_each_pod(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("cached")
    read_once(container, tmp_path)
    with sleeper(container) as process:
        frame = koordebpf(
            "top", "--frame", "--pods", node.write_manifest(tmp_path / "p.json"), "--node-cgroup", node.path
        )
        process.kill()
    softer = planned(frame, "--set", "strategies.proactiveReclaim.softLimits=true")["proactiveReclaim"]
    if node.version == 1:
        made = planned(frame)["proactiveReclaim"]
        assert (made["skipped"], "softLimits is weaker" in made["reason"]) == ("no_support", True)
        assert [each["file"] for each in softer["writes"]] == ["memory.soft_limit_in_bytes"]
    else:
        (pod,) = softer["pods"]
        assert (pod["name"], pod["reclaim_bytes"] > 0) == ("cached", True)


def test_what_cannot_be_measured_is_named_and_the_rest_is_there(
    node: NodeCgroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(node: NodeContext) -> None:
        raise SupportError(f"resctrl beside {node.other_folder}", "there is none", "Use another CPU.")

    openers = module.openers
    monkeypatch.setattr(module, "openers", lambda node: [refused, *openers(node)])
    node.add_pod("web", be=False)
    source = FileSource([node.write_manifest(tmp_path / "pods.json")])
    scope = open_scope(find_memory_hierarchy(), node.path, None)
    with NodeWatch(scope, source, 1 << 62) as watch:
        made = module.one_frame(watch, 0.1, AgentConfig(), tmp_path)
    assert made is not None
    problem, *others = made.problems
    assert problem.startswith(f"resctrl beside {tmp_path}: there is none")
    # The node has no cgroup for its CPU time on v1, so that nothing decides on CPUs.
    assert [each for each in others if "cpuacct" in each] == others
    assert (made.frame.measured.cpu is None, len(others)) == ((True, 1) if node.version == 1 else (False, 0))
    assert [each.uid for each in made.frame.measured.parts[HOOKS_PART].pods] == [node.pods[0]["metadata"]["uid"]]
    assert made.frame.featureGates == AgentConfig().feature_gates
