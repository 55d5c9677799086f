"""`koordebpf doctor --config`: QoS strategies and the dead man's switch are looked at where they are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordebpf.decision.strategies import KERNEL_FILES
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy
from koordebpf.kernel.host.strategy_files import support_of_strategies

ROOT = Path(__file__).parents[2]
DEAD_MAN = "dead man's switch"


def examined(folder: Path, more: str) -> dict[str, Any]:
    config = folder / "config.yaml"
    config.write_text(f"apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n{more}\n")
    command = [sys.executable, "-m", "koordebpf", "doctor", "--backend", "files", "--json", "--config", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("gate", sorted({gate for gate, _ in KERNEL_FILES}))
def test_a_strategy_that_is_on_has_a_line_for_each_part_that_this_cgroup_version_has(
    tmp_path: Path, hierarchy: MemoryHierarchy, gate: str
) -> None:
    lines = examined(tmp_path, f"featureGates: {{{gate}: true}}")["strategies"]
    assert {each["signal"] for each in lines} == {gate}
    parts = [part for of, part in KERNEL_FILES if of == gate and (part.v2 is not None or hierarchy.version == 1)]
    assert len(lines) == len(parts)
    for line, part in zip(lines, parts, strict=True):
        assert (line["how"] or line["reason"]).startswith(f"{part.does}: ")
        assert line["works"] or (line["remedy"] and line["cost"])


def test_a_part_of_the_machine_is_there_or_not_as_its_file_is(tmp_path: Path) -> None:
    lines = examined(tmp_path, "featureGates: {SystemConfig: true}")["strategies"]
    shown = {line["works"] for line in lines if "vm.min_free_kbytes" in line["how"] + line["reason"]}
    assert shown == {Path("/proc/sys/vm/min_free_kbytes").exists()}


def test_what_is_off_has_no_line_and_costs_no_health(tmp_path: Path) -> None:
    report = examined(tmp_path, "featureGates: {CPUBurst: false}")
    assert report["strategies"] == []
    assert DEAD_MAN not in {each["signal"] for each in report["sources"]}


def test_the_dead_mans_switch_is_tried_where_it_is_asked_for(tmp_path: Path) -> None:
    report = examined(tmp_path, "deadMan: {action: count}")
    assert DEAD_MAN in {each["signal"] for each in report["sources"]}


def test_a_hierarchy_without_the_pods_directory_says_nothing_of_the_kernel(tmp_path: Path) -> None:
    pod, mounts = Path("kubepods/poda"), {"cpu": ControllerMount(1, tmp_path)}
    parts = [each for each in KERNEL_FILES if each[0] == "CPUNormalization"]
    (line,) = support_of_strategies(parts, pod, mounts)
    assert (line.works, line.reason) == (False, f"scale the quota: there is no {tmp_path}/kubepods/poda")
    (tmp_path / pod).mkdir(parents=True)
    (line,) = support_of_strategies(parts, pod, mounts)
    assert line.reason == "scale the quota: this kernel has no cpu.cfs_quota_us"
    (tmp_path / pod / "cpu.cfs_quota_us").touch()
    (line,) = support_of_strategies(parts, pod, mounts)
    assert line.works
