"""What HTTP clients cost the loop: how late a 4 ms sleeper wakes while they do their worst, and how fast probes are."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing

from koordebpf.report.http.routes import Health, ReportServer
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.measured import Party
from koordebpf.state.stalls.ledger import Charge
from tests.bench.figure import at_most, figure, percentile
from tests.bench.report import CannotMeasure, Report
from tests.support.attackers import drips, floods, holds

_TICK_S = 0.004  # the loop's pace near the threshold
_READS = 20
_PODS = 300
_PROBER = """
import http.client, json, os, sys, time
os.setpriority(os.PRIO_PROCESS, 0, 0)
took, end = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    begin = time.monotonic()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        took.append((time.monotonic() - begin) * 1000)
    except (OSError, http.client.HTTPException):
        took.append(10_000)
    time.sleep(0.05)
print(json.dumps(took))
"""

Load = Callable[[], contextlib.AbstractContextManager[object]]


def http_clients(report: Report) -> None:
    """Run each load against a server with the metrics of 300 pods, in pairs with and without."""
    pairs, seconds = (3, 1.0) if report.quick else (12, 2.0)
    health = Health(max_silence_ns=10**15)
    health.ticked(time.monotonic_ns(), ())
    _real_time()
    server = ReportServer("127.0.0.1:0", _metrics(), health, probe_listen="127.0.0.1:0", begin=_real_time)
    with closing(server):
        port, probes = server.port, server.probe_port
        loads: dict[str, Load] = {
            "8 slow clients": lambda: drips(port, 8, 0.5),
            "200 slow clients": lambda: drips(port, 200, 0.5),
            "1,000 idle connections": lambda: holds(port, 1000),
            "endless short connections": lambda: floods(port, 10_000_000),
            "the same from 250 addresses": lambda: floods(port, 10_000_000, "127.0.1.*"),
            "endless short connections to the probes": lambda: floods(probes, 10_000_000),
        }
        for name, load in loads.items():
            _measure(report, name, load, probes, pairs, seconds)


# What else the machine does would be larger than what is looked for: with the loop and the server's threads in a
# real-time class, of the same priority, what is left is how long they wait for each other's interpreter.
def _real_time() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError as error:
        raise CannotMeasure(f"no real-time class for the loop and the server: {error.strerror}") from None


def _measure(report: Report, name: str, load: Load, probe_port: int, pairs: int, seconds: float) -> None:
    without: list[float] = []
    with_load: list[float] = []
    later: list[float] = []  # p99 with minus p99 without, of each pair
    took: list[float] = []
    shares: list[float] = []
    for _ in range(pairs):
        quiet = _lateness_ms(seconds)
        command = [sys.executable, "-c", _PROBER, str(probe_port), str(seconds)]
        with load(), subprocess.Popen(command, stdout=subprocess.PIPE) as prober:
            cpu_s, begin_s = time.process_time(), time.monotonic()
            loaded = _lateness_ms(seconds)
            shares.append((time.process_time() - cpu_s) / (time.monotonic() - begin_s))
            out, _ = prober.communicate()
        took += json.loads(out)
        without += quiet
        with_load += loaded
        later.append(percentile(loaded, 0.99) - percentile(quiet, 0.99))
    method = (
        f"4 ms sleeper that then reads 20 counters, in the server's process, both SCHED_FIFO; {_PODS} pods, {pairs}"
        f" pairs of {seconds:g} s"
    )
    report.add(figure(f"late, before {name}", "ms", without, method))
    report.add(figure(f"late, {name}", "ms", with_load, f"{method}, {percentile(shares, 0.5):.1%} of a CPU"))
    report.add(figure(f"p99 with minus without, {name}", "ms", later, "of each pair", reach_p50=1))
    report.add(at_most(f"slowest probe, {name}", "ms", max(took), 1000, f"n {len(took)}, a new connection each"))


def _lateness_ms(seconds: float) -> list[float]:
    # The interpreter is let go with each read, as in a tick.
    fd = os.open("/proc/self/stat", os.O_RDONLY)
    late, end_s = [], time.monotonic() + seconds
    while (begin_s := time.monotonic()) < end_s:
        time.sleep(_TICK_S)
        for _ in range(_READS):
            os.pread(fd, 16, 0)
        late.append((time.monotonic() - begin_s - _TICK_S) * 1000)
    os.close(fd)
    return late


def _metrics() -> AgentMetrics:
    metrics = AgentMetrics()
    for n in range(_PODS):
        for scope in ("global", "limit"):
            metrics.pods.add_stall("be", f"pod-{n}", scope, n)
    web, hog = (Party(uid, "pod", f"ns/{uid}", uid=uid) for uid in ("web", "hog"))
    metrics.ledger.add([Charge(web, hog, 1)])
    return metrics
