"""Webhooks around an eviction against real servers: TLS with a CA of their own, and whatever a server may do."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordebpf.act.eviction_hook_settings import EvictionHookSettings, WebhookHook
from koordebpf.act.eviction_hooks import Ran, Webhook, open_hooks, read_headers
from koordebpf.kube.http.deadlines import OpenConnections
from tests.support.patience import patience

PAYLOAD = b'{"schema":"koordebpf.eviction-hook/v1"}\n'


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        code = int(self.path.strip("/") or 200)
        said = b"" if code == 204 else b"taken"
        self.send_response(code)
        if 300 <= code < 400:
            self.send_header("Location", "/200")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA of its own, ca.crt, and what it signed for localhost, tls.crt and tls.key."""
    folder = tmp_path_factory.mktemp("authority")
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    ca, leaf = f"-keyout {folder}/ca.key -out {folder}/ca.crt", f"-keyout {folder}/tls.key -out {folder}/tls.crt"
    signed = f"-CA {folder}/ca.crt -CAkey {folder}/ca.key -addext subjectAltName=DNS:localhost"
    signed += " -addext basicConstraints=critical,CA:FALSE"
    for command in (f"{request} -subj /CN=authority {ca}", f"{request} -subj /CN=localhost {signed} {leaf}"):
        subprocess.run(command.split(), check=True, capture_output=True)
    return folder


class Server:
    def __init__(self, authority: Path | None = None) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
        self.taken: list[tuple[str, dict[str, str], bytes]] = []
        self._server.taken = self.taken  # type: ignore[attr-defined]
        scheme = "http"
        if authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority / "tls.crt", authority / "tls.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://localhost:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def tls(authority: Path) -> Iterator[Server]:
    server = Server(authority)
    yield server
    server.close()


@pytest.fixture
def plain() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@contextmanager
def webhook(url: str | None, **more: Any) -> Iterator[Webhook]:
    wires = OpenConnections()
    try:
        yield Webhook(WebhookHook(name="chat", url=url, **{"timeout_seconds": 5, **more}), wires)
    finally:
        wires.cut()


def call(url: str | None, **more: Any) -> Ran:
    with webhook(url, **more) as hook:
        return hook.call(PAYLOAD)


class TestTls:
    def test_a_server_of_ones_own_ca_is_called(self, tls: Server, authority: Path, tmp_path: Path) -> None:
        (tmp_path / "headers").write_text("Authorization: Bearer s3cret\nX-Team: night\n\n")
        with webhook(tls.url, ca_file=str(authority / "ca.crt"), headers_file=str(tmp_path / "headers")) as hook:
            assert [hook.call(PAYLOAD) for _ in range(2)] == [Ran("done", "", "taken")] * 2
        for path, headers, body in tls.taken:
            assert (path, body) == ("/", PAYLOAD)
            assert headers["Content-Type"] == "application/json"
            assert (headers["Authorization"], headers["X-Team"]) == ("Bearer s3cret", "night")

    def test_a_certificate_of_an_unknown_ca_is_refused(self, tls: Server) -> None:
        ran = call(tls.url)
        assert ran.ending == "failed"
        assert "certificate verify failed" in ran.detail
        assert tls.taken == []

    def test_a_certificate_of_another_name_is_refused(self, tls: Server, authority: Path) -> None:
        ran = call(tls.url.replace("localhost", "127.0.0.1"), ca_file=str(authority / "ca.crt"))
        assert ran.ending == "failed"
        assert "127.0.0.1" in ran.detail
        assert tls.taken == []

    def test_a_ca_file_that_is_not_there_fails_the_call(self, tls: Server, tmp_path: Path) -> None:
        ran = call(tls.url, ca_file=str(tmp_path / "absent"))
        assert (ran.ending, ran.detail) == ("failed", "No such file or directory")


class TestAnswers:
    @pytest.mark.parametrize("code", [200, 201, 202, 204])
    def test_good_ones(self, plain: Server, code: int) -> None:
        assert call(f"{plain.url}/{code}").ending == "done"

    @pytest.mark.parametrize("code", [400, 404, 429, 500, 503])
    def test_bad_ones_are_not_asked_again(self, plain: Server, code: int) -> None:
        assert call(f"{plain.url}/{code}") == Ran("failed", f"answered {code}", "taken")
        assert len(plain.taken) == 1

    @pytest.mark.parametrize("code", [301, 302, 307, 308])
    def test_a_redirect_is_not_followed(self, plain: Server, code: int) -> None:
        ran = call(f"{plain.url}/{code}")
        assert (ran.ending, ran.detail) == ("failed", f"answered {code}, and redirects are not followed")
        assert [path for path, *_ in plain.taken] == [f"/{code}"]

    def test_a_proxy_of_the_environment_is_not_asked(self, plain: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        assert call(plain.url).ending == "done"


class TestTrouble:
    def test_nothing_listens(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ran = call(f"http://127.0.0.1:{port}")
        assert (ran.ending, ran.detail) == ("failed", "Connection refused")

    def test_a_name_that_is_none(self) -> None:
        assert call("http://no-such-host.invalid/").ending == "failed"

    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_a_server_that_says_nothing(self, scheme: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            since_s = time.monotonic()
            ran = call(f"{scheme}://127.0.0.1:{server.getsockname()[1]}", timeout_seconds=1)
            assert (ran.ending, ran.detail) == ("timed_out", "no answer within 1 s")
            assert 0.9 < time.monotonic() - since_s < patience(10)

    @pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["head", "body"])
    def test_a_server_that_trickles_is_cut(self, begin: bytes) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            over = threading.Event()

            def trickle() -> None:
                peer, _ = server.accept()
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(begin)
                    while not over.wait(0.05):
                        try:
                            peer.sendall(b"x")
                        except OSError:
                            return

            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            since_s = time.monotonic()
            call(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_seconds=1)
            took_s = time.monotonic() - since_s
            over.set()
            thread.join()
            assert took_s < patience(10)

    def test_what_is_no_http(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer() -> None:
                peer, _ = server.accept()
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(b"SSH-2.0-x\r\n")

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            assert call(f"http://127.0.0.1:{server.getsockname()[1]}").ending == "failed"
            thread.join()


class TestHeaders:
    @pytest.mark.parametrize("text", ["Authorization Bearer s3cret", "A: b\x01c s3cret", ": s3cret", " A: s3cret"])
    def test_what_is_no_header_is_named_by_its_line_alone(self, plain: Server, tmp_path: Path, text: str) -> None:
        path = tmp_path / "headers"
        path.write_text(f"X: y\n{text}\n")
        with pytest.raises(ValueError, match=r"headers:2: must be Name: value$"):
            read_headers(path)

    def test_a_file_that_is_too_large(self, tmp_path: Path) -> None:
        (tmp_path / "headers").write_text("X: y\n" * 5000)
        with pytest.raises(ValueError, match="more than 16384 bytes"):
            read_headers(tmp_path / "headers")

    def test_a_file_that_cannot_be_read_fails_the_call(self, tls: Server, authority: Path, tmp_path: Path) -> None:
        ran = call(tls.url, ca_file=str(authority / "ca.crt"), headers_file=str(tmp_path / "absent"))
        assert (ran.ending, ran.detail) == ("failed", "No such file or directory")
        assert tls.taken == []


class TestUrlFile:
    def test_it_is_read_for_each_call(self, plain: Server, tmp_path: Path) -> None:
        path = tmp_path / "url"
        with webhook(None, url_file=str(path)) as hook:
            assert hook.call(PAYLOAD).detail == "No such file or directory"
            path.write_text(f"{plain.url}/201\n")
            assert hook.call(PAYLOAD).ending == "done"
            path.write_text(f"{plain.url}/202\n")
            assert hook.call(PAYLOAD).ending == "done"
        assert [where for where, *_ in plain.taken] == ["/201", "/202"]

    def test_what_is_none_is_not_shown(self, tmp_path: Path) -> None:
        (tmp_path / "url").write_text("chat.example/s3cret")
        ran = call(None, url_file=str(tmp_path / "url"))
        assert (ran.ending, "s3cret" in ran.detail) == ("failed", False)
        assert "must be a URL with http:// or https:// and a host" in ran.detail

    def test_headers_are_not_sent_unencrypted(self, plain: Server, tmp_path: Path) -> None:
        (tmp_path / "url").write_text(plain.url)
        (tmp_path / "headers").write_text("Authorization: Bearer s3cret")
        ran = call(None, url_file=str(tmp_path / "url"), headers_file=str(tmp_path / "headers"))
        assert (ran.ending, ran.detail) == ("failed", "headersFile needs an https:// url: http is not encrypted")
        assert plain.taken == []


def test_a_server_that_hangs_does_not_keep_the_hooks_from_their_end(plain: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hooks = open_hooks(
            EvictionHookSettings(
                webhooks=(
                    WebhookHook(name="hangs", url=f"http://127.0.0.1:{server.getsockname()[1]}", timeout_seconds=30),
                    WebhookHook(name="works", url=plain.url),
                )
            )
        )
        hooks.call("after", lambda name: json.dumps({"hook": name}).encode(), dry_run=False)
        until_s = time.monotonic() + patience(10)
        while not plain.taken:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        since_s = time.monotonic()
        hooks.close()
        assert time.monotonic() - since_s < patience(10)
    assert plain.taken[0][2] == b'{"hook": "works"}'
