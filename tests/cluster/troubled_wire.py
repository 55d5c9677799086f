"""A way to the API server on which things go wrong: it hands requests on, or answers itself, or cuts and repeats."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import urllib3
from urllib3.response import BaseHTTPResponse

_HANDED_ON = ("Authorization", "Content-Type", "Accept")


class TroubledWire:
    """An HTTP server on loopback in front of the API server; `url` goes into a kubeconfig.

    `answer` is the status that every request gets instead of being handed on; None: none.
    `watch_s` cuts each watch after so long, in mid-line; `repeats` sends each event of a watch so often.
    `counts` is how many requests got which status, and how many watches were cut.
    """

    def __init__(self, url: str, ca_file: Path) -> None:
        self.answer: int | None = None
        self.watch_s: float | None = None
        self.repeats = 1
        self.counts: Counter[int | str] = Counter()
        self._url = url
        self._http = urllib3.PoolManager(ca_certs=str(ca_file), maxsize=16)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        wire = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                wire.hand_on(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        return Handler

    def hand_on(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if (status := self.answer) is not None:
            self.counts[status] += 1
            self._send(request, status, _status(status))
            return
        headers = {name: request.headers[name] for name in _HANDED_ON if name in request.headers}
        is_watch = "watch=1" in request.path
        answer = self._http.request(
            request.command,
            self._url + request.path,
            headers=headers,
            body=body,
            retries=False,
            preload_content=False,
            timeout=urllib3.Timeout(read=self.watch_s if is_watch else None),
        )
        self.counts[answer.status] += 1
        if is_watch and answer.status == 200:
            self._stream(request, answer)
        else:
            self._send(request, answer.status, answer.read())
            answer.release_conn()

    def _send(self, request: http.server.BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _stream(self, request: http.server.BaseHTTPRequestHandler, answer: BaseHTTPResponse) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        ends = time.monotonic() + (self.watch_s or float("inf"))
        rest = b""
        try:
            while time.monotonic() < ends and (chunk := answer.read1(1 << 16)):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    request.wfile.write((line + b"\n") * self.repeats)
            request.wfile.write(rest)
        except urllib3.exceptions.HTTPError:  # silent for as long
            pass
        except OSError:
            self.counts["hung up"] += 1
            return
        finally:
            answer.close()
        if self.watch_s is not None:
            self.counts["cut"] += 1
            with contextlib.suppress(OSError):
                request.wfile.write(b'{"type":"MODIF')


def _status(code: int) -> bytes:
    reason = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}[code]
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"}
    return json.dumps(said).encode()
