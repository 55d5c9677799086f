"""The page of an incident in a real browser: it loads nothing, runs no name, is read by keys and by screen readers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from tests.contract.apiserver import until
from tests.support.patience import patience
from tests.support.values.incidents import HOSTILE

PLOTS = 4
OPENS_WITHIN_MS = 1000
FETCH = "const done = arguments[0]; fetch(location.href + '?more').then(() => done('sent'), () => done('refused'))"
pytestmark = pytest.mark.slow  # a browser: make test-all runs all of it


def test_it_loads_nothing_and_breaks_no_rule(browser: Browser, page: Path) -> None:
    loads_nothing(browser, page, PLOTS)


class Served:
    """A server of one page, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.text = b""


@pytest.fixture
def server() -> Iterator[tuple[Served, str]]:
    served = Served()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(served.text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield served, f"http://127.0.0.1:{made.server_port}/incident"
        made.shutdown()
        thread.join()


def test_its_policy_lets_no_script_reach_the_network(browser: Browser, page: Path, server: tuple[Served, str]) -> None:
    served, address = server
    served.text = page.read_bytes()
    browser.open(address)
    assert browser.driver.execute_async_script(FETCH) == "refused"
    assert served.asked == ["/incident"]
    served.text = re.sub(rb"<meta http-equiv[^>]*>", b"", served.text)  # without it the same script reaches it
    browser.open(address)
    assert browser.driver.execute_async_script(FETCH) == "sent"
    assert "/incident?more" in served.asked


def test_no_name_of_a_pod_is_run(browser: Browser, hostile: Path) -> None:
    runs_no_name(browser, hostile, PLOTS, HOSTILE[0])


def test_a_script_that_a_name_would_bring_in_is_not_run_either(browser: Browser, page: Path, tmp_path: Path) -> None:
    refuses_a_script(browser, page, tmp_path)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_plot_is_drawn(browser: Browser, page: Path, dark: bool) -> None:
    browser.emulate(dark=dark)
    browser.open(page)
    assert background(browser) == (DARK if dark else LIGHT)
    for identity, least in (("memory", 14), ("stalls", 5), ("growth", 3), ("suppression", 4)):
        assert colours(browser, identity) >= least, identity


def test_plots_follow_the_theme_that_changes(browser: Browser, page: Path) -> None:
    browser.open(page)
    picture = "return document.querySelector('#plot-memory canvas').toDataURL()"
    before = browser.run(picture)
    browser.emulate(dark=True)
    until(lambda: browser.run(picture) != before, "the plots are drawn in other colours", 10)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_that_a_screen_reader_would_stumble_over(browser: Browser, page: Path, dark: bool) -> None:
    browser.emulate(dark=dark)
    satisfies_axe(browser, page)


def test_axe_finds_what_is_wrong(browser: Browser, page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = page.read_text().replace(' lang="en"', "").replace("--soft: #57606a", "--soft: #d0d0d0")
    broken.write_text(re.sub("<meta http-equiv[^>]*>", "", text))  # which allows no other style
    browser.open(broken)
    assert {"color-contrast", "html-has-lang"} <= {each["id"] for each in browser.axe()["violations"]}


def test_keys_reach_everything_and_move_through_time(browser: Browser, page: Path) -> None:
    reached = reached_by_tab(browser, page, 60)
    plots = list(dict.fromkeys(each for each in reached if each.startswith("plot-")))
    assert plots == ["plot-memory", "plot-stalls", "plot-growth", "plot-suppression"]  # in the order of the page
    assert reached.count("SUMMARY") >= PLOTS
    plot = browser.driver.find_element(By.ID, "plot-memory")
    assert plot.get_attribute("role") == "slider"
    plot.send_keys(Keys.END)
    assert plot.get_attribute("aria-valuenow") == "299"
    plot.send_keys(Keys.ARROW_LEFT, Keys.PAGE_DOWN)
    assert plot.get_attribute("aria-valuenow") == "288"
    said = plot.get_attribute("aria-valuetext")
    assert said is not None and said.startswith("08:19:12 UTC: batch/spark-executor-0000-x7k2p ")
    assert "threshold 24.0 GiB" in said
    values = browser.run("return [...document.querySelectorAll('#memory .legend .value')].map((e) => e.textContent)")
    assert "24.0 GiB" in values


def test_without_a_script_the_tables_are_there(browser: Browser, page: Path) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page)
    assert browser.driver.find_element(By.CSS_SELECTOR, "noscript p").is_displayed()
    summary = browser.driver.find_element(By.CSS_SELECTOR, "#memory summary")
    summary.click()
    cells = browser.driver.find_elements(By.CSS_SELECTOR, "#memory td")
    assert len(cells) == 60 * 15 and cells[0].is_displayed() and cells[0].text.endswith("GiB")


def test_it_is_printed_on_white_with_its_plots(browser: Browser, page: Path) -> None:
    is_printed_on_white(browser, page, 2)


def test_it_fits_a_narrow_window(browser: Browser, page: Path) -> None:
    fits(browser, page, 400)


def test_motion_is_reduced_where_that_is_wished(browser: Browser, page: Path) -> None:
    smooth = "return getComputedStyle(document.documentElement).scrollBehavior"
    browser.open(page)
    assert browser.run(smooth) == "smooth"
    browser.emulate(reduced_motion=True)
    assert browser.run(smooth) == "auto"


def test_an_hour_of_1000_pods_opens_at_once(browser: Browser, large: Path) -> None:
    painted, loaded = [], []
    for _ in range(3):  # Why: this machine may do something else meanwhile
        browser.open(large)
        assert drawn(browser) == str(PLOTS)
        paint_ms, load_ms = browser.opened_ms()
        painted.append(paint_ms)
        loaded.append(load_ms)
    print(f"first paint {min(painted):.0f} ms, loaded {min(loaded):.0f} ms, {large.stat().st_size / 1024:.0f} KiB")
    assert min(loaded) < patience(OPENS_WITHIN_MS)
