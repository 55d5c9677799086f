"""The dashboards of deploy/monitoring, of all nodes and of one: their queries, judged by promtool, and their links."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.monitoring import MONITORING, metrics, promtool_says, recorded, selectors

FOLDER = MONITORING / "dashboards"
PAGES = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("fleet", "node")}
OF_TARGET = {"job", "instance", "node"}
RECORDED = re.compile(r"node:koordebpf_\w+:\w+")
each_page = pytest.mark.parametrize("name", PAGES)
# What a page must show, and by which metrics.
WANTED = {
    "fleet": {
        "Nodes enforcing": {"koordebpf_dry_run"},
        "Nodes observing": {"koordebpf_dry_run"},
        "Nodes that may not act": {"koordebpf_guard_closed", "koordebpf_lost_signals"},
        "Evictions, 24 h": {"koordebpf_evictions_total"},
        "Decision, p99": {"koordebpf_crossing_to_decision_seconds_bucket"},
        "Nodes": {"koordebpf_guard_closed", "koordebpf_ls_stall_by_be_seconds_total", "koordebpf_evictions_total"},
        "Others stall on account of best-effort pods": {"koordebpf_ls_stall_by_be_seconds_total"},
        "Evictions by node": {"koordebpf_evictions_total"},
        "Why agents may not act": {"koordebpf_guard_closed", "koordebpf_lost_signals"},
        "How fast the stall budget burns": {"node:koordebpf_ls_stall_by_be_ratio:rate1h"},
        "How fast the budget of lost work burns": {"node:koordebpf_be_lost_cpu:ratio_rate1d"},
        "Overcommit that is used": {"node:koordebpf_overcommit_yield_memory:ratio"},
        "CPU of agents": {"process_cpu_seconds_total"},
        "Signals": {"koordebpf_signals_info"},
    },
    "node": {
        "Mode": {"koordebpf_dry_run"},
        "Memory in use": {"koordebpf_node_used_bytes", "koordebpf_node_threshold_bytes"},
        "Memory pressure": {"koordebpf_node_psi_avg10_ratio"},
        "Pressure in pods": {"koordlet_pod_psi"},
        "Who waits for the node's memory": {"koordebpf_pod_stall_seconds_total"},
        "Who waits for whom": {"koordebpf_stall_charged_seconds_total"},
        "Victims and causes": {"koordebpf_stall_charged_seconds_total"},
        "To be freed, and freed": {"koordebpf_need_bytes", "koordebpf_released_bytes_total"},
        "Until a mark is reached": {"koordebpf_node_forecast_seconds"},
        "CPU that best-effort pods may use": {"koordebpf_be_cpu_cores"},
        "Batch CPU": {"koordebpf_be_cpu_seconds_total", "koordebpf_batch_allocatable_cores"},
        "Batch memory": {"koordebpf_be_memory_bytes", "koordebpf_batch_allocatable_bytes"},
        "CPU": {"process_cpu_seconds_total"},
        "Signal quality": {"koordebpf_lost_records_total", "koordebpf_missed_runs_total"},
    },
}


def panels(page: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that show something: a row holds them only while it is closed."""
    every = [each for panel in page["panels"] for each in (panel, *panel.get("panels", ()))]
    return [each for each in every if each["type"] != "row"]


def expressions(page: dict[str, Any]) -> list[str]:
    marks = [each["expr"] for each in page["annotations"]["list"]]
    return [target["expr"] for panel in panels(page) for target in panel["targets"]] + marks


def query(page: str, title: str, number: int = 0) -> str:
    """Return a panel's query as Prometheus gets it, of an hour and all nodes."""
    (panel,) = [each for each in panels(PAGES[page]) if each["title"] == title]
    return asked(panel["targets"][number]["expr"])


def asked(expr: str) -> str:
    return expr.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$node", ".*")


def names(panel: dict[str, Any]) -> set[str]:
    exprs = " ".join(target["expr"] for target in panel["targets"])
    return {*RECORDED.findall(exprs), *(name for name, _ in selectors(RECORDED.sub("", exprs)))}


def urls(panel: dict[str, Any]) -> list[str]:
    """Return where links of its values lead to."""
    config = panel["fieldConfig"]
    of_columns = [each["value"] for override in config["overrides"] for each in override["properties"]
                  if each["id"] == "links"]  # fmt: skip
    return [link["url"] for links in (config["defaults"].get("links", ()), *of_columns) for link in links]


def test_they_are_what_their_program_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(FOLDER / "make.py"), tmp_path], check=True)
    for name in PAGES:
        written = (tmp_path / f"{name}.json").read_text()
        assert written == (FOLDER / f"{name}.json").read_text(), "run deploy/monitoring/dashboards/make.py again"


@each_page
def test_prometheus_takes_each_expression(name: str, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": asked(expr)} for number, expr in enumerate(expressions(PAGES[name]))]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool_says("check", "rules", path)


@each_page
def test_they_show_metrics_and_labels_that_there_are(name: str) -> None:
    known = {"up": set[str](), **dict(metrics())}
    for expr in expressions(PAGES[name]):
        assert set(RECORDED.findall(expr)) <= recorded(), expr
        for metric, labels in selectors(RECORDED.sub("", expr)):
            assert labels <= known[metric] | OF_TARGET, (expr, metric)


@each_page
def test_legends_name_labels_that_their_series_have(name: str) -> None:
    known = dict(metrics())
    for panel in panels(PAGES[name]):
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            of_series = {label for metric in names({"targets": [target]}) for label in known.get(metric, ())}
            assert shown <= of_series | OF_TARGET, panel["title"]


@each_page
def test_each_panel_that_is_wanted_is_there(name: str) -> None:
    shown = {panel["title"]: names(panel) for panel in panels(PAGES[name])}
    for title, wanted in WANTED[name].items():
        assert wanted <= shown[title], title


@each_page
def test_no_panel_hides_another_and_each_says_what_it_shows(name: str) -> None:
    page = PAGES[name]
    every = [each for panel in page["panels"] for each in (panel, *panel.get("panels", ()))]
    assert len({each["id"] for each in every}) == len(every)
    titles = [panel["title"] for panel in panels(page)]
    assert sorted(titles) == sorted(set(titles))
    assert all(panel["title"] and panel["description"].endswith(".") for panel in panels(page))
    # The panels of a closed row move down what is below it when it is opened.
    for shown in (page["panels"], *(row.get("panels", []) for row in page["panels"])):
        taken = [(each["gridPos"], each["title"]) for each in shown]
        assert all(place["x"] + place["w"] <= 24 for place, _ in taken)
        for (one, title), (two, other) in itertools.combinations(taken, 2):
            beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
            below = one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
            assert beside or below, (title, other)


@each_page
def test_a_mark_has_a_line(name: str) -> None:
    for panel in panels(PAGES[name]):
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] == "timeseries" and "thresholds" in defaults:
            assert defaults["custom"]["thresholdsStyle"]["mode"] == "dashed", panel["title"]
    (memory,) = [each for each in panels(PAGES["node"]) if each["title"] == "Memory in use"]
    legends = ["BEMemoryEvict threshold", "BEMemoryEvict lower", "capacity"]
    lines = [override["matcher"]["options"].strip("/") for override in memory["fieldConfig"]["overrides"]]
    assert all(any(re.search(line, legend) for line in lines) for legend in legends)


@each_page
def test_a_figure_is_red_where_it_is_meant_to_be(name: str) -> None:
    # Grafana gives one without thresholds its own: red from 80 on, of whatever unit.
    for panel in panels(PAGES[name]):
        if panel["type"] == "stat":
            steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert steps[0] == {"value": None, "color": "green"}, panel["title"]


class TestLinks:
    def test_bookmarks_of_both_pages_stay(self) -> None:
        assert {name: page["uid"] for name, page in PAGES.items()} == {"fleet": "koordebpf", "node": "koordebpf-node"}

    def test_both_pages_have_the_same_data_source(self) -> None:
        sources = [page["templating"]["list"][0] for page in PAGES.values()]
        assert sources[0] == sources[1] and sources[0]["type"] == "datasource"
        used = [panel["datasource"]["uid"] for page in PAGES.values() for panel in panels(page)]
        assert set(used) == {"${" + sources[0]["name"] + "}"}

    def test_whatever_names_a_node_leads_to_its_page(self) -> None:
        to_node = re.compile(r"/d/koordebpf-node\?var-node=\$\{__(field\.labels\.node|value\.text)\}&(.*)")
        of_nodes = [
            panel
            for panel in panels(PAGES["fleet"])
            if panel["type"] == "table" or any("{{node}}" in each["legendFormat"] for each in panel["targets"])
        ]
        assert len(of_nodes) > 10
        for panel in of_nodes:
            (url,) = urls(panel)
            found = to_node.fullmatch(url)
            assert found and found[2] == "${datasource:queryparam}&${__url_time_range}", panel["title"]

    def test_a_node_leads_to_all_nodes(self) -> None:
        kept = "/d/koordebpf?${datasource:queryparam}&${__url_time_range}"
        assert [link["url"] for link in PAGES["node"]["links"]] == [kept]
        of_stats = [url for panel in panels(PAGES["node"]) if panel["type"] == "stat" for url in urls(panel)]
        assert of_stats and set(of_stats) == {kept}

    def test_one_node_is_chosen_and_the_fleet_is_all_at_first(self) -> None:
        fleet, node = (page["templating"]["list"][1] for page in PAGES.values())
        assert fleet["name"] == node["name"] == "node" and fleet["query"] == node["query"]
        assert (node["multi"], node["includeAll"]) == (False, False)
        assert (fleet["multi"], fleet["current"]["value"]) == (True, "$__all")

    def test_a_row_of_the_table_is_one_node(self) -> None:
        (table,) = [panel for panel in panels(PAGES["fleet"]) if panel["type"] == "table"]
        for target in table["targets"]:
            assert re.match(r"(round\()?(sum|max|min) by \(node\) \(", target["expr"]), target["expr"]
            assert (target["format"], target["instant"]) == ("table", True)


def series(name: str, values: str, node: str = "n1", **labels: str) -> dict[str, str]:
    all_labels = {"job": "koordebpf", "instance": f"{node}:9320", "node": node, **labels}
    return {"series": name + "{" + ",".join(f'{key}="{value}"' for key, value in all_labels.items()) + "}",
            "values": values}  # fmt: skip


def charged(cause: str, values: str) -> dict[str, str]:
    return series("koordebpf_stall_charged_seconds_total", values, victim="shop/web", cause=cause)


# A panel, series of one sample a minute, and what it shows after two hours.
SHOWN: dict[str, tuple[tuple[str, str], list[dict[str, str]], list[tuple[str, float]]]] = {
    "a node with a lost signal may not act, nor one with two closed guards": (
        ("fleet", "Nodes that may not act"),
        [
            series("koordebpf_lost_signals", "1x120"),
            series("koordebpf_lost_signals", "0x120", "n2"),
            series("koordebpf_guard_closed", "1x120", "n2", reason="pods_stale"),
            series("koordebpf_guard_closed", "1x120", "n2", reason="evictions_useless"),
            series("koordebpf_lost_signals", "0x120", "n3"),
        ],
        [("{}", 2)],
    ),
    "no node is closed": (
        ("fleet", "Nodes that may not act"),
        [series("koordebpf_lost_signals", "0x120")],
        [("{}", 0)],
    ),
    "the lowest threshold is the nearest": (
        ("fleet", "Nearest to its threshold"),
        [
            series("koordebpf_node_used_bytes", "60x120"),
            series("koordebpf_node_threshold_bytes", "80x120", feature="MemoryEvict", mark="threshold"),
            series("koordebpf_node_threshold_bytes", "75x120", feature="BEMemoryEvict", mark="threshold"),
            series("koordebpf_node_threshold_bytes", "65x120", feature="BEMemoryEvict", mark="lower"),
        ],
        [('{node="n1"}', 0.8)],
    ),
    "a controller's CPU is not the agent's": (
        ("node", "Agent's memory"),
        [
            series("koordebpf_dry_run", "0x120"),
            series("process_resident_memory_bytes", "50x120"),
            series("process_resident_memory_bytes", "70x120", instance="controller:9321"),
        ],
        [("{}", 50)],
    ),
    "one batch Node of two has best-effort pods": (
        ("fleet", "Batch memory in use"),
        [
            series("koordebpf_be_memory_bytes", "10x120"),
            series("koordebpf_batch_allocatable_bytes", "40x120"),
            series("koordebpf_be_memory_bytes", "0x120", "n2"),
            series("koordebpf_batch_allocatable_bytes", "60x120", "n2"),
            series("koordebpf_be_memory_bytes", "1000x120", "n3"),
        ],
        [("{}", 0.1)],
    ),
    "stalls are those of the last hour": (
        ("node", "Victims and causes"),
        [
            charged("batch/old", "5x120"),
            charged("batch/grows", "10x70 14x50"),
            charged("batch/new", "_x80 3x40"),
            charged("batch/gone", "_x70 2x20 stale"),
            charged("batch/restarted", "10x90 1x30"),
        ],
        [
            ('{victim="shop/web", cause="batch/grows"}', 4),
            ('{victim="shop/web", cause="batch/new"}', 3),
            ('{victim="shop/web", cause="batch/gone"}', 2),
            ('{victim="shop/web", cause="batch/restarted"}', 1),
        ],
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_a_panel_shows(case: str, tmp_path: Path) -> None:
    (page, title), given, shown = SHOWN[case]
    samples = [{"labels": labels, "value": value} for labels, value in shown]
    test = {"expr": query(page, title), "eval_time": "2h", "exp_samples": samples}
    groups = [{"interval": "1m", "input_series": given, "promql_expr_test": [test]}]
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": groups}))
    assert "SUCCESS" in promtool_says("test", "rules", path)
