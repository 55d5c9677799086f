"""One browser for all tests of this folder. It has to be there: nothing is skipped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.what_if.week import ShadowWeek
from koordebpf.tools.incident.page import incident_page
from tests.browser.chromium import Browser, chromium
from tests.support.values.incidents import HOSTILE, incident
from tests.support.values.weeks import week

pytest.register_assert_rewrite("tests.browser.checks")


@pytest.fixture(scope="session")
def running() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def browser(running: Browser) -> Iterator[Browser]:
    running.emulate()
    yield running
    running.command("Emulation.setScriptExecutionDisabled", value=False)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "incident.html"
    path.write_text(incident_page(incident(pods=60, moments=300)))
    return path


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "incident.html"
    path.write_text(incident_page(incident(names=HOSTILE)))
    return path


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "incident.html"
    path.write_text(incident_page(incident(pods=1000, moments=900)))
    return path


def week_html(folder: Path, *weeks: ShadowWeek) -> Path:
    """Return the page that `koordebpf report --week` makes of agents' files."""
    for number, each in enumerate(weeks):
        (folder / f"{number}.json").write_bytes(msgspec.json.encode(each))
    page = folder / "week.html"
    subprocess.run([sys.executable, "-m", "koordebpf", "report", "--week", folder, "-o", page], check=True)
    return page


@pytest.fixture(scope="session")
def of_week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two nodes' weeks."""
    return week_html(tmp_path_factory.mktemp("week"), week(), replace(week(), node="node-2", is_dry_run=False))


@pytest.fixture(scope="session")
def hostile_week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return week_html(tmp_path_factory.mktemp("hostile"), replace(week(name=HOSTILE[1]), node=HOSTILE[0]))


@pytest.fixture(scope="session")
def short_week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a single day, which has no plot."""
    return week_html(tmp_path_factory.mktemp("day"), week(1))
