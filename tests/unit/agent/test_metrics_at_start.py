"""What `/metrics` has before the first round."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from koordebpf.agent.serving import node_name, open_metrics
from koordebpf.configuration.checked import agent_config
from koordebpf.state.prediction import LatestPrediction


def test_without_a_nodes_name_it_is_the_machines() -> None:
    assert node_name(agent_config({"node_name": "n1"})) == "n1"
    assert node_name(agent_config({})) == socket.gethostname()


@pytest.mark.parametrize(
    ("enforce", "results"), [(False, {"dry_run"}), (True, {"done", "refused", "failed"})], ids=["dry run", "acts"]
)
def test_evictions_of_each_feature_that_is_on_are_shown_from_0_on(enforce: bool, results: set[str]) -> None:
    gates = {"BEMemoryEvict": True, "MemoryEvict": False, "BECPUEvict": False}
    config = agent_config({"feature_gates": gates, "enforce": enforce})
    families = {each.name: each for each in open_metrics(config, LatestPrediction()).collect()}
    samples = [each for each in families["koordebpf_evictions"].samples if each.name.endswith("_total")]
    assert {each.labels["result"] for each in samples} == results
    assert {each.labels["reason"] for each in samples} == {"BEMemoryEvict"}
    assert all(each.value == 0 for each in samples)


@pytest.mark.parametrize("is_on", [True, False])
def test_koordlets_names_are_there_where_they_are_asked_for(is_on: bool) -> None:
    given: dict[str, Any] = {"koordinator_metrics": is_on}
    names = [each.name for each in open_metrics(agent_config(given), LatestPrediction()).collect()]
    assert any(name.startswith("koordlet_") for name in names) is is_on
