"""docs/colocation/koordlet.md has every flag, gate and metric of koordlet; what it calls the same is here."""

from __future__ import annotations

import re
from pathlib import Path

from koordebpf.decision.strategies import FEATURE_GATES
from koordebpf.slo.feature_gates import KOORDLET_GATES
from tests.rules.offenders import report

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/colocation/koordlet.md").read_text()
LISTED = [line.split() for line in (ROOT / "tests/rules/koordlet-1.8.0.txt").read_text().splitlines() if line[0] != "#"]


def first_column(heading: str) -> set[str]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = (line.strip("|").split("|")[0] for line in section.splitlines() if line.startswith("|"))
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_everything_that_koordlet_has_is_on_the_page() -> None:
    wrong = []
    for heading, kinds in (("Flags", ("flag",)), ("Feature gates", ("gate", "hook")), ("Metrics", ("metric",))):
        known = {name for kind, name in LISTED if kind in kinds}
        assert len(known) > 20
        wrong += [f"{heading}: {name}" for name in sorted((first_column(heading) ^ known) - {"--runtime-hooks"})]
    report(wrong, "docs/colocation/koordlet.md and tests/rules/koordlet-1.8.0.txt must both have these, or neither")


def test_its_gates_are_those_that_are_read() -> None:
    assert {name for kind, name in LISTED if kind == "gate"} == set(KOORDLET_GATES)


def test_a_gate_that_is_the_same_here_is_one() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
    same = [name for row in rows if len(row) == 3 and "the same" in row[2] for name in re.findall(r"`([^`]+)`", row[0])]
    assert len(same) > 10
    assert set(same) - set(FEATURE_GATES) == {"--runtime-hooks", "Libpfm4"}


def test_a_metric_that_is_the_same_is_on_the_page_of_metrics() -> None:
    shown = (ROOT / "deploy/metrics.md").read_text() + "".join(
        (ROOT / f"docs/colocation/{page}.md").read_text() for page in ("node-metric", "nri")
    )
    (row,) = re.findall(r"(?m)^\| `start_time`.*", PAGE)
    suffixes = {
        name: name.removeprefix("node_metric_node").removeprefix("node_metric")
        for name in re.findall(r"`([a-z_]+)`", row)
    }
    missing = [name for name, end in suffixes.items() if f"koordlet_{name}" not in shown and f"`{end}`" not in shown]
    report(missing, "docs/colocation/koordlet.md calls these the same: deploy/metrics.md must have them")
