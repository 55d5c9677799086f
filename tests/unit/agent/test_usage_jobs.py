"""The jobs that measure usage and pressure: which gates open them, and that they cost nothing while those are off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from koordebpf.agent.jobs import JOBS
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import JOB_GATES

OURS = {
    "UsageSeries": ["usage_series.collector", "usage_series.keeper"],
    "PeakPrediction": ["usage_series.collector", "prediction.run"],
    "NodeMetricReport": ["usage_series.collector", "node_metric.run"],
    "PSICollector": ["usage_series.pressure"],
}


def wanted(config: AgentConfig) -> list[str]:
    return [name for name, is_wanted in JOBS.items() if is_wanted(config)]


def test_without_a_gate_nothing_is_opened():
    assert wanted(AgentConfig()) == []


@pytest.mark.parametrize("gate", OURS)
def test_reports_and_predictions_are_worked_out_of_the_series(gate):
    assert wanted(AgentConfig(feature_gates={gate: True})) == OURS[gate]


def test_their_gates_are_jobs_and_off():
    assert OURS.keys() <= JOB_GATES.keys()
    assert not any(JOB_GATES[gate] for gate in OURS)


def test_an_agent_whose_gates_are_off_loads_none_of_it():
    names = "collect.usage", "kernel.bpf.cpu_iter", "kernel.proc.numa_meminfo", "store.series", "collect.hooks"
    code = f"import sys, koordebpf.agent.run; print([name for name in {names} if f'koordebpf.{{name}}' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
