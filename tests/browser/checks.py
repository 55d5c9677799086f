"""What holds for every page that `koordebpf report` makes, as seen in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import Browser

LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
_COLOURS = """
const canvas = document.querySelector('#plot-' + arguments[0] + ' canvas');
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
const seen = new Set();
for (let at = 0; at < pixels.length; at += 4) seen.add(pixels[at] << 16 | pixels[at + 1] << 8 | pixels[at + 2]);
return seen.size;
"""


def drawn(browser: Browser) -> str:
    """Return how many plots the page's script has drawn."""
    return str(browser.run("return document.documentElement.dataset.drawn"))


def colours(browser: Browser, plot: str) -> int:
    """Return how many colours a plot's canvas has."""
    return int(browser.run(_COLOURS, plot))


def background(browser: Browser) -> str:
    return str(browser.run("return getComputedStyle(document.documentElement).backgroundColor"))


def violations(found: dict[str, Any]) -> list[str]:
    """Return what axe found, with the elements."""
    return [f"{each['id']}: {node['html'][:160]}" for each in found["violations"] for node in each["nodes"]]


def loads_nothing(browser: Browser, page: Path, plots: int) -> None:
    browser.open(page)
    assert drawn(browser) == str(plots)
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []


def runs_no_name(browser: Browser, page: Path, plots: int, name: str) -> None:
    browser.open(page)
    assert drawn(browser) == str(plots)
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('img, svg, iframe, object, embed').length") == 0
    assert browser.complaints() == []
    assert name in browser.driver.find_element(By.TAG_NAME, "body").text


def refuses_a_script(browser: Browser, page: Path, folder: Path) -> None:
    forged = folder / "forged.html"
    forged.write_text(page.read_text().replace("<h1>", "<script>window.hacked = 1</script><h1>"))
    browser.open(forged)
    assert browser.run("return window.hacked") is None
    assert any("Content Security Policy" in each for each in browser.complaints())


def satisfies_axe(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    found = browser.axe()
    assert len(found["passes"]) > 20
    assert violations(found) == []


def reached_by_tab(browser: Browser, page: Path, keys: int) -> list[str]:
    """Press the tabulator so often; return what was focused after the link over the contents: ids, or tags."""
    browser.open(page)
    browser.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    reached = []
    for _ in range(keys):
        reached.append(str(browser.run("const e = document.activeElement; return e.id || e.tagName")))
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    return reached


def is_printed_on_white(browser: Browser, page: Path, sheets: int) -> None:
    browser.emulate(dark=True)
    browser.open(page)
    browser.run("addEventListener('beforeprint', () => { window.printed = document.documentElement.className })")
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= sheets
    assert browser.run("return window.printed") == "paper"
    assert browser.run("return document.documentElement.className") == ""  # and on the screen it is as before


def fits(browser: Browser, page: Path, width: int) -> None:
    browser.command("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    try:
        browser.open(page)
        assert browser.run("return document.documentElement.scrollWidth") <= width
    finally:
        browser.command("Emulation.clearDeviceMetricsOverride")
