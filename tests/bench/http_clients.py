"""What HTTP clients cost the loop: how late a 4 ms sleeper wakes while they do their worst, and how fast probes are."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing

from koordebpf.kernel.kill import hurry_this_thread
from koordebpf.report.http import Health, ReportServer
from koordebpf.report.metrics import AgentMetrics
from koordebpf.state.ledger import Charge
from koordebpf.state.view import Party
from tests.attackers import drips, floods, holds
from tests.bench.figure import at_most, figure, percentile
from tests.bench.report import Report

_TICK_S = 0.004  # the loop's pace near the threshold
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
    """Run each load against a server with the metrics of 300 pods."""
    seconds = 5.0 if report.quick else 20.0
    health = Health(max_silence_ns=10**15)
    health.ticked(time.monotonic_ns(), ())
    server = ReportServer("127.0.0.1:0", _metrics(), health, probe_listen="127.0.0.1:0", begin=hurry_this_thread)
    with closing(server):
        if problem := hurry_this_thread():
            report.say(problem)
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
            # Before each load: the machine's own noise is larger than what is looked for.
            quiet = _measure(report, f"before {name}", contextlib.nullcontext, probes, seconds, None)
            _measure(report, name, load, probes, seconds, quiet)


def _measure(report: Report, name: str, load: Load, probe_port: int, seconds: float, quiet: float | None) -> float:
    command = [sys.executable, "-c", _PROBER, str(probe_port), str(seconds)]
    with load(), subprocess.Popen(command, stdout=subprocess.PIPE) as prober:
        cpu_s, begin_s = time.process_time(), time.monotonic()
        late = _lateness_ms(seconds)
        share = (time.process_time() - cpu_s) / (time.monotonic() - begin_s)
        out, _ = prober.communicate()
    method = f"4 ms sleeper in the server's process, {_PODS} pods, {share:.1%} of a CPU"
    reach = None if quiet is None else quiet + 1
    report.add(figure(f"late, {name}", "ms", late, method, reach_p99=reach))
    took = json.loads(out)
    report.add(at_most(f"slowest probe, {name}", "ms", max(took), 1000, f"n {len(took)}, a new connection each"))
    return percentile(late, 0.99)


def _lateness_ms(seconds: float) -> list[float]:
    late, end_s = [], time.monotonic() + seconds
    while (begin_s := time.monotonic()) < end_s:
        time.sleep(_TICK_S)
        late.append((time.monotonic() - begin_s - _TICK_S) * 1000)
    return late


def _metrics() -> AgentMetrics:
    metrics = AgentMetrics()
    for n in range(_PODS):
        for scope in ("global", "limit"):
            metrics.add_stall("be", f"pod-{n}", scope, n)
    web, hog = (Party(uid, "pod", f"ns/{uid}", uid=uid) for uid in ("web", "hog"))
    metrics.ledger.add([Charge(web, hog, 1)])
    return metrics
