"""A server on 127.0.0.1 that speaks HTTP by hand, so that it can misbehave in every way a real one does.

kmock answers well-formed requests well; connections cut inside a line, bodies that never end and handshakes that hang
need the socket itself.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.client import responses
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.patience import patience


def until(condition: Callable[[], Any], what: str | Callable[[], str], timeout_s: float = 30.0) -> Any:
    """Return the first true value of `condition`, however slow the machine is; a callable `what` is called last."""
    deadline = time.monotonic() + patience(timeout_s)
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(patience(0.002))  # where it is slow, asking takes the time of what is asked
    raise TimeoutError(what if isinstance(what, str) else what())


def let_it_spin() -> None:
    """Give a hot loop the time to show itself. A slow machine can only miss it; it never fails what is right."""
    time.sleep(0.2)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "1"


class Exchange:
    """One request and the server's side of its connection."""

    def __init__(self, request: Request, sock: socket.socket, server: Server) -> None:
        self.request = request
        self.keeps_alive = True
        self._sock = sock
        self._server = server

    def answer(self, status: int, body: object = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.head(status, Content_Length=str(len(data)), **headers)
        self.raw(data)

    def head(self, status: int, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} {responses.get(status, '')}", "Content-Type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def raw(self, data: bytes) -> None:
        self._sock.sendall(data)

    def stream(self) -> None:
        self.head(200, Transfer_Encoding="chunked")

    def chunk(self, data: bytes) -> None:
        self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, kind: str, obj: object) -> None:
        self.chunk(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def cut(self) -> None:
        """End the connection without ending the answer."""
        self.keeps_alive = False

    def hold(self) -> None:
        """Send nothing more until the client disconnects or the test ends."""
        self.keeps_alive = False
        self._server.held.append(self)
        self._sock.settimeout(0.02)
        while not self._server.stopping.is_set():
            try:
                if not self._sock.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self._server.held.remove(self)


Reply = Callable[[Exchange], None]


class Server:
    """Accepts connections, one thread each, and hands every request to the reply of its path."""

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.held: list[Exchange] = []
        self.connections = 0
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []
        self.otherwise: Reply = _not_found
        self._replies: dict[str, Reply] = {}
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", port))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._spawn(self._accept)

    def on(self, path: str, reply: Reply) -> None:
        self._replies[path] = reply

    def close(self) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
        assert not self.failures, self.failures

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
            self._sockets.append(sock)
            with sock, sock.makefile("rb") as lines:
                while not self.stopping.is_set() and (exchange := self._next(lines, sock)) is not None:
                    reply = self._replies.get(exchange.request.path, self.otherwise)
                    reply(exchange)
                    if not exchange.keeps_alive:
                        return
        except OSError:
            sock.close()  # the client went, which every client may
        except BaseException as e:
            self.failures.append(e)  # close() shows it; raised here too, it would fail whatever test comes next

    # None: the client went, before a request or in the middle of one.
    def _next(self, lines: Any, sock: socket.socket) -> Exchange | None:
        first = lines.readline().decode()
        if not first.endswith("\n"):
            return None
        method, target, _ = first.split()
        headers: dict[str, str] = {}
        while (line := lines.readline().decode()).strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if not line.endswith("\n"):
            return None
        body_bytes = int(headers.get("content-length", "0"))
        body = lines.read(body_bytes)
        if len(body) < body_bytes:
            return None
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        request = Request(method, url.path, query, headers, body)
        self.requests.append(request)
        return Exchange(request, sock, self)


def _not_found(exchange: Exchange) -> None:
    exchange.answer(404, status(404, "NotFound", "the server could not find the requested resource"))


def status(code: int, reason: str, message: str, **details: object) -> dict[str, object]:
    """A metav1.Status as the API server writes it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def pod(name: str, version: int, uid: str | None = None, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "be",
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort"},
    }


def node(version: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": str(version)},
        "status": {
            "capacity": {"memory": "16Gi"},
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.7"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        },
    }


def nodeslo(version: int, percent: int = 70) -> dict[str, Any]:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "n1", "uid": "uid-slo", "resourceVersion": str(version)},
        "spec": {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": percent}},
    }


def listing(items: Iterable[object], version: int | str, more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}


def gives(status_code: int, body: object = b"", **headers: str) -> Reply:
    return lambda exchange: exchange.answer(status_code, body, **headers)


def hold_open(exchange: Exchange) -> None:
    exchange.stream()
    exchange.hold()


@dataclass
class Collection:
    """One resource: replies to its first lists and watches, then a healthy one."""

    path: str
    items: list[Any] = field(default_factory=list)
    version: int = 100
    lists: deque[Reply] = field(default_factory=deque)
    watches: deque[Reply] = field(default_factory=deque)
    seen_lists: list[Request] = field(default_factory=list)
    seen_watches: list[Request] = field(default_factory=list)

    def reply(self, exchange: Exchange) -> None:
        if exchange.request.is_watch:
            self.seen_watches.append(exchange.request)
            (self.watches.popleft() if self.watches else hold_open)(exchange)
        else:
            self.seen_lists.append(exchange.request)
            items = [item for item in self.items if _is_asked(exchange.request.path, item)]
            reply = self.lists.popleft() if self.lists else gives(200, listing(items, self.version))
            reply(exchange)


def _is_asked(path: str, item: Any) -> bool:
    _, is_one, rest = path.partition("/poddisruptionbudgets")[0].partition("/policy/v1/namespaces/")
    return not is_one or item["metadata"]["namespace"] == rest


class Cluster:
    """The resources that an agent looks at, on one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pods = Collection("/api/v1/pods", [pod("a", 10), pod("b", 20)])
        self.nodes = Collection("/api/v1/nodes", [node(5)])
        self.nodeslos = Collection("/apis/slo.koordinator.sh/v1alpha1/nodeslos", [nodeslo(7)])
        self.configmaps = Collection("/api/v1/namespaces/koordinator-system/configmaps")
        self.pdbs = Collection("/apis/policy/v1/poddisruptionbudgets")
        self.topologies = Collection("/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies")
        self.cnrs = Collection("/apis/node.katalyst.kubewharf.io/v1alpha1/customnoderesources")
        self.namespaces = Collection("/api/v1/namespaces")
        # What is asked of one namespace is answered with what is there.
        for namespace in ("be", "default"):
            server.on(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", self.pdbs.reply)
        for collection in (
            self.pods,
            self.nodes,
            self.nodeslos,
            self.configmaps,
            self.pdbs,
            self.topologies,
            self.cnrs,
            self.namespaces,
        ):
            server.on(collection.path, collection.reply)
