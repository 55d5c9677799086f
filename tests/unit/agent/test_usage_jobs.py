"""The jobs that measure usage and pressure: which gates open them, and that they cost nothing while those are off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import JOB_GATES
from koordebpf.jobs.usage_series.open import GATES, open_pressure_series, open_usage_series
from tests.support.contexts import context_of


@pytest.mark.parametrize("opener", [open_usage_series, open_pressure_series])
def test_without_a_gate_nothing_is_opened(opener):
    assert opener(context_of(AgentConfig())) is None


def test_their_gates_are_jobs_and_off():
    assert {*GATES, "PSICollector"} <= JOB_GATES.keys()
    assert not any(JOB_GATES[gate] for gate in (*GATES, "PSICollector"))


def test_an_agent_whose_gates_are_off_loads_none_of_it():
    names = "collect.usage", "kernel.bpf.cpu_iter", "kernel.proc.numa_meminfo", "store.series", "collect.hooks"
    code = f"import sys, koordebpf.agent.run; print([name for name in {names} if f'koordebpf.{{name}}' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
