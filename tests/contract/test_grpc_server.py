"""The gRPC server of a plugin: real clients are answered, hostile ones harm no other, and its socket has one owner."""

from __future__ import annotations

import contextlib
import gzip
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from koordebpf.errors import ConfigError, DecodeError
from koordebpf.kube.clients.grpc import GrpcError, GrpcSocket
from koordebpf.kube.plugins.connection import MOST_BYTES, CallFailed
from koordebpf.kube.plugins.server import GrpcServer
from tests.contract.apiserver import until
from tests.support.patience import patience

ECHO, LENGTH, FAIL, WRONG, BROKEN = "/t.T/Echo", "/t.T/Length", "/t.T/Fail", "/t.T/Wrong", "/t.T/Broken"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def _fails(message: bytes) -> bytes:
    raise CallFailed("UNAVAILABLE", "später, 100 %")


def _wrong(message: bytes) -> bytes:
    raise DecodeError("it ends too early")


def _broken(message: bytes) -> bytes:
    raise ZeroDivisionError("a fault of ours")


METHODS = {
    ECHO: lambda message: message,
    LENGTH: lambda message: str(len(message)).encode(),
    FAIL: _fails,
    WRONG: _wrong,
    BROKEN: _broken,
}


class Served:
    """A server in a loop of its own; `later_s` is added to its clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.later_s = 0.0
        self.ended: ConfigError | None = None
        self.server = GrpcServer(path, METHODS, self.now_s())
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def now_s(self) -> float:
        return time.monotonic() + self.later_s

    def _run(self) -> None:
        while not self._ends.is_set():
            select.select([self.server.fileno()], [], [], 0.02)
            self.server.serve(self.now_s())
            try:
                self.server.run_due(self.now_s())
            except ConfigError as error:
                self.ended = error
                return

    @property
    def clients(self) -> int:
        return len(self.server._clients)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self.server.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "plugin.sock")
    yield made
    made.close()


@pytest.fixture
def connect(served: Served) -> Iterator[Callable[..., socket.socket]]:
    """Connections that say whatever a test wants."""
    made: list[socket.socket] = []

    def one(said: bytes = b"") -> socket.socket:
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].connect(str(served.path))
        made[-1].settimeout(patience(5))
        made[-1].sendall(said)
        return made[-1]

    yield one
    for each in made:
        each.close()


def called(path: Path, method: str, message: bytes, timeout_s: float = 10) -> bytes | GrpcError:
    with contextlib.closing(GrpcSocket(path)) as client:
        (answer,) = client.call(method, [message], patience(timeout_s))
        return answer


def is_cut(client: socket.socket) -> bool:
    """Wait for the end of what the server sends."""
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 << 20, MOST_BYTES - 8])
def test_a_message_of_any_size_comes_back(served: Served, size: int) -> None:
    message = os.urandom(size)
    assert called(served.path, ECHO, message, 30) == message


def test_a_client_of_grpc_is_answered_many_calls_at_once(served: Served) -> None:
    with grpc.insecure_channel(f"unix:{served.path}", options=[("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary(ECHO)
        messages = [bytes([number]) * 100_000 for number in range(60)]  # more than streams are allowed
        running = [call.future(message, timeout=patience(20)) for message in messages]
        assert [each.result() for each in running] == messages


@pytest.mark.parametrize(
    ("method", "message", "code", "words"),
    [
        (FAIL, b"", "UNAVAILABLE", "später, 100 %"),
        (WRONG, b"", "INVALID_ARGUMENT", "it ends too early"),
        (BROKEN, b"", "INTERNAL", "a fault of ours"),
        ("/t.T/None", b"", "UNIMPLEMENTED", "/t.T/None"),
        (LENGTH, bytes(MOST_BYTES + 1), "RESOURCE_EXHAUSTED", "more than"),
    ],
)
def test_a_call_that_fails_says_why_and_the_next_one_is_answered(
    served: Served, method: str, message: bytes, code: str, words: str
) -> None:
    with contextlib.closing(GrpcSocket(served.path)) as client:
        (answer,) = client.call(method, [message], patience(20))
        assert isinstance(answer, GrpcError)
        assert answer.code == code, answer
        assert words in str(answer)
        assert client.call(ECHO, [b"next"], patience(10)) == [b"next"]


def test_a_compressed_request_is_refused_by_name(served: Served) -> None:
    with grpc.insecure_channel(f"unix:{served.path}", compression=grpc.Compression.Gzip) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(ECHO)(bytes(10_000), timeout=patience(10))
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "said",
    [
        os.urandom(100_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE + SETTINGS + b"\xff" * 300_000,
        PREFACE + SETTINGS + bytes([255, 255, 255, 0, 0, 0, 0, 0, 1]) + bytes(200_000),  # a frame of 16 MiB
        PREFACE + SETTINGS + bytes([0, 0, 4, 1, 4, 0, 0, 0, 1]) + b"\xff\xff\xff\xff",  # headers that are none
        PREFACE + SETTINGS + bytes([0, 0, 1, 0, 0, 0, 0, 0, 9, 0]),  # data of a stream that was not opened
        gzip.compress(PREFACE, mtime=0),  # the id of a test is the same in each process
    ],
)
def test_a_client_that_sends_garbage_is_cut_off_and_others_are_answered(
    served: Served, connect: Callable[..., socket.socket], said: bytes
) -> None:
    client = connect()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(said)
    assert is_cut(client)
    assert called(served.path, ECHO, b"x") == b"x"


@pytest.mark.parametrize("said", [b"", PREFACE[:10], PREFACE[:-1]])
def test_a_client_that_does_not_finish_its_greeting_is_cut_off_in_time(
    served: Served, connect: Callable[..., socket.socket], said: bytes
) -> None:
    client = connect(said)
    assert called(served.path, ECHO, b"x") == b"x"
    assert served.clients >= 1
    served.later_s = 20
    assert is_cut(client)


def request_head(stream: int = 1) -> bytes:
    """Headers of a call as h2 writes them, without an end."""
    import h2.connection

    client = h2.connection.H2Connection()
    client.initiate_connection()
    headers = [
        (":method", "POST"), (":scheme", "http"), (":path", ECHO), (":authority", "l"),
        ("content-type", "application/grpc"),
    ]  # fmt: skip
    client.send_headers(stream, headers)
    client.send_data(stream, struct.pack("!BI", 0, 1000) + b"half")
    return client.data_to_send()


def test_half_a_message_is_cut_off_in_time_and_an_idle_client_is_not(
    served: Served, connect: Callable[..., socket.socket]
) -> None:
    idle = connect(PREFACE + SETTINGS)
    half = connect(request_head())
    until(
        lambda: [each.is_idle for each in list(served.server._clients.values())] == [True, False], "both have sent it"
    )
    served.later_s = 14
    assert called(served.path, ECHO, b"x") == b"x"
    served.later_s = 20
    assert is_cut(half)
    served.later_s = 3600
    idle.settimeout(0.3)
    assert not is_cut(idle)


def test_a_client_that_does_not_read_holds_up_no_other(served: Served, connect: Callable[..., socket.socket]) -> None:
    import h2.connection

    client = h2.connection.H2Connection()
    client.initiate_connection()
    silent = connect(client.data_to_send())
    silent.settimeout(0.5)
    sent = 0
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
    with contextlib.suppress(TimeoutError):
        while sent < 64 << 20:
            silent.sendall(ping * 1000)
            sent += 17_000
    assert sent < 16 << 20  # the server reads no more of it
    assert called(served.path, ECHO, b"x") == b"x"


@pytest.mark.slow
def test_clients_that_send_halves_of_large_messages_have_no_more_memory_than_all_may_have(
    served: Served, connect: Callable[..., socket.socket]
) -> None:
    import h2.connection
    import h2.exceptions

    part_bytes, clients = 12 << 20, 8
    for _ in range(clients):
        client, http = connect(), h2.connection.H2Connection()
        http.initiate_connection()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", ECHO), (":authority", "l")]
        http.send_headers(1, [*headers, ("content-type", "application/grpc")])
        sent = 0
        client.settimeout(0.02)
        try:
            while sent < part_bytes:
                room = min(http.local_flow_control_window(1), http.max_outbound_frame_size)
                if room:
                    http.send_data(1, struct.pack("!BI", 0, 16 << 20).ljust(room, b"x") if not sent else bytes(room))
                    sent += room
                client.settimeout(patience(5))
                client.sendall(http.data_to_send())
                client.settimeout(0.001 if room else patience(5))
                with contextlib.suppress(TimeoutError):
                    if not (data := client.recv(1 << 16)):
                        raise BrokenPipeError
                    http.receive_data(data)
        except (OSError, h2.exceptions.ProtocolError):  # it is cut off; the last is after the server's goodbye
            continue
    # Whether for what they hold, or for how long it takes them on a busy machine: some are cut off.
    assert len(served.server._clients) <= clients - 2
    assert sum(each.held_bytes for each in list(served.server._clients.values())) <= 64 << 20
    assert called(served.path, ECHO, b"x") == b"x"


def test_streams_that_are_opened_and_reset_leave_nothing(served: Served, connect: Callable[..., socket.socket]) -> None:
    import h2.connection

    client, http = connect(), h2.connection.H2Connection()
    http.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", ECHO), (":authority", "l")]
    reader = threading.Thread(target=is_cut, args=[client])  # of what comes
    reader.start()
    for number in range(1, 4001, 2):
        http.send_headers(number, headers)
        http.reset_stream(number)
        client.sendall(http.data_to_send())
    assert called(served.path, ECHO, b"x") == b"x"
    until(lambda: all(each.is_idle for each in list(served.server._clients.values())), "no stream stays")
    client.shutdown(socket.SHUT_RDWR)
    reader.join()


def test_mutated_requests_end_at_most_their_own_connection(
    served: Served, connect: Callable[..., socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    import random

    chance = random.Random(5)
    whole = request_head()
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(PREFACE), len(data))] = chance.randrange(256)
        client = connect()
        with contextlib.suppress(OSError):
            client.sendall(data)
        client.close()
    until(lambda: called(served.path, ECHO, b"x") == b"x", "another one is answered")
    assert [each.getMessage() for each in caplog.records if each.levelname in ("WARNING", "ERROR")] == []


def test_more_clients_than_there_is_room_for_take_the_place_of_idle_ones(
    served: Served, connect: Callable[..., socket.socket]
) -> None:
    for _ in range(80):
        connect(PREFACE + SETTINGS)
    until(lambda: called(served.path, ECHO, b"x") == b"x", "another one is answered")
    assert served.clients <= 32


def test_clients_that_come_and_leave_cost_no_descriptor(served: Served) -> None:
    called(served.path, ECHO, b"x")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of procfs
    for _ in range(200):
        assert called(served.path, ECHO, b"x") == b"x"
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "no descriptor stays")  # noqa: PTH208


def test_the_socket_is_for_its_owner_and_is_removed_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "one.sock"
    server = GrpcServer(path, METHODS, 0)
    assert stat.filemode(path.stat().st_mode) == "srw-------"
    server.close()
    server.close()
    assert not path.exists()
    assert path.parent.is_dir()


def test_the_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "one.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.listen()
    dead.close()
    made = Served(path)
    try:
        assert called(path, ECHO, b"x") == b"x"
    finally:
        made.close()


def test_a_server_that_lives_is_left_alone(served: Served) -> None:
    with pytest.raises(ConfigError, match="another process serves it: end that one, or choose another name"):
        GrpcServer(served.path, METHODS, 0)
    assert called(served.path, ECHO, b"x") == b"x"


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "one.sock"
    path.write_text("notes")
    with pytest.raises(ConfigError, match="is no socket"):
        GrpcServer(path, METHODS, 0)
    assert path.read_text() == "notes"


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        GrpcServer(tmp_path / ("x" * 100) / "one.sock", METHODS, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose a directory that can be written"):
        GrpcServer(tmp_path / "file" / "one.sock", METHODS, 0)


def test_a_socket_that_is_removed_comes_back(served: Served) -> None:
    served.path.unlink()
    served.later_s = 6
    until(lambda: not isinstance(called(served.path, ECHO, b"x"), GrpcError), "the socket listens again")
    assert called(served.path, ECHO, b"x") == b"x"


def test_a_server_whose_place_is_taken_ends_and_leaves_the_other_alone(served: Served) -> None:
    served.path.unlink()
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(served.path))
    try:
        served.later_s = 6
        until(lambda: served.ended is not None, "it ends")
        assert "another server has taken its place" in str(served.ended)
        served.close()
        assert served.path.exists()
    finally:
        other.close()


def test_a_lock_on_the_directory_keeps_no_server_from_starting(tmp_path: Path) -> None:
    import fcntl

    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        server = GrpcServer(tmp_path / "one.sock", METHODS, 0)
        server.close()
        assert not (tmp_path / "one.sock").exists()
    finally:
        os.close(fd)
