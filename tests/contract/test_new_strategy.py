"""A new strategy costs a folder and a line in the list: gate, configuration, plan and table come by themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.decision.frames import encode_frame
from tests.support.new_strategy import copy_with_strategy, koordebpf_in
from tests.support.values.cpu_nodes import cpu_frame

ROOT = Path(__file__).parents[2]
GATE = "BestEffortWeight"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_strategy(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def frame(package: Path) -> Path:
    recorded = json.loads(encode_frame(cpu_frame()))
    recorded["measured"]["parts"]["bestEffortWeight"] = {"tasks": 9, "paths": {"be-0": "kubepods/besteffort/pod0"}}
    path = package / "frame.json"
    path.write_text(json.dumps(recorded))
    return path


def test_the_configuration_file_has_its_gate_and_settings_with_their_reasons(package: Path) -> None:
    shown = koordebpf_in(package, "config", "show")
    assert f"{GATE}: false" in shown
    assert "bestEffortWeight:" in shown
    assert "Run or wait, from which on they do. Why 8: two a CPU of a small node." in " ".join(
        shown.replace("#", " ").split()
    )
    assert "busyTasks: 8" in shown
    assert (
        GATE
        not in subprocess.run(
            [sys.executable, "-m", "koordebpf", "config", "show"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    )


def test_a_wrong_setting_is_named(package: Path) -> None:
    (package / "config.yaml").write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        "strategies: {bestEffortWeight: {busyTasks: many}}\n"
    )
    command = [sys.executable, "-m", "koordebpf", "config", "check", "config.yaml"]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "strategies.bestEffortWeight.busyTasks" in done.stdout


@pytest.mark.slow
def test_the_plan_shows_it_where_its_gate_is_on(package: Path, frame: Path) -> None:
    assert "bestEffortWeight" not in koordebpf_in(package, "plan", frame)
    recorded = json.loads(frame.read_text())
    recorded["featureGates"] = {**recorded.get("featureGates", {}), GATE: True}
    on = package / "on.json"
    on.write_text(json.dumps(recorded))
    page = koordebpf_in(package, "plan", on)
    assert "bestEffortWeight" in page
    assert "9 tasks run or wait, busy is 8" in page
    for busy_tasks, shares in ((9, [4]), (10, [])):
        decided = json.loads(koordebpf_in(package, "plan", "--json", "--config", _config(package, busy_tasks), on))
        writes = decided["strategies"]["bestEffortWeight"]["writes"]
        assert [each["value"] for each in writes] == shares


def test_a_frame_whose_measurement_is_not_of_its_form_is_refused_by_name(package: Path, frame: Path) -> None:
    recorded = json.loads(frame.read_text())
    recorded["measured"]["parts"]["bestEffortWeight"]["tasks"] = "many"
    odd = package / "odd.json"
    odd.write_text(json.dumps(recorded))
    command = [sys.executable, "-m", "koordebpf", "plan", str(odd)]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "measured.parts.bestEffortWeight.tasks" in done.stderr


def _config(package: Path, busy_tasks: int) -> Path:
    path = package / "other.yaml"
    path.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        f"featureGates: {{{GATE}: true}}\n"
        f"strategies: {{bestEffortWeight: {{busyTasks: {busy_tasks}}}}}\n"
    )
    return path


def test_the_table_of_strategies_has_its_line(package: Path) -> None:
    page = koordebpf_in(package, "config", "strategies")
    assert f"{GATE}" in page
    assert "strategies.bestEffortWeight" in page
    assert "weigh best-effort pods less on a busy node" in page


def test_its_gate_can_be_compared(package: Path, frame: Path) -> None:
    assert GATE in koordebpf_in(package, "plan", "--feature-gates", f"{GATE}=true", frame)
