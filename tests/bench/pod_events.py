"""From a pod's change at the API server to the view that decisions rest on, and what an unchanged one costs."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from koordebpf.collect.cluster_view import ClusterView, frame_of, in_force
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import Measured, NodeMeasure
from tests.bench.api_server import NODE, SENT_LABEL, ApiServer, api_pod
from tests.bench.figure import at_most, figure
from tests.bench.report import Report
from tests.contract.apiserver import until

PODS = 110
_PAUSE_S = 0.01
_IDLE_NS = 300_000  # in a tenth of a second: what this loop itself takes, and no event
_MEASURED = Measured(1, 0, NodeMeasure("machine", 1 << 34, 1 << 33))


def pod_events(report: Report) -> None:
    """Change pods one by one under a watch, then send events in which nothing that is read has changed."""
    changes, heartbeats = (100, 2_000) if report.quick else (1_000, 20_000)
    with tempfile.TemporaryDirectory() as folder, ApiServer(Path(folder), [api_pod(n) for n in range(PODS)]) as server:
        woken = threading.Event()
        source = ApiSource(open_cluster(server.kubeconfig), NODE)
        source.start(woken.set)
        try:
            until(lambda: source.state().synced_at_ns and source.state().nodeslo, "the first lists")
            asking = threading.Thread(target=server.ask, kwargs={"do": "change", "count": changes, "pause_s": _PAUSE_S})
            asking.start()
            samples = _latencies(source, woken, changes)
            asking.join()
            method = f"the server's send → view_of_frame() with it, {PODS} pods of 3 kB, by the agent's own source"
            report.add(figure("pod event → view updated", "ms", samples, method, reach_p99=5))
            version, paces = source.state().version, ((0, "all at once"), (0.005, "one at a time"))
            spent_us = [
                _heartbeat_us(server, heartbeats if not pause_s else heartbeats // 10, pause_s) for pause_s, _ in paces
            ]
            if source.state().version != version:
                raise RuntimeError("an event without news was taken for news")
        finally:
            source.close()
        with _bare_watch(server):
            floor_us = _heartbeat_us(server, heartbeats // 10, paces[1][0])
    method = f"process time for each of {heartbeats} events of 3 kB: HTTP, decoding, comparing; no wake-up of the loop"
    report.add(at_most("CPU of an unchanged pod event, all at once", "µs", spent_us[0], 20, method))
    method = "the same with 5 ms in between: each wakes a thread that finds nothing of its own in the caches"
    report.add(at_most("  one at a time", "µs", spent_us[1], None, method))
    method = "the same events received in the same process by recv_into() in a loop that looks at none of them"
    report.add(at_most("  the same, a bare Python loop", "µs", floor_us, None, method))


def _latencies(source: ApiSource, woken: threading.Event, count: int) -> list[float]:
    known, seen, samples = ClusterView(), "0", []
    while len(samples) < count:
        if not woken.wait(30):
            raise RuntimeError(f"{len(samples)} of {count} changes came")
        woken.clear()
        known.learn(source.state())
        made = frame_of(source.state(), _MEASURED, feature_gates={}, executor="api")
        view = view_of_frame(in_force(made, known), facts=known.facts)
        now_ns = time.monotonic_ns()
        sent = sorted(
            label for each in known.facts if (label := (each.pod.metadata.labels or {}).get(SENT_LABEL, "")) > seen
        )
        if len(view.pods) != PODS:
            raise RuntimeError(f"the view has {len(view.pods)} pods")
        samples += [(now_ns - int(label)) / 1e6 for label in sent]
        seen = max([seen, *sent])
    return samples


def _heartbeat_us(server: ApiServer, count: int, pause_s: float) -> float:
    start_ns = time.process_time_ns()
    server.ask(do="heartbeat", count=count, pause_s=pause_s)
    spent_ns, before_ns = time.process_time_ns() - start_ns, -_IDLE_NS
    while spent_ns - before_ns > _IDLE_NS:  # the last ones are on their way
        time.sleep(0.1)
        spent_ns, before_ns = time.process_time_ns() - start_ns, spent_ns
    return spent_ns / 1e3 / count


@contextmanager
def _bare_watch(server: ApiServer) -> Iterator[None]:
    """Watch the node's pods in a thread that only receives."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port or 80), timeout=60) as wire:
        wire.sendall(
            f"GET /api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D{NODE} HTTP/1.1\r\nHost: here\r\n\r\n".encode()
        )
        wire.recv(1 << 16)  # the answer's head
        receiving = threading.Thread(target=_receive, args=(wire,))
        receiving.start()
        yield
        wire.shutdown(socket.SHUT_RDWR)
        receiving.join()


def _receive(wire: socket.socket) -> None:
    room = bytearray(1 << 16)
    while wire.recv_into(room):
        pass
