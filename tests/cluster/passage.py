"""The way between a node's network and the machine's, which share no interface, as a process of its own.

Into the node it brings the API server, under the address that clients on the machine use and under that of its Service.
Out of it a Unix socket leads to kubelets and pods: the API server asks there, by HTTP CONNECT, for logs and proxies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

SERVICE = ("10.96.0.1", 443)  # the first address of the Service network: Service kubernetes
_CLONE_NEWNET = 0x40000000  # sched.h
_IP_FREEBIND = 15  # in.h: the node gives itself the address only later
_CHUNK_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def _network_of(pid: int) -> Iterator[None]:
    # A socket stays in the network that it was made in.
    with Path("/proc/self/ns/net").open() as own, Path(f"/proc/{pid}/ns/net").open() as theirs:
        _enter(theirs.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _listen_at(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    return listener


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
        sink.write_eof()


async def _join(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter], other: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    await asyncio.gather(_copy(one[0], other[1]), _copy(other[0], one[1]))
    for _, writer in (one, other):
        writer.close()


async def _serve(pid: int, api_port: int, out: Path) -> None:
    api_server = ("127.0.0.1", api_port)

    async def inwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*api_server)
        except ConnectionError:
            writer.close()
            return
        await _join((reader, writer), there)

    async def outwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        host, _, port = request.split()[1].decode().rpartition(":")
        with _network_of(pid):
            way = socket.socket()
        way.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(way, (host, int(port)))
        except OSError as error:
            writer.write(f"HTTP/1.1 502 {error.strerror}\r\n\r\n".encode())
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await _join((reader, writer), await asyncio.open_connection(sock=way))

    with _network_of(pid):
        listeners = [_listen_at(address) for address in (SERVICE, api_server)]
    for listener in listeners:
        await asyncio.start_server(inwards, sock=listener)
    await asyncio.start_unix_server(outwards, out)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
