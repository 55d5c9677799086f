"""What kubectl's plugin takes and prints, without a cluster."""

from __future__ import annotations

import json

import click
import pytest

from koordebpf.cli.kubectl.commands import report
from koordebpf.cli.kubectl.options import show


def test_a_value_is_shown_as_json_that_people_read_as_yaml_or_as_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"b": ["é"], "a": 1}
    for output, text in (
        ("json", json.dumps(value, indent=2, ensure_ascii=False) + "\n"),
        ("yaml", "b:\n- é\na: 1\n"),
        (None, "the page\n"),
    ):
        show(value, output, lambda: "the page")
        assert capsys.readouterr().out == text


def test_report_takes_a_node_and_the_arguments_of_the_command_here() -> None:
    assert report.make_context("report", ["worker-1", "-o", "page.html"]).params["arguments"] == ("-o", "page.html")
    assert report.make_context("report", ["worker-1"]).params["arguments"] == ()
    with pytest.raises(click.MissingParameter, match="node"):
        report.make_context("report", [])
