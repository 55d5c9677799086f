"""What a scrape of the controller shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from koordebpf.report.prom.controller import ControllerMetrics
from koordebpf.store.line_sink import LineSink


@pytest.fixture
def families() -> list[Metric]:
    """A scrape in which nothing is empty."""
    metrics = ControllerMetrics()
    metrics.nodeslos = {"settled": 499, "pending": 1}
    metrics.requests = {"created": 499, "failed": 2}
    metrics.configmap.problems = {"ConfigParamInvalid": 1}
    metrics.configmap.stale_keys = ("resource-threshold-config",)
    metrics.batch.is_on = True
    metrics.batch.nodes = {"computed": 498, "reset": 2}
    metrics.batch.writes = {"node": 500}
    metrics.log_sink = LineSink(lambda _line: None, "log")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return list(text_string_to_metric_families(generate_latest(registry).decode()))


def row(family: Metric) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = " ".join(f"`{label}`" for label in family.samples[0].labels)
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def test_the_table_for_operators_is_what_a_scrape_says_of_itself(families: list[Metric]) -> None:
    written = (Path(__file__).parents[2] / "deploy/metrics.md").read_text().partition("## The controller\n")[2]
    assert re.findall(r"^\| `.*$", written, re.MULTILINE) == [row(family) for family in families]


def test_names_and_units_are_prometheuss(families: list[Metric]) -> None:
    assert [
        family.name for family in families if not re.fullmatch(r"(koordebpf|process)_[a-z]+(_[a-z]+)*", family.name)
    ] == []
    assert [family.name for family in families if not family.documentation.endswith(".")] == []


def test_values_bear_their_labels(families: list[Metric]) -> None:
    samples = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert samples["koordebpf_controller_nodeslos", "settled"] == 499
    assert samples["koordebpf_controller_writes_total", "failed"] == 2
    assert samples["koordebpf_controller_configmap_problems", "ConfigParamInvalid"] == 1
    assert samples["koordebpf_controller_configmap_key_stale", "resource-threshold-config"] == 1
    assert samples["process_resident_memory_bytes",] > 1 << 20
