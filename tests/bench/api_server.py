"""The loopback API server of the contract tests in a process of its own: its work is not the agent's.

`python -m tests.bench.api_server PODS.json OTHERS [CERT KEY]` prints its address, then answers a command a line.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bench.report import CannotMeasure
from tests.contract.apiserver import Cluster, Exchange, Server, hold_open, listing, node, nodeslo, status

NODE = "n1"
SENT_LABEL = "sent-ns"
_CHANGED = 200  # of the budgets change once they are watched
_EVICTED = {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


def api_pod(number: int, *, on: str = NODE, uid: str | None = None) -> dict[str, Any]:
    """Return a pod as large as real ones, 3 kB: two containers with their statuses, conditions, volumes."""
    name = f"worker-{number}"
    containers = [
        {
            "name": f"c{n}",
            "image": "registry.example/team/worker:1.2.3",
            "env": [{"name": f"SETTING_{m}", "value": "a value of some length"} for m in range(8)],
            "resources": {"requests": {"kubernetes.io/batch-memory": "256Mi"}},
            "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        }
        for n in range(2)
    ]
    moment = "2026-01-01T00:00:00Z"
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "be",
            "uid": uid or f"00000000-0000-4000-8000-{number:012d}",
            "resourceVersion": str(1_000 + number),
            "labels": {"koordinator.sh/qosClass": "BE" if number % 2 else "LS", "app": "worker"},
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {"f:phase": {}}}}],
        },
        "spec": {
            "nodeName": on,
            "priority": 5000 + number % 100,
            "containers": containers,
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "BestEffort",
            "startTime": moment,
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": moment} for kind in kinds
            ],
            "containerStatuses": [
                {
                    "name": f"c{n}",
                    "containerID": f"containerd://{number:032x}{n:032x}",
                    "ready": True,
                    "restartCount": 0,
                }
                for n in range(2)
            ],
        },
    }


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1 and its key."""
    made, key = folder / "tls.crt", folder / "tls.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=apiserver"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {made}"
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        raise CannotMeasure("openssl is not installed: no certificate for the API server") from None
    return made, key


class ApiServer:
    """The process as seen by a benchmark. Leaving the context ends it."""

    def __init__(
        self, folder: Path, pods: list[dict[str, Any]], *, others: int = 0, tls: tuple[Path, Path] | None = None
    ) -> None:
        (folder / "items.json").write_text(json.dumps(pods))
        command = [sys.executable, "-m", "tests.bench.api_server", str(folder / "items.json"), str(others)]
        command += [str(path) for path in tls or ()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._answer()["url"]
        trust = f"certificate-authority: {tls[0]}" if tls else ""
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            "{apiVersion: v1, kind: Config, current-context: here, contexts: [{name: here, context: "
            "{cluster: here, user: agent}}], users: [{name: agent, user: {token: sesame}}], clusters: "
            f'[{{name: here, cluster: {{server: "{self.url}"{", " if trust else ""}{trust}}}}}]}}'
        )

    def ask(self, **command: object) -> dict[str, Any]:
        """Give one command; return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the API server ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class _Served:
    """What the process has: this node's pods, other nodes' pods, and who watches."""

    def __init__(self, server: Server, pods: list[dict[str, Any]], others: int) -> None:
        self._mine = pods
        self._others = [api_pod(100_000 + n, on=f"other-{n % 50}") for n in range(others)]
        self._version = 1_000_000
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._is_watched = threading.Event()
        self._server = server
        self.arrived: list[tuple[str, int]] = []
        self.listed: list[tuple[str, int]] = []  # selector, how many
        cluster = Cluster(server)
        server.on(cluster.pods.path, self._pods)
        server.on("/pods", lambda exchange: exchange.answer(200, listing(self._mine, 0)))  # as the node's kubelet
        cluster.nodes.items, cluster.nodeslos.items = [node(5)], [nodeslo(7, 90)]
        self._nodeslos = cluster.nodeslos
        self._nodeslos.watches.append(self._watch_nodeslo)
        self._nodeslo_events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for number in range(1_000):
            path = f"/api/v1/namespaces/be/pods/worker-{number}/eviction"
            server.on(path, self._evicted)

    def _pods(self, exchange: Exchange) -> None:
        wanted = exchange.request.query.get("fieldSelector", "")
        if exchange.request.is_watch:
            if wanted != f"spec.nodeName={NODE}":
                hold_open(exchange)
                return
            exchange.stream()
            self._is_watched.set()
            while True:
                exchange.chunk(self._events.get())
        pods = [
            each for each in (*self._mine, *self._others) if wanted in ("", f"spec.nodeName={each['spec']['nodeName']}")
        ]
        self.listed.append((wanted, len(pods)))
        exchange.answer(200, listing(pods, self._version))

    def have_budgets(self, count: int, size: int, namespace: str) -> None:
        """Have PodDisruptionBudgets of `size` bytes in a namespace; each is made when it is asked for."""
        values = [f"value-{n:06}" for n in range(size // 16)]
        wanted = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
        selector = wanted if values else {"matchLabels": {"app": "web"}}

        def budget(number: int) -> dict[str, Any]:
            meta = {"name": f"b-{number}", "namespace": namespace, "uid": f"b-{number}", "generation": 1}
            meta["resourceVersion"] = str(1_000 + number)
            return {"metadata": meta, "spec": {"selector": selector}, "status": {"disruptionsAllowed": 1}}

        def serve(exchange: Exchange) -> None:
            if exchange.request.is_watch:
                exchange.stream()
                for number in range(min(count, _CHANGED)):
                    changed = budget(number)
                    changed["metadata"]["resourceVersion"] = str(2_000_000 + number)
                    exchange.event("MODIFIED", changed)
                exchange.hold()
                return
            begin = int(exchange.request.query.get("continue", "0"))
            end = min(begin + int(exchange.request.query["limit"]), count)
            more = str(end) if end < count else ""
            exchange.answer(200, listing([budget(n) for n in range(begin, end)], self._version, more))

        paths = [f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"] if namespace else []
        for path in (*paths, "/apis/policy/v1/poddisruptionbudgets"):
            self._server.on(path, serve)

    def _evicted(self, exchange: Exchange) -> None:
        self.arrived.append((exchange.request.path.split("/")[-2], time.monotonic_ns()))
        exchange.answer(201, _EVICTED)

    def _watch_nodeslo(self, exchange: Exchange) -> None:
        exchange.stream()
        while True:
            exchange.chunk(self._nodeslo_events.get())

    def have_nodeslo(self, spec: dict[str, Any]) -> int:
        """Change the node's NodeSLO; return when, CLOCK_MONOTONIC ns."""
        self._version += 1
        changed = nodeslo(self._version, 90)
        changed["spec"] |= spec
        self._nodeslos.items = [changed]
        event = json.dumps({"type": "MODIFIED", "object": changed}).encode() + b"\n"
        sent_ns = time.monotonic_ns()
        self._nodeslo_events.put(event)
        return sent_ns

    def change(self, count: int, pause_s: float) -> None:
        """Change a label of one pod after another; the label says when."""
        self._is_watched.wait(30)
        for n in range(count):
            time.sleep(pause_s)
            pod = self._mine[n % len(self._mine)]
            pod["metadata"]["labels"][SENT_LABEL] = str(time.monotonic_ns())
            self._events.put(self._event(pod))

    def heartbeat(self, count: int, pause_s: float) -> None:
        """Change what no agent reads, of one pod after another: the time of a probe. Pause 0: at full speed."""
        self._is_watched.wait(30)
        lines = []
        for n in range(count):
            pod = self._mine[n % len(self._mine)]
            pod["status"]["conditions"][3]["lastProbeTime"] = f"2026-01-01T00:00:{n % 60:02d}Z"
            lines.append(self._event(pod))
        for line in lines:
            self._events.put(line)
            if pause_s:
                time.sleep(pause_s)

    def _event(self, pod: dict[str, Any]) -> bytes:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        return json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"


def main() -> None:
    """Serve until standard input ends."""
    items, others, *files = sys.argv[1:]
    context = None
    if files:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
    server = Server(context)
    served = _Served(server, json.loads(Path(items).read_text()), int(others))
    print(json.dumps({"url": server.url}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = status(200, "", "")
        match command.pop("do"):
            case "change":
                served.change(**command)
            case "heartbeat":
                served.heartbeat(**command)
            case "have_budgets":
                served.have_budgets(**command)
            case "have_nodeslo":
                answer = {"sent_ns": served.have_nodeslo(**command)}
            case "arrived":
                answer = {"arrived": dict(served.arrived)}
            case "listed":
                answer = {"listed": served.listed}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
