"""/metrics, /healthz, /readyz, /decisions and /writes. Sleeps in accept() between requests."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from koordebpf.errors import ConfigError
from koordebpf.kernel.quality import SignalQuality
from koordebpf.report.audit import AuditRecord
from koordebpf.report.writes import AuditedWrite
from koordebpf.units import NS_PER_S

_REQUEST_TIMEOUT_S = 5  # Why: a client that sends nothing must not hold one of the few threads
_MAX_REQUESTS = 8  # at once; one more is closed unanswered


class Health:
    """What the probes answer. The loop writes, the server's threads read."""

    def __init__(self, *, max_silence_ns: int = 10 * NS_PER_S) -> None:
        self._max_silence_ns = max_silence_ns
        self._ticked_ns: int | None = None
        self._reasons: tuple[str, ...] = ("no tick yet",)
        self._lost: tuple[str, ...] = ()
        self.signals: SignalQuality | None = None

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


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(_MAX_REQUESTS)
        super().__init__(address, _Quiet)

    def server_bind(self) -> None:
        # HTTPServer's own asks DNS for this host's name, which may take seconds on a node in trouble.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, so that none will release it
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not our error."""


class _Quiet(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds: they are not news."""


class ReportServer:
    """Serves the metrics and probes from a background thread until `close`."""

    def __init__(
        self,
        listen: str,
        collector: Collector,
        health: Health,
        decisions: Callable[[], Sequence[AuditRecord]] = tuple,
        writes: Callable[[], Sequence[AuditedWrite]] = tuple,
    ) -> None:
        """Bind now, so that an address in use ends the start. The functions are called from the server's threads.

        Raises: ConfigError: `listen` is not `host:port` or cannot be bound.
        """
        host, port = _parse_listen(listen)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server = _Server((host, port), socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ConfigError("--listen", listen, f"cannot be bound: {error.strerror or error}") from error
        self._server.set_app(_dispatcher(make_wsgi_app(registry), health, {"/decisions": decisions, "/writes": writes}))
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port in use, also where 0 was asked for."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving and close the socket."""
        self._closing = True
        # accept() is woken by shutting the socket down; serve_forever() would wake twice a second to look at a flag.
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.socket.close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()


def _dispatcher(
    metrics: WSGIApplication, health: Health, remembered: Mapping[str, Callable[[], Sequence[msgspec.Struct]]]
) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", "text/plain", b"GET only\n")
        if path == "/metrics":
            return metrics(environ, start_response)
        now_ns = time.monotonic_ns()
        if path == "/healthz":
            is_live, sentence = health.live(now_ns)
            return _answer(start_response, _status(is_live), "text/plain", f"{sentence}\n".encode())
        if path == "/readyz":
            is_ready, reasons = health.ready(now_ns)
            if environ["QUERY_STRING"] == "verbose":
                return _answer(start_response, _status(is_ready), "text/plain", _ready_text(reasons, health.signals))
            told = {"ready": is_ready, "reasons": reasons}
            body = msgspec.json.encode(told | {"signals": health.signals} if health.signals else told) + b"\n"
            return _answer(start_response, _status(is_ready), "application/json", body)
        if path in remembered:
            body = msgspec.json.encode(list(remembered[path]())) + b"\n"
            return _answer(start_response, "200 OK", "application/json", body)
        return _answer(start_response, "404 Not Found", "text/plain", b"/metrics /healthz /readyz /decisions /writes\n")

    return app


# As the API server's own /readyz?verbose: a line for each check.
def _ready_text(reasons: tuple[str, ...], signals: SignalQuality | None) -> bytes:
    lines = [f"[-]{reason}" for reason in reasons]
    if signals:
        lines.append(f"[+]{signals.sentence}")
    lines.append("readyz check failed" if reasons else "readyz check passed")
    return "".join(f"{line}\n" for line in lines).encode()


def _status(is_good: bool) -> str:
    return "200 OK" if is_good else "503 Service Unavailable"


def _answer(start_response: StartResponse, status: str, content_type: str, body: bytes) -> Iterable[bytes]:
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


def _parse_listen(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError("--listen", listen, "must be host:port, with port 0…65535")
    return host.strip("[]"), int(port)
