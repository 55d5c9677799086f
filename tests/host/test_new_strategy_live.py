"""A new strategy in a running agent: it measures, writes, is audited, counted and explained, and restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.held_node import HeldNode
from tests.support.new_strategy import copy_with_strategy, koordebpf_in


@pytest.mark.slow
def test_it_measures_and_writes_and_all_of_it_is_shown(held: HeldNode, tmp_path: Path) -> None:
    package = copy_with_strategy(tmp_path / "package")
    mount, pod = held.hierarchies.mounts["cpu"], held.be_root / held.container.parent.name
    file = pod / ("cpu.shares" if mount.version == 1 else "cpu.weight")
    before, frames, load = file.read_bytes(), tmp_path / "frames", tmp_path / "loadavg"
    load.write_text("9.00 5.00 2.00 9/300 4711\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        "featureGates: {BestEffortWeight: true, BECPUSuppress: false}\n"
        f"strategies: {{bestEffortWeight: {{loadFile: {load}}}}}\n"
    )
    with LiveAgent(
        tmp_path, *held.arguments(tmp_path), "--enforce", "--config", config, "--frames", frames,
        before=("env", "-C", str(package)), keeps_frames=False,
    ) as agent:  # fmt: skip
        until(lambda: file.read_bytes() != before, lambda: f"another weight, but: {agent.log}")
        change = until(lambda: [line for line in agent.lines() if "change" in line], "the audit's line")[0]["change"]
        assert (change["path"], change["owner"], change["result"]) == (str(file), "bestEffortWeight", "written")
        assert "9 tasks run or wait, busy is 8" in change["reason"]
        agent.said(str(file))
        until(
            lambda: agent.metric(f'koordebpf_file_writes_total{{file="{file.name}",result="written"}}') >= 1, "a count"
        )
        assert agent.metric("koordebpf_best_effort_weight_pods") == 1
        explained = koordebpf_in(package, "explain", "--writes", "--run-dir", agent.run_dir)
        assert f"{file.name} " in explained
        of_pod = koordebpf_in(package, "pod", "explain", "be", "--run-dir", agent.run_dir)
        assert "9 tasks run or wait, busy is 8" in of_pod
        # WHEN the node is busy no more, so that no weight is wanted
        load.write_text("0.00 0.00 0.00 1/300 4711\n")
        until(lambda: file.read_bytes() == before, lambda: f"the weight from before, but: {agent.log}")
        assert agent.stop() == 0
    last = tmp_path / "last.json"
    last.write_bytes(frames.read_bytes().splitlines()[-1])
    assert "1 tasks run or wait, busy is 8" in koordebpf_in(package, "plan", last)
    # The exit code is of what doctor says of the whole machine.
    doctor = koordebpf_in(package, "doctor", "--json", "--config", config, codes=(0, 1))
    (line,) = json.loads(doctor)["strategies"]
    assert line["signal"] == "BestEffortWeight"
    assert (line["how"] or line["reason"]).startswith("weigh pods: ")
