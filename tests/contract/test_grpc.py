"""Calls over real gRPC connections to a server of our own making."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from koordebpf.kube.clients.grpc import GrpcError, GrpcSocket
from tests.support.patience import patience

METHOD = "/test.Echo/Say"


class Echo:
    """Answers with what it was sent, as the first byte says: `s` slowly, `f` by failing, `b` with a lot."""

    def __init__(self, path: Path) -> None:
        self.asked: list[bytes] = []
        self.release = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), maximum_concurrent_rpcs=100)
        handler = grpc.unary_unary_rpc_method_handler(self._say)  # no serializer: bytes
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Say": handler}),))
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def _say(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked.append(request)
        match request[:1]:
            case b"s":
                self.release.wait(patience(20))
            case b"f":
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "100 % Ärger")
            case b"b":
                return bytes(1 << 20)
        return request

    def close(self) -> None:
        self.release.set()
        self._server.stop(None).wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "grpc.sock"


@pytest.fixture
def echo(path: Path) -> Iterator[Echo]:
    echo = Echo(path)
    yield echo
    echo.close()


@pytest.fixture
def calls(path: Path) -> Iterator[GrpcSocket]:
    calls = GrpcSocket(path)
    yield calls
    calls.close()


def problem(calls: GrpcSocket, request: bytes = b"x", timeout_s: float | None = None) -> GrpcError:
    (answer,) = calls.call(METHOD, [request], patience(10) if timeout_s is None else timeout_s)
    assert isinstance(answer, GrpcError)
    return answer


@pytest.mark.parametrize("count", [1, 3, 150])
def test_each_request_has_its_answer_in_order(count: int, calls: GrpcSocket, echo: Echo) -> None:
    requests = [f"n{n}".encode() for n in range(count)]
    assert calls.call(METHOD, requests, patience(20)) == requests


def test_a_failure_has_its_code_and_detail(calls: GrpcSocket, echo: Echo) -> None:
    first, failed = calls.call(METHOD, [b"a", b"f"], patience(10))
    assert first == b"a"
    assert isinstance(failed, GrpcError)
    assert (failed.code, str(failed), failed.retry) == (
        "FAILED_PRECONDITION",
        "FAILED_PRECONDITION: 100 % Ärger",
        True,
    )


def test_what_the_server_does_not_have_is_not_tried_again(calls: GrpcSocket, echo: Echo) -> None:
    (answer,) = calls.call("/test.Echo/Shout", [b"a"], patience(10))
    assert isinstance(answer, GrpcError)
    assert (answer.code, answer.retry) == ("UNIMPLEMENTED", False)


def test_an_answer_larger_than_the_window_arrives(calls: GrpcSocket, echo: Echo) -> None:
    for _ in range(3):
        assert calls.call(METHOD, [b"b"], patience(10)) == [bytes(1 << 20)]


def test_a_server_that_is_slow_ends_only_its_own_call(calls: GrpcSocket, echo: Echo) -> None:
    fast, slow = calls.call(METHOD, [b"a", b"s"], patience(1))
    assert fast == b"a"
    assert isinstance(slow, GrpcError)
    assert slow.code == "DEADLINE_EXCEEDED"
    assert calls.call(METHOD, [b"a"], patience(10)) == [b"a"]


def test_threads_do_not_wait_for_each_other(calls: GrpcSocket, echo: Echo) -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(calls.call, METHOD, [b"s"], patience(20))
        assert calls.call(METHOD, [b"a"], patience(10)) == [b"a"]
        assert not slow.done()
        echo.release.set()
        assert slow.result() == [b"s"]


def test_a_server_that_was_restarted_is_asked_within_the_call(calls: GrpcSocket, echo: Echo, path: Path) -> None:
    assert calls.call(METHOD, [b"a"], patience(10)) == [b"a"]
    echo.close()
    again = Echo(path)
    try:
        assert calls.call(METHOD, [b"b1", b"c"], patience(10))[1] == b"c"
        assert again.asked.count(b"c") == 1
    finally:
        again.close()


def test_a_server_that_is_away_is_said(calls: GrpcSocket, echo: Echo) -> None:
    echo.close()
    assert problem(calls).code == "UNAVAILABLE"


def test_no_server_is_asked_without_a_socket(calls: GrpcSocket, path: Path) -> None:
    assert str(problem(calls)) == f"UNAVAILABLE: {path}: No such file or directory"


def test_closing_cuts_a_call_short(calls: GrpcSocket, echo: Echo) -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(problem, calls, b"s")
        ends = time.monotonic() + patience(10)
        while not echo.asked and time.monotonic() < ends:
            time.sleep(0.01)
        calls.close()
        assert waiting.result(patience(5)).code == "UNAVAILABLE"
    assert problem(calls).code == "UNAVAILABLE"


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) * 2])
def test_what_is_no_grpc_server_is_a_failed_call(said: bytes, calls: GrpcSocket, path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(said)

    server = threading.Thread(target=serve)
    server.start()
    assert problem(calls).code in ("UNAVAILABLE", "INTERNAL")
    server.join()
    listener.close()
