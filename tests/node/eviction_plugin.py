"""An eviction plugin in the guest, a process of its own: `eviction_plugin.py SOCKET ANSWERS`, which the test rewrites.

ANSWERS is a JSON file that is read at each call: `met`, `evict` and `top` are fields of ThresholdMetResponse, of each
EvictPod, and the names of pods. ANSWERS.calls has a line for each call of ThresholdMet.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events

from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.plugins.messages import PLUGIN_MESSAGES, PLUGIN_TYPE, REGISTRATION_MESSAGES, VERSION
from koordebpf.kube.plugins.pods import POD_TABLE

_PREFIX = struct.Struct("!BI")  # is compressed, length
_READ_BYTES = 1 << 16


class Plugin:
    """Answers as the file says."""

    def __init__(self, name: str, answers: Path) -> None:
        self._name = name
        self._answers = answers
        self._calls = answers.with_suffix(".calls")

    def answer(self, path: str, message: bytes) -> bytes:
        said = json.loads(self._answers.read_text())
        method = path.rpartition("/")[2]
        if method == "GetInfo":
            info = {"type": PLUGIN_TYPE, "name": self._name, "supported_versions": [VERSION]}
            return encode(REGISTRATION_MESSAGES, "PluginInfo", info)
        if method == "ThresholdMet":
            with self._calls.open("a") as calls:
                calls.write("ThresholdMet\n")
            return encode(PLUGIN_MESSAGES, "ThresholdMetResponse", said["met"])
        if method == "GetEvictPods":
            pods = _pods("GetEvictPodsRequest", message)
            asked = [{**each, "pod": pods[each["pod"]]} for each in said["evict"] if each["pod"] in pods]
            return encode(PLUGIN_MESSAGES, "GetEvictPodsResponse", {"evict_pods": asked})
        if method == "GetTopEvictionPods":
            pods = _pods("GetTopEvictionPodsRequest", message)
            targets = [pods[name] for name in said["top"] if name in pods]
            return encode(PLUGIN_MESSAGES, "GetTopEvictionPodsResponse", {"target_pods": targets})
        return b""  # GetToken, NotifyRegistrationStatus


def _pods(request: str, message: bytes) -> dict[str, bytes]:
    pods = decode(PLUGIN_MESSAGES, request, message)["active_pods"]
    return {decode(POD_TABLE, "Pod", each)["metadata"]["name"]: each for each in pods}


def serve(plugin: Plugin, peer: socket.socket) -> None:
    """Answer the calls of one connection until it ends."""
    config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    calls: dict[int, tuple[str, bytearray]] = {}
    unsent: dict[int, bytes] = {}
    with peer, contextlib.suppress(OSError):
        peer.sendall(connection.data_to_send())
        while data := peer.recv(_READ_BYTES):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    calls[event.stream_id] = (dict(event.headers)[":path"], bytearray())  # type: ignore[index]
                elif isinstance(event, h2.events.DataReceived):
                    calls[event.stream_id][1].extend(event.data)
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    path, body = calls.pop(event.stream_id)
                    message = plugin.answer(path, bytes(body[_PREFIX.size :]))
                    headers = [(":status", "200"), ("content-type", "application/grpc")]
                    connection.send_headers(event.stream_id, headers)
                    unsent[event.stream_id] = _PREFIX.pack(0, len(message)) + message
                elif isinstance(event, h2.events.StreamReset):
                    calls.pop(event.stream_id, None)
                    unsent.pop(event.stream_id, None)
            for stream, rest in list(unsent.items()):
                unsent[stream] = _send(connection, stream, rest)
                if not unsent[stream]:
                    connection.send_headers(stream, [("grpc-status", "0")], end_stream=True)
                    del unsent[stream]
            peer.sendall(connection.data_to_send())


# What the window does not take is sent when the peer has opened it again.
def _send(connection: Any, stream: int, rest: bytes) -> bytes:
    while rest and (most := min(connection.local_flow_control_window(stream), connection.max_outbound_frame_size)):
        connection.send_data(stream, rest[:most])
        rest = rest[most:]
    return rest


def main(path: Path, answers: Path) -> None:
    """Serve on a new socket until the process is ended."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    plugin = Plugin(path.stem, answers)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        while True:
            peer, _ = listening.accept()
            threading.Thread(target=serve, args=(plugin, peer), daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
