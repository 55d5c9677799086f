"""A reporter of one node's NodeMetric and its watch, on a server of the tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from koordebpf.jobs.node_metric.publish import NodeMetricReporter
from koordebpf.jobs.node_metric.sending import Limits, OtherWriter, Report, Sending
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.colocation.node_metrics import MANAGER, NodeMetricReflector, NodeMetricStatus
from koordebpf.kube.http.transport import open_cluster


class Reporting:
    """Both of them, with the credentials of that file. The watch begins with `reflector.start()`."""

    def __init__(self, kubeconfig: Path, node_name: str, pace: Pace, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        transport = open_cluster(kubeconfig)
        self.reflector = NodeMetricReflector(transport, node_name, self._publish, pace)
        sending = Sending(NodeMetricSettings(), OtherWriter(MANAGER))
        self.reporter = NodeMetricReporter(NodeMetricStatus(transport, node_name), sending, self.reflector.recall)

    def _publish(self, is_news: bool) -> None:
        if is_news and self.reflector.view.synced_at_ns:
            found = self.reflector.view.objects
            self.reporter.found(found[0] if found else None, self.interval_ns)

    def send(self, status: dict[str, Any]) -> dict[str, Any]:
        """Report a status of now; return it."""
        within = Limits(ratio=0.05, total_ratio=0.02)
        self.reporter.report(Report(time.monotonic_ns(), status, self.interval_ns, self.interval_ns, within))
        return status

    def close(self) -> None:
        self.reflector.stop()
        self.reporter.close()
        self.reflector.join(5)
