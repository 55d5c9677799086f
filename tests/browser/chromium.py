"""A real Chromium without a window, by Selenium, and what it says of a page."""

from __future__ import annotations

import base64
import importlib.resources
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.contract.apiserver import until

WIDTH, HEIGHT = 1280, 1000
_PAINTED = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_LOADED = "return performance.getEntriesByType('navigation')[0]?.loadEventEnd"


class NoBrowser(Exception):
    """Chromium or its driver is not installed."""


class Browser:
    """One Chromium. Everything it asks the network for since a page was opened is known."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path | str) -> None:
        """Show a file or an address; what was asked for before is forgotten."""
        self.requests()
        self.driver.get_log("browser")
        self.driver.get(path.resolve().as_uri() if isinstance(path, Path) else path)

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script of the page's world returns."""
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **arguments: object) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call."""
        found = [json.loads(each["message"])["message"] for each in self.driver.get_log("performance")]
        return [each["params"]["request"]["url"] for each in found if each["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Return warnings and errors of the console: of scripts, and of the policy."""
        return [each["message"] for each in self.driver.get_log("browser")]

    def emulate(self, media: str = "screen", *, dark: bool = False, reduced_motion: bool = False) -> None:
        """Show pages from now on as for these wishes of a reader."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"},
        ]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)

    def opened_ms(self) -> tuple[float, float]:
        """Return when the page was first painted and when it was loaded, since it was asked for. Milliseconds."""
        painted = until(lambda: self.run(_PAINTED), "the page is painted", 10)
        return painted, until(lambda: self.run(_LOADED), "the page is loaded", 10)

    def axe(self) -> dict[str, Any]:
        """Return what axe-core finds on the page, by rule: violations, passes."""
        self.run(importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
        found: dict[str, Any] = self.driver.execute_async_script("const done = arguments[0]; axe.run().then(done)")
        return found

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is shown as a PNG; `whole`: all of the page."""
        made = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        made = self.command("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        return base64.b64decode(made["data"])


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a Chromium that keeps its files in a folder of its own, and end it.

    Its folder has a short path: Chromium ends at once where that of its socket has more than 107 bytes.

    Raises:  NoBrowser: it is not here; `.ci/setup browser` installs it.
    """
    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver_program is None:
        raise NoBrowser("chromium and chromedriver are not installed: .ci/setup browser")
    with tempfile.TemporaryDirectory(prefix="koordebpf-chromium-", ignore_cleanup_errors=True) as home:
        driver = _driver(program, driver_program, home)
        try:
            browser = Browser(driver)
            browser.command("Network.enable")
            browser.command("Page.enable")
            yield browser
        finally:
            driver.quit()


def _driver(program: str, driver_program: str, home: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root has none; it shows our own page alone
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--force-device-scale-factor=1",
        "--hide-scrollbars",
        f"--window-size={WIDTH},{HEIGHT}",
        f"--user-data-dir={home}/profile",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    environment = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
    return webdriver.Chrome(options=options, service=Service(driver_program, env=environment))
