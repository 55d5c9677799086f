"""A controller whose looks a test takes itself, one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koordebpf.controller.reconcile import Reconciler
from koordebpf.controller.run import Controller, Leadership
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.clients.nodeslos import ControllerSource, NodeSLOWriter
from koordebpf.kube.http.transport import open_cluster
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.controller import ControllerMetrics
from tests.contract.apiserver import until
from tests.contract.objectstore import NODESLOS, Store

# Waits short enough for a test; nothing asserts how long anything took.
PACE = Pace(first_s=0.02, cap_s=0.05, slow_s=0.05, watch_s=30, grace_s=30.0, answer_s=10.0)


class Rig:
    """A controller whose looks the test takes itself."""

    def __init__(self, kubeconfig: Path, *, adopt: bool, dry_run: bool) -> None:
        self.clock_ns = 0  # the reconciler's
        self.leads = True
        self.source = ControllerSource(open_cluster(kubeconfig), PACE)
        self.transport = open_cluster(kubeconfig)
        writer = None if dry_run else NodeSLOWriter(self.transport, "me")
        self.reconciler = Reconciler(writer, adopts=adopt, now_ns=self._now_ns)
        self.metrics, self.health = ControllerMetrics(), Health()
        self.controller = Controller(
            self.source, writer, self.reconciler, Leadership(lambda: self.leads), self.metrics, self.health
        )
        self.woken = threading.Event()
        self.source.start(self.woken.set)

    def _now_ns(self) -> int:
        self.clock_ns += 1
        return self.clock_ns

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def looked() -> Any:
            self.wait(0.01)
            self.controller.tick()
            return condition()

        until(looked, what, 90)  # a busy machine lists 500 Nodes and NodeSLOs for seconds

    def settle(self) -> None:
        """Poll until every Node is as it should be and the watch has shown it."""
        self.until(self._is_settled, "NodeSLOs as they should be")
        self.controller.tick()

    def wait(self, seconds: float) -> None:
        self.clock_ns += int(seconds * 1e9)

    def _is_settled(self) -> bool:
        state = self.source.state()
        return state.is_synced and self.metrics.nodeslos["settled"] == len(state.nodes) == len(state.nodeslos)

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.health.ready(0)[1]

    def close(self) -> None:
        self.source.close()
        self.transport.close()


def at_50(**labels: str) -> dict[str, Any]:
    """A strategy for the nodes with these labels."""
    entry = {"name": "own", "nodeSelector": {"matchLabels": labels}, "memoryEvictThresholdPercent": 50}
    return {"nodeStrategies": [entry]}


def threshold(store: Store, name: str) -> Any:
    return store.objects[NODESLOS][name]["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"]
