"""A cluster as `kubectl koordebpf` sees it: an HTTP server with pages by path, and commands in pods by websocket."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455


class Said(NamedTuple):
    """What a command says. `parts` are sent one by one as standard output."""

    parts: Iterable[bytes] = ()
    stderr: bytes = b""
    code: int = 0
    cut: bool = False  # the connection ends before the command does
    wait_s: float = 0.0
    status: bytes | None = None  # in place of what the code says


Command = Callable[[str, list[str]], Said]


class RemoteCluster:
    """`pages`: path → object, bytes, or an HTTP status; `run`: what a command says in the pod of a name."""

    def __init__(self, folder: Path) -> None:
        self.pages: dict[str, Any] = {}
        self.run: Command = lambda pod, command: Said()
        self.exec_status = 101
        self.asked: list[str] = []
        ours = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                ours._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.kubeconfig = folder / "kubeconfig"
        self.write_kubeconfig()

    def write_kubeconfig(self, **context: str) -> None:
        contexts = [
            {"name": "here", "context": {"cluster": "here", "user": "jane", **context}},
            {"name": "nowhere", "context": {"cluster": "gone", "user": "jane", "namespace": "far"}},
        ]
        clusters = [
            {"name": "here", "cluster": {"server": self.url}},
            {"name": "gone", "cluster": {"server": "http://127.0.0.1:9"}},
        ]
        users = [{"name": "jane", "user": {"token": "secret"}}]
        config = {"contexts": contexts, "clusters": clusters, "users": users, "current-context": "here"}
        self.kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        self.asked.append(request.path)
        if request.headers.get("Authorization") != "Bearer secret":
            self._send(request, 401, b"{}")
        elif parts.path.endswith("/exec"):
            self._execute(request, parts.path.split("/")[-2], parse_qs(parts.query))
        else:
            found = self.pages.get(request.path, self.pages.get(parts.path, 404))
            if callable(found):
                found = found()
            if isinstance(found, int):
                message = json.dumps({"kind": "Status", "code": found, "message": f"status {found}"}).encode()
                self._send(request, found, message)
            else:
                self._send(request, 200, found if isinstance(found, bytes) else json.dumps(found).encode())

    def _send(self, request: http.server.BaseHTTPRequestHandler, code: int, body: bytes) -> None:
        request.send_response(code)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _execute(self, request: http.server.BaseHTTPRequestHandler, pod: str, query: Mapping[str, list[str]]) -> None:
        if self.exec_status != 101:
            self._send(request, self.exec_status, json.dumps({"code": self.exec_status, "message": "no"}).encode())
            return
        key = request.headers["Sec-WebSocket-Key"].encode()
        request.send_response(101)
        for name, value in (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()),
            ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
        ):
            request.send_header(name, value)
        request.end_headers()
        said = self.run(pod, query["command"])
        time.sleep(said.wait_s)
        try:
            for part in said.parts:
                request.wfile.write(frame(b"\x01" + part))
            request.wfile.write(frame(b"\x02" + said.stderr))
            if not said.cut:
                request.wfile.write(frame(b"\x03" + (said.status or status_of(said.code))))
        except OSError:  # the client waits no longer
            pass
        request.close_connection = True


def frame(message: bytes) -> bytes:
    """Return a binary message in one frame, as a server sends it: RFC 6455, 5.2."""
    size = len(message)
    if size < 126:
        return bytes([0x82, size]) + message
    if size < 1 << 16:
        return bytes([0x82, 126]) + struct.pack(">H", size) + message
    return bytes([0x82, 127]) + struct.pack(">Q", size) + message


def status_of(code: int) -> bytes:
    """Return what the API server says of an exit code."""
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    cause = {"reason": "ExitCode", "message": str(code)}
    failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return json.dumps({"metadata": {}, **failed, "message": f"command terminated with exit code {code}"}).encode()


def agent_pod(node: str, *, ready: bool = True, mode: str = "enforce") -> dict[str, Any]:
    """Return an agent's pod, as the API server lists it."""
    return {
        "metadata": {
            "name": f"koordebpf-agent-{node}",
            "namespace": "koordebpf-system",
            "uid": f"uid-{node}",
            "labels": {"koordebpf.io/mode": mode},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "agent", "ports": [{"name": "http", "containerPort": 9320}]}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }
