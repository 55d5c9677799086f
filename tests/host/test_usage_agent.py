"""An agent with the series of usage: opened once, whichever gates need them, and measured while it ticks."""

from __future__ import annotations

import time

import pytest

from tests.host.rigs.usage_node import UsageNode
from tests.support.agent_process import AgentProcess


@pytest.mark.slow
def test_several_gates_open_the_series_once(usage_node: UsageNode, tmp_path) -> None:
    (container,) = usage_node.add_pod("busy")
    usage_node.burn(container)
    manifest = usage_node.node.write_manifest(tmp_path / "pods.json")
    gates = ("--feature-gates", "UsageSeries=true,PSICollector=true")
    with AgentProcess(usage_node.node, manifest, *gates) as agent:
        time.sleep(4)
        said = [line for line in agent.log if "measured by" in line]
        wrong = [line for line in agent.log if " W " in line or " E " in line]
    assert len([line for line in said if "usage of pods and containers is measured by one BPF pass" in line]) == 1 or [
        line for line in said if "is measured by files" in line
    ]
    assert len([line for line in said if "pressure of pods and containers is measured by" in line]) == 1
    assert [line for line in wrong if "was not measured" in line or "tick ended" in line] == []
