"""What hooks around evictions add to an agent's round, how late they make its loop, and what they take of memory."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from pathlib import Path

from koordebpf.act.eviction_hook_settings import NO_HOOKS, EvictionHookSettings, WebhookHook
from koordebpf.act.eviction_hooks import Webhook, open_hooks
from koordebpf.agent.sinks import Sinks, open_sinks
from koordebpf.decision.decide_tick import decided_again
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kube.http.deadlines import OpenConnections
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import Plan
from koordebpf.report.eviction_hooks import EvictionHookSink
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import PlanDecided, PlanStarted, TickEnded
from koordebpf.units import NS_PER_MS
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.support.values.rounds import tick_at

PODS = 110
_CALL_EVERY_S = 0.02
_STEP_S = 0.001


def eviction_hooks(report: Report) -> None:
    """Measure a round's events, the loop's lateness, and memory."""
    with _servers() as (answers, hangs):
        _rounds(report, {"none": NO_HOOKS, "4 that work": _webhooks(answers), "4 that hang": _webhooks(hangs)})
        _lateness(report, answers)
        _memory(report, answers)


# The URLs of one that answers at once, in a process of its own, and of one that never does.
@contextmanager
def _servers() -> Iterator[tuple[str, str]]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    process = get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    with server.socket, socket.create_server(("127.0.0.1", 0)) as hangs:
        try:
            yield _url(server.socket), _url(hangs)
        finally:
            process.terminate()
            process.join()


def _url(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}/"


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _webhooks(url: str) -> EvictionHookSettings:
    hooks = (WebhookHook(name=f"hook-{n}", url=url, timeout_seconds=1) for n in range(4))
    return EvictionHookSettings(webhooks=tuple(hooks))


# In turn, so that what else the machine does is in each of them.
def _rounds(report: Report, settings: dict[str, EvictionHookSettings]) -> None:
    n = 100 if report.quick else 1_000
    plan = decided_again(tick_at(0, used_mib=900, pods=PODS)).plan
    method = f"events of a round that evicts, through all sinks; {PODS} pods"
    samples: dict[str, list[float]] = {name: [] for name in settings}
    rigs = {name: _rig(each) for name, each in settings.items()}
    raise_thread_priority()
    for number in range(n):
        for name, (sinks, _) in rigs.items():
            since_ns = time.perf_counter_ns()
            _publish(sinks, plan, number * NS_PER_MS)
            samples[name].append((time.perf_counter_ns() - since_ns) / 1e3)
        time.sleep(_STEP_S)
    for name, taken in samples.items():
        report.add(figure(f"a round's events, hooks: {name}", "µs", taken, method))
    for _, close in rigs.values():
        close()


def _rig(settings: EvictionHookSettings) -> tuple[Sinks, Callable[[], None]]:
    plans = OpenPlans("node", dry_run=False)
    opened = open_hooks(settings)
    hooks = EvictionHookSink(opened, plans) if settings.webhooks else None
    return open_sinks(plans, AgentMetrics(), Health(), Recent(plans), hooks=hooks), opened.close


def _publish(sinks: Sinks, plan: Plan, now_ns: int) -> None:
    sinks.publish(PlanStarted(plan, None, now_ns, 0.0))
    pods = [each.candidate for each in plan.victims]
    gone = [Outcome(pod.uid, pod.namespace, pod.name, "api", Result.GONE, "gone", now_ns) for pod in pods]
    sinks.publish(PlanDecided(plan, tuple(gone), None, now_ns, 0.0))
    for outcome in gone:
        sinks.publish(OutcomeArrived(outcome, now_ns))
    sinks.publish(TickEnded(now_ns))


# A loop that sleeps for a millisecond, while another thread calls a webhook; how late it wakes.
def _lateness(report: Report, url: str) -> None:
    n = 1_000 if report.quick else 5_000
    webhook = Webhook(WebhookHook(name="hook", url=url), OpenConnections())
    ways: dict[str, Callable[[], object]] = {
        "nothing is called": lambda: None,
        "a webhook is called": lambda: webhook.call(b"{}"),
    }
    for name, start in ways.items():
        with _starting(start):
            late = []
            for _ in range(n):
                due_ns = time.perf_counter_ns() + int(_STEP_S * 1e9)
                time.sleep(_STEP_S)
                late.append((time.perf_counter_ns() - due_ns) / 1e3)
        method = f"a loop each ms; one call each {_CALL_EVERY_S * 1e3:.0f} ms by another thread"
        report.add(figure(f"the loop is late, {name}", "µs", late, method))


@contextmanager
def _starting(start: Callable[[], object]) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.wait(_CALL_EVERY_S):
            start()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _memory(report: Report, url: str) -> None:
    before = _kib()
    hooks = open_hooks(_webhooks(url))
    for _ in range(20):
        hooks.call("before", lambda _: b"{}", dry_run=False)
    while sum(hooks.counts().values()) < 80:
        time.sleep(0.01)
    report.add(figure("memory of 4 hooks in the agent", "KiB", [_kib() - before], "smaps_rollup, RSS"))
    hooks.close()


def _kib() -> float:
    text = Path("/proc/self/smaps_rollup").read_text()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("Rss:")))
