"""Jobs of topology and hardware: nothing of them is loaded while their gates are off, and what is missing is said."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from koordebpf.agent.jobs import JOBS
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import JOB_GATES
from koordebpf.jobs.hardware.open import open_cold_memory, open_cpi, open_gpu
from koordebpf.jobs.node_topology.open import open_topology_report
from koordebpf.runner.context import NodeContext
from tests.support.contexts import context_of

OURS = (open_topology_report, open_cpi, open_gpu, open_cold_memory)
GATES = ("NodeTopologyReport", "CPICollector", "Accelerators", "ColdPageCollector")


def node(**gates: bool) -> NodeContext:
    version = SimpleNamespace(version=2, mount_point=None)
    watch = SimpleNamespace(scope=SimpleNamespace(hierarchy=version), index=None)
    return context_of(AgentConfig(feature_gates=gates), SimpleNamespace(watch=watch))


def test_they_are_jobs_with_gates_that_are_off() -> None:
    assert set(OURS) <= set(JOBS)
    assert [JOB_GATES[gate] for gate in GATES] == [False] * len(GATES)


def test_with_the_gates_off_there_is_no_job_and_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from types import SimpleNamespace as S\n"
        "from koordebpf.jobs.hardware.open import open_cold_memory, open_cpi, open_gpu\n"
        "from koordebpf.jobs.node_topology.open import open_topology_report\n"
        "node = S(config=S(feature_gates={}))\n"
        "opened = (open_cpi, open_gpu, open_cold_memory, open_topology_report)\n"
        "jobs = [each(node) for each in opened]\n"
        "print(jobs, [name for name in sys.modules if 'pynvml' in name or name.startswith("
        "('koordebpf.jobs.hardware.', 'koordebpf.jobs.node_topology.')) and not name.endswith('.open')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[None, None, None, None] []"


def test_a_gpu_without_a_driver_and_memory_without_kidled_are_said_to_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert open_gpu(node(Accelerators=True)) is None
    assert open_cold_memory(node(ColdPageCollector=True)) is None
    assert "usage of GPUs is not measured: GPUs: " in caplog.text
    assert "cold memory is not measured: cold memory: " in caplog.text
