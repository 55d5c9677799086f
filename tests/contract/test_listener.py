"""An HTTP listener whose clients mean no good: probes are answered whatever they do, and it costs little."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from koordebpf.report.http.listener import CpuShare, HttpListener, Limits, Reply, Request, bound_to, parse_head
from koordebpf.report.http.routes import Health, ReportServer
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.page import MetricsPage
from tests.contract.apiserver import until
from tests.support.attackers import connected, drips, floods, holds
from tests.support.patience import patience

WITHIN_S = patience(1)


@pytest.fixture
def server() -> Iterator[ReportServer]:
    health = Health(max_silence_ns=10**15)
    health.ticked(time.monotonic_ns(), ())
    with closing(ReportServer("127.0.0.1:0", AgentMetrics(), health, probe_listen="127.0.0.1:0")) as server:
        yield server


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def probe(port: int, path: str = "/healthz") -> tuple[int, float]:
    """Return the status and the seconds that it took, a new connection included."""
    begin_s = time.monotonic()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=patience(5))) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
    return answer.status, time.monotonic() - begin_s


def is_answered_throughout(port: int, seconds: float, within_s: float = WITHIN_S) -> None:
    took: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        status, each_s = probe(port)
        assert status == 200
        took.append(each_s)
        time.sleep(0.1)
    print(f"{len(took)} probes, the slowest took {max(took) * 1000:.1f} ms")
    assert max(took) < within_s


@pytest.mark.slow
@pytest.mark.parametrize("clients", [8, 200])
@pytest.mark.parametrize("attacked", ["metrics", "probes"])
def test_clients_that_send_a_byte_now_and_then(server: ReportServer, clients: int, attacked: str) -> None:
    port = server.port if attacked == "metrics" else server.probe_port
    with drips(port, clients, 0.5):
        is_answered_throughout(server.probe_port, 6)  # longer than a connection's deadline
        assert probe(server.port, "/metrics")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("attacked", ["metrics", "probes"])
def test_a_thousand_connections_that_say_nothing(server: ReportServer, attacked: str) -> None:
    before = descriptors()
    port = server.port if attacked == "metrics" else server.probe_port
    with holds(port, 1000) as process:
        is_answered_throughout(server.probe_port, 2)
        assert probe(server.port, "/metrics")[0] == 200
        assert descriptors() <= before + 64 + 8
        assert process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("attacked", ["metrics", "probes"])
def test_ten_thousand_short_connections(server: ReportServer, attacked: str) -> None:
    port = server.port if attacked == "metrics" else server.probe_port
    # Where the probes' own listener is flooded, a client may have to knock twice; the kubelet waits 5 s.
    within_s = WITHIN_S if attacked == "metrics" else patience(5)
    cpu_s, begin_s = time.process_time(), time.monotonic()
    with floods(port, 10_000) as process:
        while process.poll() is None:
            is_answered_throughout(server.probe_port, 0.5, within_s)
    share = (time.process_time() - cpu_s) / (time.monotonic() - begin_s)
    print(f"{share:.1%} of a CPU for {time.monotonic() - begin_s:.1f} s")
    assert probe(server.port, "/metrics")[0] == 200


@pytest.fixture
def listener() -> Iterator[tuple[HttpListener, int]]:
    limits = Limits(connections=4, per_peer=2, deadline_s=0.5, rate_per_s=1000)
    sock = bound_to("127.0.0.1:0", "--listen")
    with closing(HttpListener(sock, lambda request: Reply("200 OK", "text/plain", b"x" * 8), limits)) as listener:
        yield listener, sock.getsockname()[1]


def is_closed(client: socket.socket) -> bool:
    client.settimeout(patience(2))
    with contextlib.suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True


def is_open(client: socket.socket) -> bool:
    client.settimeout(0.05)
    try:
        return client.recv(1) != b""
    except TimeoutError:
        return True


def test_at_a_peers_limit_its_oldest_connection_is_closed(listener: tuple[HttpListener, int]) -> None:
    first, second, third = (connected(listener[1]) for _ in range(3))
    other = connected(listener[1], "127.0.0.2")
    with first, second, third, other:
        assert is_closed(first)
        assert is_open(second) and is_open(third) and is_open(other)


def test_at_the_limit_of_all_the_oldest_connection_is_closed(listener: tuple[HttpListener, int]) -> None:
    clients = [connected(listener[1], f"127.0.0.{n}") for n in range(2, 7)]
    try:
        assert is_closed(clients[0])
        assert all(is_open(each) for each in clients[1:])
    finally:
        for each in clients:
            each.close()


def test_the_deadline_is_of_the_whole_request(listener: tuple[HttpListener, int]) -> None:
    with connected(listener[1]) as client:
        begin_s = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - begin_s < patience(30):
                client.sendall(b"G")
                time.sleep(0.1)
        assert 0.4 < time.monotonic() - begin_s < patience(20)  # a byte each 0.1 s would never let it go


def test_the_deadline_is_of_the_reply_too() -> None:
    sock = bound_to("127.0.0.1:0", "--listen")
    big = Reply("200 OK", "text/plain", bytes(64 << 20))
    listener = HttpListener(sock, lambda _: big, Limits(deadline_s=0.5))
    with closing(listener), connected(sock.getsockname()[1]) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        time.sleep(1.5)
        client.settimeout(patience(5))
        read = 0
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(1 << 20):
                read += len(part)
        assert read < len(big.body)


def test_a_peer_that_connects_too_often_is_refused_and_others_are_not() -> None:
    sock = bound_to("127.0.0.1:0", "--listen")
    with closing(HttpListener(sock, lambda _: Reply("200 OK", "text/plain", b"x"), Limits(rate_per_s=5))):
        port = sock.getsockname()[1]
        answered = 0
        for _ in range(100):
            with connected(port, "127.0.0.2") as client, contextlib.suppress(OSError):
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answered += client.recv(16).startswith(b"HTTP/1.1 200")
        assert 5 <= answered <= 60
        assert probe(port)[0] == 200


def test_a_listener_without_descriptors_continues_afterwards(listener: tuple[HttpListener, int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connected(listener[1]) as waiting:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() - 1, hard))
        try:
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert is_closed(waiting)
    assert probe(listener[1])[0] == 200


def test_an_answer_that_fails_is_500_and_no_end() -> None:
    def fail(_: Request) -> Reply:
        raise RuntimeError("broken")

    sock = bound_to("127.0.0.1:0", "--listen")
    with closing(HttpListener(sock, fail)):
        assert probe(sock.getsockname()[1])[0] == 500
        assert probe(sock.getsockname()[1])[0] == 500


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\x00\xff rubbish\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000, 431),
        (b"BREW /pot HTTP/1.1\r\n\r\n", 405),
        (b"POST /x HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"b" * 100_000, 405),
        (b"GET /x HTTP/1.1\n\n", 200),
    ],
)
def test_what_is_no_request(listener: tuple[HttpListener, int], head: bytes, status: int) -> None:
    with connected(listener[1]) as client:
        client.settimeout(patience(2))
        with contextlib.suppress(OSError):
            client.sendall(head)
        assert client.recv(64).startswith(f"HTTP/1.1 {status} ".encode())
    assert probe(listener[1])[0] == 200


def test_a_head_has_no_body_and_a_request_may_come_in_pieces(listener: tuple[HttpListener, int]) -> None:
    with connected(listener[1]) as client:
        for part in (b"HEAD / HT", b"TP/1.1\r\nHost: x", b"\r\n\r", b"\n"):
            client.sendall(part)
            time.sleep(0.02)
        client.settimeout(patience(2))
        answer = b""
        while part := client.recv(4096):
            answer += part
    assert b"Content-Length: 8" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_the_parts_of_a_head() -> None:
    request = parse_head(b"GET /readyz?verbose HTTP/1.1\r\nAccept: a, b\r\nX\r\nHost: h:1\r\n\r\nbody: no")
    assert request == Request("GET", "/readyz", "verbose", {"accept": "a, b", "host": "h:1"})


def test_it_starts_and_ends_and_leaves_nothing() -> None:
    before = (threading.active_count(), descriptors())
    for _ in range(20):
        server = ReportServer("127.0.0.1:0", AgentMetrics(), Health(), probe_listen="127.0.0.1:0")
        with connected(server.port):
            server.close()
    assert (threading.active_count(), descriptors()) == before


def test_a_page_that_is_asked_for_too_often_is_the_last_one() -> None:
    metrics, clock = AgentMetrics(), iter(range(0, 10_000))
    page = MetricsPage(metrics, cpu_s=lambda: next(clock) * 0.2)  # 200 ms for each page
    first, second = page.reply({}), page.reply({})  # from what is kept for bursts
    assert first is not second
    metrics.ticks += 77
    assert page.reply({}) == second
    assert page.reply({"accept-encoding": "gzip"}).headers == (("Content-Encoding", "gzip"),)
    assert msgspec.structs.asdict(page.reply({"accept": "application/openmetrics-text"}))["body"].endswith(b"# EOF\n")


def test_a_backlog_is_worked_off_in_pieces_with_rests_between() -> None:
    rests: list[int] = []  # of the thread until then, for each answer
    may_begin = threading.Event()

    def answer(request: Request) -> Reply:
        rests.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw)
        return Reply("200 OK", "text/plain", b"x")

    sock = bound_to("127.0.0.1:0", "--listen")
    limits = Limits(connections=512, per_peer=512, rate_per_s=10_000, share=0.5)
    with (
        closing(HttpListener(sock, answer, limits, begin=may_begin.wait)),
        contextlib.ExitStack() as clients,
    ):
        for _ in range(256):
            client = clients.enter_context(connected(sock.getsockname()[1]))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        may_begin.set()
        until(lambda: len(rests) == 256, "all are answered")
    longest = max(Counter(rests).values())
    print(f"{longest} answers in one piece")
    assert longest <= 64


def test_a_share_of_a_cpu_is_kept_after_a_burst() -> None:
    share, now_s = CpuShare(0.02, 100.0), 100.0
    assert share.rest_s(0.02, now_s) == 0  # the burst
    rested_s = 0.0
    for _ in range(1000):
        now_s += 0.0003
        rest_s = share.rest_s(0.0003, now_s)
        now_s, rested_s = now_s + rest_s, rested_s + rest_s
    assert 0.3 / (0.3 + rested_s) == pytest.approx(0.02, rel=0.05)
    assert share.rest_s(0.02, now_s + 60) == 0  # who was idle may have another burst
    assert share.rest_s(100.0, now_s + 60) == 0.25
