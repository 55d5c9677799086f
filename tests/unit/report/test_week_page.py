"""The week of shadow mode as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.cli import _group
from koordebpf.decision.what_if.week import DEFINITIONS
from koordebpf.errors import ConfigError
from koordebpf.tools.incident.week import week_page
from tests.support.values.weeks import week

HOSTILE = "</script><script>window.hacked=1</script>"


def test_it_answers_for_each_configuration_and_defines_its_words() -> None:
    page = week_page([week()], "/x")
    assert (
        "eager would have evicted 21 pods, 14.0 GiB: 7 needlessly, and in time for 7 of 14 crossings and OOM kills"
        in page
    )
    assert "node-1: eager" not in page  # the heading has its name
    assert "memoryEvictThresholdPercent=75" in page and "as the acting one, enforced" in page
    assert "it has no memory threshold in force: none is set" in page
    assert "2.5 (1.0…4.0) s" in page
    assert all(text in page.replace("&lt;", "<") for text in DEFINITIONS.values())
    assert '"id":"evictions-1"' in page
    assert ">\u2013<" in page  # of the first day nothing is known of one


def test_a_single_day_has_no_plot_and_several_nodes_have_parts() -> None:
    assert "<script" not in week_page([week(1)], "/x")
    assert "no day yet" in week_page([week(0)], "/x")
    two = week_page([week(), week()], "/x")
    assert two.count("node-1: eager would have evicted") == 2
    assert 'id="evictions-1"' in two and 'id="evictions-2"' in two and 'id="node-2"' in two


def test_days_are_days_and_what_nothing_is_known_of_is_no_zero() -> None:
    text = " ".join(re.sub("<[^>]*>", " ", week_page([week(2)], "/x")).split())
    assert "2027-01-01 2 3 – 2027-01-02 2 3 3" in text  # of the plot's table
    assert "2027-01-01 2 1 1 3 – 2027-01-02 2 1 1 3 3" in text


def test_hostile_names_stay_text() -> None:
    page = week_page([msgspec.structs.replace(week(name=HOSTILE), node=HOSTILE)], HOSTILE)
    assert HOSTILE not in page
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, _: found.append(tag)  # type: ignore[method-assign]
    parser.feed(page)
    assert found.count("script") == 2 and not {"img", "svg", "iframe"} & set(found)


def test_the_command(tmp_path: Path) -> None:
    kept = tmp_path / "node-1.json"
    kept.write_bytes(msgspec.json.encode(week()))
    for source in (kept, tmp_path):
        page = tmp_path / "week.html"
        arguments = ["report", "--week", str(source), "-o", str(page)]
        result = CliRunner().invoke(_group, arguments, catch_exceptions=False)
        assert result.exit_code == 0 and "Shadow mode on node-1" in page.read_text()
    both = CliRunner().invoke(_group, ["report", "--week", str(kept), "-o", str(page), "--since", "1"])
    assert both.exit_code == 2 and "excludes" in both.output
    none = CliRunner().invoke(_group, ["report", "-o", str(page)])
    assert none.exit_code == 2 and "Missing argument" in none.output
    with pytest.raises(ConfigError):
        CliRunner().invoke(_group, ["report", "--week", str(tmp_path / "no"), "-o", str(page)], catch_exceptions=False)
