"""The page of an incident: how large an hour's is, how long it takes to make and until a browser shows it."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figure import at_most, figure
from tests.bench.report import Report
from tests.support.values.incident_hours import record_hour

_OPENED = 5


def incident(report: Report) -> None:
    """Make pages of an hour with 110 and with 1,000 pods, and open them."""
    with tempfile.TemporaryDirectory() as name:
        for pods in (110,) if report.quick else (110, 1000):
            _measure(report, Path(name), pods)


def _measure(report: Report, folder: Path, pods: int) -> None:
    recording, page = folder / f"{pods}.rounds", folder / f"{pods}.html"
    record_hour(recording, pods, 600 if report.quick else 3600)
    report.say(f"{pods} pods: a recording of {recording.stat().st_size >> 20} MiB")
    started_s = time.monotonic()
    command = [sys.executable, "-m", "koordebpf", "report", str(recording), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    took_s = time.monotonic() - started_s
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    size = page.stat().st_size / (1 << 20)
    report.add(at_most(f"page of an hour, {pods} pods", "MiB", size, 2.0, "koordebpf report of a seeded hour"))
    report.add(figure(f"making it, {pods} pods", "s", [took_s], "wall clock of the command"))
    report.add(figure(f"its memory, {pods} pods", "MiB", [peak_mib], "largest maximum RSS of the commands so far"))
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        report.cannot("opening a page: .ci/setup browser installs Chromium")
        return
    from tests.browser.chromium import chromium

    painted, loaded = [], []
    with chromium() as browser:
        for _ in range(_OPENED):
            browser.open(page)
            paint_ms, load_ms = browser.opened_ms()
            painted.append(paint_ms)
            loaded.append(load_ms)
    report.add(figure(f"first paint, {pods} pods", "ms", painted, "Chromium without a window", reach_p50=1000))
    report.add(figure(f"all plots drawn, {pods} pods", "ms", loaded, "end of the load event", reach_p50=1000))
