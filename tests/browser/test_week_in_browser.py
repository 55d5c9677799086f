"""The week of shadow mode in a real browser, by the same checks as the page of an incident."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.checks import (
    DARK,
    LIGHT,
    background,
    colours,
    drawn,
    fits,
    is_printed_on_white,
    loads_nothing,
    reached_by_tab,
    refuses_a_script,
    runs_no_name,
    satisfies_axe,
)
from tests.browser.chromium import Browser
from tests.support.patience import patience
from tests.support.values.incidents import HOSTILE

PLOTS = 2  # one of each node
OPENS_WITHIN_MS = 1000
pytestmark = pytest.mark.slow  # a browser: make test-all runs all of it


def test_it_loads_nothing_and_breaks_no_rule(browser: Browser, of_week: Path) -> None:
    loads_nothing(browser, of_week, PLOTS)


def test_a_single_day_needs_no_script(browser: Browser, short_week: Path) -> None:
    browser.open(short_week)
    assert browser.run("return document.scripts.length") == 0
    assert browser.requests() == [short_week.as_uri()]
    assert browser.complaints() == []


def test_no_name_of_a_node_or_a_configuration_is_run(browser: Browser, hostile_week: Path) -> None:
    runs_no_name(browser, hostile_week, 1, HOSTILE[0])
    runs_no_name(browser, hostile_week, 1, HOSTILE[1])


def test_a_script_that_a_name_would_bring_in_is_not_run_either(browser: Browser, of_week: Path, tmp_path: Path) -> None:
    refuses_a_script(browser, of_week, tmp_path)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_plot_is_drawn(browser: Browser, of_week: Path, dark: bool) -> None:
    browser.emulate(dark=dark)
    browser.open(of_week)
    assert background(browser) == (DARK if dark else LIGHT)
    for node in (1, 2):
        assert colours(browser, f"evictions-{node}") >= 4  # the background, the grid, and two configurations


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_that_a_screen_reader_would_stumble_over(browser: Browser, of_week: Path, dark: bool) -> None:
    browser.emulate(dark=dark)
    satisfies_axe(browser, of_week)


def test_axe_finds_nothing_on_the_page_of_a_day(browser: Browser, short_week: Path) -> None:
    satisfies_axe(browser, short_week)


def test_keys_reach_everything_and_move_through_days(browser: Browser, of_week: Path) -> None:
    reached = reached_by_tab(browser, of_week, 30)
    plots = list(dict.fromkeys(each for each in reached if each.startswith("plot-")))
    assert plots == ["plot-evictions-1", "plot-evictions-2"]
    plot = browser.driver.find_element(By.ID, "plot-evictions-1")
    assert plot.get_attribute("role") == "slider"
    plot.send_keys(Keys.HOME)
    assert plot.get_attribute("aria-valuetext") == "01-01 UTC: acting 2, eager 3"  # of the other nothing is known then
    plot.send_keys(Keys.END)
    assert plot.get_attribute("aria-valuenow") == "6"
    assert plot.get_attribute("aria-valuetext") == "01-07 UTC: acting 2, eager 3, enforced 3"
    values = browser.driver.find_elements(By.CSS_SELECTOR, "#evictions-1 .legend .value")
    assert [each.text for each in values] == ["2", "3", "3"]


def test_without_a_script_the_tables_are_there(browser: Browser, of_week: Path) -> None:
    browser.emulate(reduced_motion=True)  # a click waits for no scrolling
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(of_week)
    assert browser.driver.find_element(By.CSS_SELECTOR, "noscript p").is_displayed()
    browser.driver.find_element(By.CSS_SELECTOR, "#evictions-1 summary").click()
    cells = [each.text for each in browser.driver.find_elements(By.CSS_SELECTOR, "#evictions-1 td")]
    assert cells == ["2", "3", "–", *["2", "3", "3"] * 6]
    counted = browser.driver.find_elements(By.CSS_SELECTOR, "#node-1 table")
    assert len(counted) == 2 and all(each.is_displayed() for each in counted)


def test_it_is_printed_on_white_with_its_plots(browser: Browser, of_week: Path) -> None:
    is_printed_on_white(browser, of_week, 2)


@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_a_window(browser: Browser, of_week: Path, hostile_week: Path, width: int) -> None:
    fits(browser, of_week, width)
    fits(browser, hostile_week, width)


def test_it_opens_at_once(browser: Browser, of_week: Path) -> None:
    loaded = []
    for _ in range(3):  # Why: this machine may do something else meanwhile
        browser.open(of_week)
        assert drawn(browser) == str(PLOTS)
        loaded.append(browser.opened_ms()[1])
    print(f"loaded {min(loaded):.0f} ms, {of_week.stat().st_size / 1024:.0f} KiB")
    assert min(loaded) < patience(OPENS_WITHIN_MS)
