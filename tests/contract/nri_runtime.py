"""A container runtime's side of NRI, frame by frame, with messages of the library protobuf; it may misbehave."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from typing import Any, Self

from koordebpf.kube.nri.values import NRI_MESSAGES, TTRPC_MESSAGES, Answer, NriContainer, NriPod
from tests.contract.protobuf_classes import message_classes
from tests.support.patience import patience

NRI = message_classes("nri.pkg.api.v1alpha1", NRI_MESSAGES)
TTRPC = message_classes("ttrpc", TTRPC_MESSAGES)
PLUGIN, RUNTIME = 1, 2  # connections
REQUEST, RESPONSE = 1, 2
MOST = (4 << 20) + 10  # bytes of a frame
READ_BUFFER = 4096  # bufio.Reader of ttrpc: a larger frame is ENOMEM in nri's mux

ASKED = {
    "Configure": ("ConfigureRequest", "ConfigureResponse"),
    "Synchronize": ("SynchronizeRequest", "SynchronizeResponse"),
    "CreateContainer": ("ContainerRequest", "CreateContainerResponse"),
    "UpdateContainer": ("ContainerRequest", "UpdateContainerResponse"),
    "StateChange": ("StateChangeEvent", "Empty"),
    "StopContainer": ("ContainerRequest", "Empty"),
    "UpdatePodSandbox": ("ContainerRequest", "Empty"),
    "Shutdown": ("Empty", "Empty"),
}


class Answers:
    """Gives what it was made with, and remembers what it was asked."""

    def __init__(self, answer: Answer | Exception = Answer()) -> None:  # noqa: B008 - frozen
        self.answer = answer
        self.started: list[NriPod] = []
        self.removed: list[NriPod] = []
        self.asked: list[tuple[NriPod, NriContainer]] = []

    def pod_started(self, pod: NriPod) -> None:
        """Remember it."""
        self.started.append(pod)

    def pod_removed(self, pod: NriPod) -> None:
        """Remember it."""
        self.removed.append(pod)

    def container(self, pod: NriPod, container: NriContainer) -> Answer:
        """Remember it, and give the answer."""
        self.asked.append((pod, container))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Closed(Exception):
    """The plugin closed its connection."""


class Refused(Exception):
    """The plugin answered with a status."""


class Connection:
    """One plugin that has connected."""

    def __init__(self, trunk: socket.socket) -> None:
        trunk.settimeout(patience(10))
        self.trunk = trunk
        self._kept = {PLUGIN: bytearray(), RUNTIME: bytearray()}
        self._stream = -1

    @property
    def is_open(self) -> bool:
        """Whether the plugin still has its end of it."""
        self.trunk.setblocking(False)
        try:
            while True:
                if not self.trunk.recv(65536):
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def registered(self, code: int = 0) -> Any:
        """Return the RegisterPluginRequest, answered."""
        stream, kind, data = self.message(RUNTIME)
        request = TTRPC["Request"].FromString(data)
        assert (kind, request.service, request.method) == (REQUEST, "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        status = {"status": TTRPC["Status"](code=code, message="no")} if code else {}
        self.send(RUNTIME, stream, RESPONSE, TTRPC["Response"](**status).SerializeToString())
        return NRI["RegisterPluginRequest"].FromString(request.payload)

    def call(self, method: str, **fields: Any) -> Any:
        """Return what the plugin answers."""
        self.ask(method, NRI[ASKED[method][0]](**fields).SerializeToString())
        return self.answer(method)

    def ask(self, method: str, payload: bytes) -> None:
        """Send a call."""
        self._stream += 2
        request = TTRPC["Request"](service="nri.pkg.api.v1alpha1.Plugin", method=method, payload=payload)
        self.send(PLUGIN, self._stream, REQUEST, request.SerializeToString())

    def answer(self, method: str) -> Any:
        """Return the answer of the last call."""
        stream, kind, data = self.message(PLUGIN)
        assert (stream, kind) == (self._stream, RESPONSE)
        response = TTRPC["Response"].FromString(data)
        if response.status.code:
            raise Refused(f"{response.status.code}: {response.status.message}")
        return NRI[ASKED[method][1]].FromString(response.payload)

    def ready(self) -> Self:
        """Let the plugin register, configure and synchronize it."""
        self.registered()
        self.call("Configure", runtime_name="test", runtime_version="1")
        self.call("Synchronize")
        return self

    def send(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        """Send one message as ttrpc's bufio.Writer does: what fits into 4,096 bytes first, the rest at once."""
        whole = struct.pack("!IIBB", len(data), stream, kind, 0) + data
        for part in (whole[:4096], *(whole[at : at + MOST] for at in range(4096, len(whole), MOST))):
            self.trunk.sendall(struct.pack("!II", conn, len(part)) + part)

    def message(self, conn: int) -> tuple[int, int, bytes]:
        """Return the next message of a connection: its stream, type and data."""
        kept = self._kept[conn]
        while len(kept) < 10 or len(kept) < 10 + struct.unpack_from("!I", kept)[0]:
            found, size = struct.unpack("!II", self._read(8))
            assert size <= READ_BUFFER, f"a frame of {size} bytes: cannot allocate memory"
            self._kept[found] += self._read(size)
        length, stream, kind, _ = struct.unpack_from("!IIBB", kept)
        data = bytes(kept[10 : 10 + length])
        del kept[: 10 + length]
        return stream, kind, data

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.trunk.recv(size - len(data))
            if not part:
                raise Closed
            data += part
        return data


class NriRuntimeServer:
    """Listens at `path`. A plugin that connects while an earlier connection of it is open fails the test."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(8)
        self._listening.settimeout(patience(10))
        self.path = path
        self.connections: list[Connection] = []

    def accept(self) -> Connection:
        """Return the next plugin that connects."""
        trunk, _ = self._listening.accept()
        assert not any(each.is_open for each in self.connections), "connected twice"
        self.connections.append(Connection(trunk))
        return self.connections[-1]

    def is_quiet_for(self, seconds: float) -> bool:
        """Tell whether no plugin connects for so long."""
        self._listening.settimeout(seconds)
        try:
            self._listening.accept()[0].close()
        except TimeoutError:
            return True
        finally:
            self._listening.settimeout(patience(10))
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it: nothing listens any more."""
        self._listening.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        for each in self.connections:
            each.trunk.close()
