"""What is answered over HTTP: metrics, probes, and on a Unix socket what the agent decided and wrote.

Three listeners, because they are for three kinds of clients. The kubelet's probes have one of their own: a scraper, or
other clients of the metrics, cannot keep them from an answer. Decisions name pods and their UIDs: only who may
open the socket's file reads them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from prometheus_client.registry import Collector

from koordebpf.kernel.io.degraded import degradations
from koordebpf.kernel.io.worker import thread_problems
from koordebpf.kernel.signals import SignalQuality
from koordebpf.printable import json_bytes, printable
from koordebpf.report.http.listener import LIMITS, HttpListener, Limits, Reply, Request, bound_to, probes_beside
from koordebpf.report.http.local_socket import LocalSocket
from koordebpf.report.job_pages import JobPages
from koordebpf.report.prom.page import MetricsPage
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.sink import EligibilityCounted, Event, RoundEnded, TickFailed
from koordebpf.store.write_log import AuditedRequest, AuditedWrite
from koordebpf.units import NS_PER_S


class Health:
    """The sink of what the probes answer. The loop writes, the server's threads read."""

    name = "health"
    takes = (RoundEnded, TickFailed, EligibilityCounted)

    def __init__(self, *, max_silence_ns: int = 10 * NS_PER_S) -> None:
        self._max_silence_ns = max_silence_ns
        self._ticked_ns: int | None = None
        self._reasons: tuple[str, ...] = ("no tick yet",)
        self._lost: tuple[str, ...] = ()
        self.signals: SignalQuality | None = None
        self.beside = JobPages()
        self._ineligible: str | None = None

    def publish(self, event: Event) -> None:
        """Be ready after a round, and not after a tick that failed, until a full one succeeds."""
        match event:
            case RoundEnded(_, view, decision):
                signals = event.signals
                self.rests_on(signals.quality, tuple(f"{lost.signal}: {lost.reason}" for lost in signals.lost))
                self.ticked(view.now_ns, tuple(guard.sentence for guard in decision.guards))
            case TickFailed(reason):
                self.failed(f"the last tick failed: {reason}")
            case EligibilityCounted(found):
                self._ineligible = found.sentence if found and found.is_none else None

    def ticked(self, now_ns: int, not_ready: tuple[str, ...]) -> None:
        """Note one tick and the sentences that keep the agent from acting."""
        self._ticked_ns = now_ns
        self._reasons = not_ready

    def failed(self, reason: str) -> None:
        """Note a tick that ended early: not ready until the next `ticked`."""
        self._reasons = (reason,)

    def rests_on(self, signals: SignalQuality, lost: tuple[str, ...]) -> None:
        """Note what the agent's decisions rest on; while a signal is lost it is not ready."""
        self.signals = signals
        self._lost = lost

    def checks(self, now_ns: int) -> Mapping[str, str | None]:
        """Return the parts by name, and why one does not work: readiness does not depend on them."""
        parts = {each.name: each.failure(now_ns) for each in self.beside.all_checks()}
        parts |= {f"thread {name}": f"an unexpected error: {why}" for name, why in thread_problems().items()}
        parts |= degradations()
        return parts if self._ineligible is None else {**parts, "eligible pods": self._ineligible}

    def live(self, now_ns: int) -> tuple[bool, str]:
        """Tell whether the loop ticks."""
        if self._ticked_ns is None:
            return False, "no tick yet"
        silence_ns = now_ns - self._ticked_ns
        if silence_ns > self._max_silence_ns:
            return False, f"no tick for {silence_ns / NS_PER_S:.1f} s > {self._max_silence_ns / NS_PER_S:.0f} s"
        return True, "ok"

    def ready(self, now_ns: int) -> tuple[bool, tuple[str, ...]]:
        """Tell whether the agent could act now, and why not."""
        is_live, sentence = self.live(now_ns)
        reasons = self._reasons if is_live else (sentence, *(r for r in self._reasons if r != sentence))
        reasons += self._lost
        return not reasons, reasons


# Why more than metrics get: nothing but the kubelet is to reach them, and it must be answered.
_PROBES: Final = Limits(share=0.1, rate_per_s=50)


class ReportServer:
    """Serves metrics and probes from background threads until `close`."""

    def __init__(
        self,
        listen: str,
        collector: Collector,
        health: Health,
        *,
        probe_listen: str | None = "",
        begin: Callable[[], object] | None = None,
    ) -> None:
        """Bind now, so that an address in use ends the start.

        Args:
            listen: host:port of /metrics, and of the probes too as far as its clients leave room; empty for none.
            collector: called from the server's thread.
            health: what the probes answer.
            probe_listen: host:port of the probes alone; empty for none, None: the host of `listen`, its port + 2.
            begin: what each of the threads does first.
        Raises: ConfigError: an address is not `host:port` or cannot be bound.
        """
        if probe_listen is None:
            probe_listen = probes_beside(listen)
        page = MetricsPage(collector)
        with contextlib.ExitStack() as stack:
            self._ports: list[int] = []
            for name, address, option, limits, answer in (
                ("metrics", listen, "--listen", LIMITS, lambda request: _report(request, page, health)),
                ("probes", probe_listen, "--probe-listen", _PROBES, lambda request: _probe(request, health)),
            ):
                sock = stack.enter_context(bound_to(address, option)) if address else None
                self._ports.append(sock.getsockname()[1] if sock else 0)
                if sock:
                    stack.callback(HttpListener(sock, answer, limits, name, begin).close)
            self._stack = stack.pop_all()

    @property
    def port(self) -> int:
        """The port of the metrics, also where 0 was asked for; 0: there is none."""
        return self._ports[0]

    @property
    def probe_port(self) -> int:
        """The same of the probes."""
        return self._ports[1]

    def close(self) -> None:
        """Stop serving and close the sockets."""
        self._stack.close()


_NO_PAGES: Final[Mapping[str, Callable[[str], Any]]] = {}


class DecisionServer:
    """Serves /decisions, /writes, /requests and `pages` on a Unix socket until `close`.

    Functions are called from its thread; a page is given the query of its URL, and returns what is answered as JSON.
    """

    def __init__(
        self,
        local: LocalSocket,
        decisions: Callable[[], Sequence[AuditRecord]],
        writes: Callable[[], Sequence[AuditedWrite]],
        begin: Callable[[], object] | None = None,
        requests: Callable[[], Sequence[AuditedRequest]] = tuple,
        pages: Mapping[str, Callable[[str], Any]] = _NO_PAGES,
    ) -> None:
        remembered: dict[str, Callable[[], Sequence[msgspec.Struct]]] = {
            "/decisions": lambda: list(decisions()),
            "/writes": writes,
            "/requests": requests,
        }

        def answer(request: Request) -> Reply:
            if request.path in pages:
                return _json("200 OK", pages[request.path](request.query))
            if request.path not in remembered:
                return _text("404 Not Found", " ".join((*remembered, *pages)))
            return _json("200 OK", list(remembered[request.path]()))

        self._local = local
        self._listener = HttpListener(local.sock, answer, name="decisions", begin=begin)
        try:
            local.publish()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop serving and remove the socket's file."""
        self._local.withdraw()
        self._listener.close()


def _report(request: Request, page: MetricsPage, health: Health) -> Reply:
    if request.path == "/metrics":
        return page.reply(request.headers)
    if request.path in ("/decisions", "/writes", "/requests", "/pods"):
        return _text("404 Not Found", f"{request.path} is answered on the agent's Unix socket: koordebpf explain")
    return _probe(request, health)


def _probe(request: Request, health: Health) -> Reply:
    now_ns = time.monotonic_ns()
    if request.path == "/healthz":
        is_live, sentence = health.live(now_ns)
        return _text(_status(is_live), sentence)
    if request.path == "/readyz":
        is_ready, reasons = health.ready(now_ns)
        parts = health.checks(now_ns)
        if request.query == "verbose":
            return Reply(_status(is_ready), "text/plain", _ready_text(reasons, health.signals, parts))
        answer: dict[str, Any] = {"ready": is_ready, "reasons": reasons}
        if health.signals:
            answer["signals"] = health.signals
        if parts:
            answer["parts"] = [{"name": name, "problem": problem} for name, problem in parts.items()]
        return _json(_status(is_ready), answer)
    return _text("404 Not Found", "/metrics /healthz /readyz")


# As the API server's own /readyz?verbose: a line for each check.
def _ready_text(reasons: tuple[str, ...], signals: SignalQuality | None, parts: Mapping[str, str | None]) -> bytes:
    lines = [f"[-]{reason}" for reason in reasons]
    if signals:
        lines.append(f"[+]{signals.sentence}")
    lines += [f"[+]{name}" if problem is None else f"[!]{name} {problem}" for name, problem in parts.items()]
    lines.append("readyz check failed" if reasons else "readyz check passed")
    return "".join(f"{printable(line)}\n" for line in lines).encode()


def _status(is_good: bool) -> str:
    return "200 OK" if is_good else "503 Service Unavailable"


def _text(status: str, sentence: str) -> Reply:
    return Reply(status, "text/plain", f"{printable(sentence)}\n".encode())


def _json(status: str, value: Any) -> Reply:
    return Reply(status, "application/json", json_bytes(value) + b"\n")
