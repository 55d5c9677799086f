"""Opens the report of what the node uses as Koordinator's NodeMetric, where its feature gate is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from koordebpf.clock import SystemClock
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.jobs.node_metric.run import NodeMetricJob
    from koordebpf.runner.context import NodeContext
    from koordebpf.state.prediction import ProdPrediction

GATE: Final = "NodeMetricReport"
_CLOSE_S: Final = 0.9  # threads end within a second
_PREDICTED_NS: Final = 300 * NS_PER_S  # Why: a prediction is made each minute; one that is older says nothing of now


def open_node_metric(node: NodeContext) -> NodeMetricJob | None:
    """Return the job where its feature gate is on; the stack ends its threads.

    An agent whose pods come from files knows no API server. In a dry run the NodeMetric is read, and not written.
    """
    config = node.config
    if not config.feature_gates.get(GATE):
        return None
    from koordebpf.jobs.node_metric.run import NodeMetricJob, NodeMetricShown

    known, settings, latest = node.measuring.known, config.node_metric, node.measuring.prediction

    def predicted(now_ns: int) -> ProdPrediction | None:
        return latest.newer_than(now_ns - _PREDICTED_NS)

    beside, koordlet_node = node.measuring.beside, config.node_name if config.koordinator_metrics else None
    if config.source == "file" or config.node_name is None:
        job = NodeMetricJob(known, settings, predict=predicted)
        NodeMetricShown(job, None, settings.latest_ns, tuple, SystemClock()).show(beside, koordlet_node)
        return job
    from koordebpf.jobs.node_metric.publish import NodeMetricReporter
    from koordebpf.jobs.node_metric.sending import OtherWriter, Sending
    from koordebpf.kube.colocation.node_metrics import MANAGER, NodeMetricStatus
    from koordebpf.kube.http.transport import open_cluster
    from koordebpf.kube.sources.node_metrics import NodeMetricReflector

    transport = open_cluster(config.kubeconfig, config.kube_context)
    node.stack.callback(lambda: reflector.join(_CLOSE_S))
    node.stack.callback(transport.close)

    # In the reflector's thread.
    def publish(is_news: bool) -> None:
        view = reflector.view
        if not is_news or not view.synced_at_ns:
            return
        found = view.objects[0] if len(view.objects) == 1 else None
        if found is not None:
            job.take_spec(found.spec)
        if reporter is not None:
            reporter.found(found, job.policy.interval_ns)

    reflector = NodeMetricReflector(transport, config.node_name, publish)
    reporter = None
    if node.acts and config.enforce:
        sending = Sending(settings, OtherWriter(MANAGER))
        reporter = NodeMetricReporter(NodeMetricStatus(transport, config.node_name), sending, reflector.recall)
        node.stack.callback(reporter.close)
    job = NodeMetricJob(known, settings, reporter, predicted)
    shown = NodeMetricShown(job, reporter, settings.latest_ns, lambda: reflector.view.problems, SystemClock())
    shown.show(beside, koordlet_node)
    node.stack.callback(reflector.stop)
    reflector.start()
    return job
