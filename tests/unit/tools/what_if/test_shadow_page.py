"""`koordebpf shadow`: a week on one page."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from koordebpf.cli import _group
from koordebpf.decision.what_if.shadow import Shadows
from koordebpf.decision.what_if.variant import Variant
from koordebpf.decision.what_if.week import DEFINITIONS, ShadowWeek
from koordebpf.errors import ConfigError
from koordebpf.tools.what_if.page import shadow_page
from koordebpf.units import MIB
from tests.support.values.played_node import jobs_of, play
from tests.support.values.weeks import week

EAGER = {"memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 60}


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(_group, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def raw() -> bytes:
    made = ShadowWeek(
        node="node-1",
        kubelet_hard_bytes=100 * MIB,
        settings={"enforced": {}, "eager": EAGER, "odd": {"memoryEvictLowerPercent": 90}},
        problems={"odd": "lower percent(90) should less than threshold percent(80)"},
    )
    variants = [Variant("enforced"), Variant("eager", EAGER), Variant("odd", {"memoryEvictLowerPercent": 90})]
    for seed in range(7):
        shadows = Shadows(variants, 100 * MIB)
        for each in play(jobs_of(seed, 150), 150, enforce=False):
            shadows.observe(each.tick, each.view, each.decision)
        made = made.with_day(shadows.drain(f"2026-03-0{seed + 1}"))
    return msgspec.json.encode(made)


@pytest.fixture
def folder(tmp_path: Path, raw: bytes) -> Path:
    (tmp_path / "machine.json").write_bytes(raw)
    return tmp_path


def test_a_week_of_dry_run_answers_on_one_page(folder):
    page = run("shadow", folder).output
    said = " ".join(page.split())
    lines = page.splitlines()
    assert max(map(len, lines)) <= 80
    assert "node-1, 2026-03-01 to 2026-03-07" in said and "dry run" in said
    assert "enforced would have evicted" in said and "crossings and OOM kills" in said
    rows = {line.split("  ")[0]: line.split()[-3:] for line in lines if line[:1].islower()}
    kept = msgspec.json.decode((folder / "machine.json").read_bytes(), type=ShadowWeek)
    assert rows["evictions"] == [str(kept.total(name).evictions) for name in ("enforced", "eager", "odd")]
    assert rows["needless"] == [str(kept.total(name).needless) for name in ("enforced", "eager", "odd")]
    assert sum(line.startswith("2026-03-0") for line in lines) == 7
    assert "enforced: as the acting one, enforced" in said
    assert "odd has no memory threshold in force: lower percent(90)" in said
    assert all(" ".join(text.split()) in said for text in DEFINITIONS.values())


def test_a_configuration_that_was_not_there_yet_has_no_zero():
    lines = [line.split() for line in shadow_page(week(2)).splitlines()]
    assert ["2027-01-01", "2", "1", "1", "3", "-"] in lines
    assert ["2027-01-02", "2", "1", "1", "3", "3"] in lines
    assert ["lead", "over", "kubelet,", "s", "2.5", "(1.0…4.0)", "2.5", "(1.0…4.0)"] in lines


def test_an_earlier_threshold_has_the_longer_lead(folder):
    kept = msgspec.json.decode((folder / "machine.json").read_bytes(), type=ShadowWeek)
    enforced, eager = kept.total("enforced"), kept.total("eager")
    assert kept.node_total().kubelet > 0
    assert eager.over_acting.mean_s > enforced.over_acting.mean_s
    assert eager.evictions > enforced.evictions > 0
    assert kept.total("odd").evictions == 0


def test_fewer_days_and_json(folder):
    found = json.loads(run("shadow", folder / "machine.json", "--days", 2, "--json").output)
    assert found["schema"] == "koordebpf.shadow/v1"
    assert [each["day"] for each in found["days"]] == ["2026-03-06", "2026-03-07"]


def test_each_node_of_a_folder_has_its_page(folder):
    (folder / "other.json").write_bytes(msgspec.json.encode(ShadowWeek(node="node-2", is_dry_run=False)))
    page = run("shadow", folder).output
    assert "node-1, " in page and "node-2, no day yet" in page
    assert page.count("What the") == 0 and page.count("needless: ") == 1  # definitions once


def test_where_no_agent_keeps_a_week_it_says_what_to_set(tmp_path):
    with pytest.raises(ConfigError, match=r"shadow\.configurations"):
        run("shadow", tmp_path)
    with pytest.raises(ConfigError, match="must be a file of shadow mode"):
        run("shadow", tmp_path / "none")


def test_help_defines_each_count():
    page = " ".join(run("shadow", "--help").output.split())
    assert all(" ".join(text.split()) in page for text in DEFINITIONS.values())
