"""The page on batch resources: its rows name tests that exist, its fields are all that there are."""

from __future__ import annotations

import re
from pathlib import Path

from koordebpf.slo.manager.colocation import ColocationStrategy
from koordebpf.slo.manager.node_colocation import DEFAULT_COLOCATION, NodeColocation
from tests.contract.test_koordinator_page import cases_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/colocation/batch-resources.md").read_text()


def test_each_difference_is_shown_by_tests_that_exist() -> None:
    rows = [line for line in PAGE.partition("## Where it differs")[2].splitlines() if "](" in line]
    assert len(rows) >= 8
    for row in rows:
        tests = re.findall(r'\]\(\.\./\.\./(tests/[\w/]+\.py) "([\w:]+)"\)', row)
        assert len(tests) == row.count("](") > 0, row
        for path, test in tests:
            assert test in cases_of(ROOT / path), (path, test)


def test_every_field_of_colocation_config_has_a_row() -> None:
    rows = PAGE.partition("## Fields of colocation-config")[2].partition("\nNot here")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in rows.splitlines() if "|" in line)))
    assert named == {*ColocationStrategy.__struct_fields__, "nodeConfigs"}
    assert named - {"nodeConfigs", "extensions"} == set(NodeColocation.__struct_fields__)


def test_the_defaults_of_the_page_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (`[^|]+) \| ([\w., ]+) \|", PAGE.partition("## Fields")[2], re.MULTILINE)
    assert len(rows) > 10
    for fields, default in rows:
        names = [name for name in re.findall(r"`(\w+)`", fields) if hasattr(DEFAULT_COLOCATION, name)]
        values = default.split(", ") if default.count(", ") == len(names) - 1 else [default] * len(names)
        for name, written in zip(names, values, strict=True):
            value = getattr(DEFAULT_COLOCATION, name)
            if name != "metricAggregatePolicy":
                assert written == ("none" if value is None else str(value).lower() if value is False else str(value)), (
                    name
                )
