"""One browser for all tests of this folder. It has to be there: nothing is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.report.incident.page import incident_page
from tests.browser.chromium import Browser, chromium
from tests.support.values.incidents import HOSTILE, incident


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
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
