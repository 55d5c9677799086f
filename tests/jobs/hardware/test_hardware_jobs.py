"""Jobs of topology and hardware: nothing of them is loaded while their gates are off, and what is missing is said."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from koordebpf.agent.jobs import JOBS
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import JOB_GATES
from koordebpf.jobs.hardware import cold_memory, gpu
from koordebpf.runner.context import NodeContext
from tests.support.contexts import context_of

OURS = ("node_topology.run", "hardware.cpi", "hardware.gpu", "hardware.cold_memory")
GATES = ("NodeTopologyReport", "CPICollector", "Accelerators", "ColdPageCollector")


def node(**gates: bool) -> NodeContext:
    version = SimpleNamespace(version=2, mount_point=None)
    watch = SimpleNamespace(scope=SimpleNamespace(hierarchy=version), index=None)
    return context_of(AgentConfig(feature_gates=gates), SimpleNamespace(watch=watch))


def test_they_are_jobs_with_gates_that_are_off() -> None:
    wanted = [[name for name in OURS if JOBS[name](AgentConfig(feature_gates={gate: True}))] for gate in GATES]
    assert wanted == [[name] for name in OURS]
    assert [JOB_GATES[gate] for gate in GATES] == [False] * len(GATES)


def test_with_the_gates_off_there_is_no_job_and_nothing_of_it_is_imported() -> None:
    code = (
        "import sys\n"
        "import koordebpf.agent.run\n"
        "from koordebpf.agent.jobs import JOBS, open_jobs\n"
        "from koordebpf.configuration.settings import AgentConfig\n"
        "from tests.support.contexts import context_of\n"
        "assert open_jobs(context_of(AgentConfig())) == []\n"
        "print([name for name in JOBS if f'koordebpf.jobs.{name}' in sys.modules], 'pynvml' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"


def test_a_gpu_without_a_driver_and_memory_without_kidled_are_said_to_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert gpu.open_job(node(Accelerators=True)) is None
    assert cold_memory.open_job(node(ColdPageCollector=True)) is None
    assert "usage of GPUs is not measured: GPUs: " in caplog.text
    assert "cold memory is not measured: cold memory: " in caplog.text
