"""The server of these tests itself: what a client that is killed leaves half sent is no request."""

from __future__ import annotations

import socket

import pytest

from tests.contract.apiserver import Server, gives, until

BODY = b'{"kind":"Event"}'
WHOLE = b"POST /events HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
PARTS = [WHOLE[:length] for length in range(1, len(WHOLE))]


@pytest.fixture
def server() -> Server:
    return Server()


def sent(server: Server, part: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
        client.sendall(part)


def test_half_a_request_is_no_request(server: Server) -> None:
    for part in PARTS:
        sent(server, part)
    until(lambda: server.connections == len(PARTS), "every connection")
    server.close()
    assert server.requests == []


def test_the_whole_of_it_is_a_request(server: Server) -> None:
    server.on("/events", gives(201, {}))
    sent(server, WHOLE)
    until(lambda: server.requests, "the request")
    server.close()
    assert [(each.method, each.path, each.body) for each in server.requests] == [("POST", "/events", BODY)]
