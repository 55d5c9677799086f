"""A new strategy in a running agent: it writes, is audited, counted and explained, and what it wrote is restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.held_node import HeldNode
from tests.support.new_strategy import copy_with_strategy, koordebpf_in


@pytest.mark.slow
def test_it_writes_and_all_of_it_is_recorded(held: HeldNode, tmp_path: Path) -> None:
    package = copy_with_strategy(tmp_path / "package")
    mount = held.hierarchies.mounts["cpu"]
    file = held.be_root / ("cpu.shares" if mount.version == 1 else "cpu.weight")
    before, frames = file.read_bytes(), tmp_path / "frames"
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        "featureGates: {BestEffortWeight: true, BECPUSuppress: false}\n"
        "strategies: {bestEffortWeight: {busyPercent: 3}}\n"
    )
    with LiveAgent(
        tmp_path, *held.arguments(tmp_path), "--enforce", "--config", config, "--frames", frames,
        before=("env", "-C", str(package)), keeps_frames=False,
    ) as agent:  # fmt: skip
        until(lambda: file.read_bytes() != before, lambda: f"another weight, but: {agent.log}")
        change = until(lambda: [line for line in agent.lines() if "change" in line], "the audit's line")[0]["change"]
        assert (change["path"], change["owner"], change["result"]) == (str(file), "bestEffortWeight", "written")
        assert "% of the CPUs are used, busy is 3 %" in change["reason"]
        agent.said(str(file))
        until(
            lambda: agent.metric(f'koordebpf_file_writes_total{{file="{file.name}",result="written"}}') >= 1, "a count"
        )
        explained = koordebpf_in(package, "explain", "--writes", "--run-dir", agent.run_dir)
        assert f"{file.name} " in explained
        # WHEN the node is busy no more, so that no weight is wanted
        held.process.kill()
        until(lambda: file.read_bytes() == before, lambda: f"the weight from before, but: {agent.log}")
        assert agent.stop() == 0
    last = tmp_path / "last.json"
    last.write_bytes(frames.read_bytes().splitlines()[-1])
    assert "bestEffortWeight" in koordebpf_in(package, "plan", last)
