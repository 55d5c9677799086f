"""What is shown of the answers to a container runtime."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from koordebpf.configuration.settings import AgentConfig
from koordebpf.jobs.nri.answers import report
from koordebpf.kube.nri.values import NriCounts
from koordebpf.report.job_pages import JobPages
from tests.support.contexts import context_of


def shown(config: AgentConfig, *, has_koordlets_name: bool = True) -> dict[str, dict[str, str]]:
    """Return the labels of each metric's first sample."""
    beside, counts = JobPages(), NriCounts()
    counts.took("CreateContainer", 1.0, is_ok=True)
    job: Any = SimpleNamespace(server=SimpleNamespace(counts=counts, state=(True, "")), check=None)
    answers: Any = SimpleNamespace(would_adjust=0)
    node = context_of(config, SimpleNamespace(beside=beside))
    report(job, answers, "nri", node, has_koordlets_name=has_koordlets_name)
    return {each.name: each.samples[0].labels for each in beside.families["nri"]() if each.samples}


def test_koordlets_metric_names_the_node_or_else_the_machine() -> None:
    for config, name in ((AgentConfig(node_name="n1"), "n1"), (AgentConfig(), socket.gethostname())):
        (labels,) = [labels for metric, labels in shown(config).items() if metric.startswith("koordlet_")]
        assert labels["node"] == name
    assert not any(each.startswith("koordlet_") for each in shown(AgentConfig(), has_koordlets_name=False))
