"""A command in a container of a pod, as `kubectl exec` runs it: its output comes by a websocket of the API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeError
from koordebpf.kube.body import MALFORMED
from koordebpf.kube.http.refusal import Status
from koordebpf.kube.remote.cluster import Cluster

if TYPE_CHECKING:
    from websocket import WebSocket

# k8s.io/apimachinery pkg/util/remotecommand: the first byte of each message.
_STDOUT, _STDERR, _STATUS = 1, 2, 3
_STDERR_BYTES: Final = 64 << 10
_STDOUT_BYTES: Final = 64 << 20
_MESSAGE_BYTES: Final = 4 << 20  # Why: the API server sends 32 KiB each; a frame's length is what the node says


class Ended(msgspec.Struct, frozen=True):
    """How a command ended: its exit code, and what it wrote to standard error, 64 KiB at most."""

    exit_code: int
    stderr: str


def run_in_pod(
    cluster: Cluster,
    pod: tuple[str, str],
    container: str,
    command: Sequence[str],
    receive: Callable[[bytes], object],
    *,
    within_s: float,
) -> Ended:
    """Run a command without input; `receive` gets its standard output as it comes.

    `pod` is its namespace and name; `within_s` is for all of it.

    Raises:  KubeDenied, KubeGone, KubeError: it did not run, or not to its end in time.
    """
    namespace, name = pod
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/exec"
    query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", each) for each in command)]
    until_s = time.monotonic() + within_s
    socket = cluster.websocket(path, query, resource="pods/exec")
    try:
        return _ended(socket, receive, until_s, f"{command[0]} in {name}")
    finally:
        socket.shutdown()  # type: ignore[no-untyped-call]


def output_of(cluster: Cluster, pod: tuple[str, str], container: str, command: Sequence[str], within_s: float) -> bytes:
    """Return the standard output of a command that succeeds.

    Raises:  as `run_in_pod`; KubeError too: it failed, or wrote more than 64 MiB.
    """
    said, ended = text_of(cluster, pod, container, command, within_s)
    if ended.exit_code:
        last = ended.stderr.strip().rpartition("\n")[2]
        raise KubeError(f"{' '.join(command[:3])}: exit code {ended.exit_code}: {last}", retry=False)
    return said


def text_of(
    cluster: Cluster, pod: tuple[str, str], container: str, command: Sequence[str], within_s: float
) -> tuple[bytes, Ended]:
    """Return the standard output of a command, and how it ended.

    Raises:  as `run_in_pod`; KubeError too: it wrote more than 64 MiB.
    """
    said = bytearray()

    def receive(chunk: bytes) -> None:
        said.extend(chunk)
        if len(said) > _STDOUT_BYTES:
            raise KubeError(f"{command[0]}: more than {_STDOUT_BYTES >> 20} MiB of output", retry=False)

    ended = run_in_pod(cluster, pod, container, command, receive, within_s=within_s)
    return bytes(said), ended


def _ended(socket: WebSocket, receive: Callable[[bytes], object], until_s: float, what: str) -> Ended:
    import websocket

    stderr = bytearray()
    received = _Received(socket.frame_buffer.recv, what)
    socket.frame_buffer.recv = received
    while True:
        received.bytes = 0
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise KubeError(f"{what}: it did not end in time")
        socket.settimeout(left_s)
        try:
            opcode, message = socket.recv_data()
        except websocket.WebSocketTimeoutException:
            continue
        except (websocket.WebSocketException, OSError) as error:
            raise KubeError(f"{what}: the connection broke: {error}") from error
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            raise KubeError(f"{what}: the connection was closed before it ended")
        channel, rest = message[:1], message[1:]
        if channel == bytes([_STDOUT]):
            if rest:
                receive(rest)
        elif channel == bytes([_STDERR]):
            stderr += rest[: _STDERR_BYTES - len(stderr)]
        elif channel == bytes([_STATUS]) and rest:
            return Ended(_exit_code(rest, what), stderr.decode(errors="replace"))


# What comes of one message: the library holds all of it before it hands it over.
class _Received:
    def __init__(self, receive: Callable[[int], bytes], what: str) -> None:
        self._receive, self._what = receive, what
        self.bytes = 0

    def __call__(self, most: int) -> bytes:
        chunk = self._receive(most)
        self.bytes += len(chunk)
        if self.bytes > _MESSAGE_BYTES:
            raise KubeError(f"{self._what}: a message of more than {_MESSAGE_BYTES >> 20} MiB", retry=False)
        return chunk


# metav1.Status: of a command that failed the exit code is a cause of its own.
def _exit_code(raw: bytes, what: str) -> int:
    try:
        status = decoder(Status).decode(raw)
    except MALFORMED as error:
        raise KubeError(f"{what}: {raw[:200].decode(errors='replace')}") from error
    if status.reason == "NonZeroExitCode" and status.details is not None:
        for cause in status.details.causes or ():
            if cause.reason == "ExitCode" and cause.message.isdigit():
                return int(cause.message)
    if status.code or status.reason:
        raise KubeError(f"{what}: {status.message or status.reason}", retry=False)
    return 0
