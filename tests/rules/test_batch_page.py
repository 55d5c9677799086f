"""The page on batch resources: its fields are all that there are, with their defaults."""

from __future__ import annotations

import re

from koordebpf.slo.manager.colocation import ColocationStrategy
from koordebpf.slo.manager.node_colocation import DEFAULT_COLOCATION, NodeColocation
from tests.rules.offenders import report
from tests.rules.pages import DOCS, name_of, rows

PATH = DOCS / "colocation/batch-resources.md"
PAGE = PATH.read_text()


def test_every_field_of_colocation_config_has_a_row() -> None:
    rows = PAGE.partition("## Fields of colocation-config")[2].partition("\nNot here")[0]
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in rows.splitlines() if "|" in line)))
    assert named == {*ColocationStrategy.__struct_fields__, "nodeConfigs"}
    assert named - {"nodeConfigs", "extensions"} == set(NodeColocation.__struct_fields__)


def test_the_defaults_of_the_page_are_those_of_the_code() -> None:
    found = [row for row in rows(PATH, "## Fields of colocation-config") if re.fullmatch(r"[\w., ]+", row.cells[1])]
    assert len(found) > 10
    wrong = []
    for row in found:
        names = [name for name in re.findall(r"`(\w+)`", row.cells[0]) if hasattr(DEFAULT_COLOCATION, name)]
        default = row.cells[1]
        values = default.split(", ") if default.count(", ") == len(names) - 1 else [default] * len(names)
        for name, written in zip(names, values, strict=True):
            if name != "metricAggregatePolicy" and written != (is_now := shown(getattr(DEFAULT_COLOCATION, name))):
                wrong.append(f"{row.at}: {name}: {written}: must be {is_now}")
    report(wrong, f"{name_of(PATH)} must have the defaults of slo/manager/node_colocation.py")


def shown(value: object) -> str:
    """Return a default as the page writes it."""
    return "none" if value is None else "false" if value is False else str(value)
