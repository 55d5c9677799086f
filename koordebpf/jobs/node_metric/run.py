"""Reports what the node uses as Koordinator's NodeMetric, in koordlet's place (feature gate NodeMetricReport).

A report is rendered in the loop's thread, in steps that are short each, and sent from a thread of its own. In a dry run
it is rendered, and not sent.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.clock import Clock, Due, SystemClock
from koordebpf.errors import ConfigError
from koordebpf.jobs.node_metric.publish import NodeMetricReporter
from koordebpf.jobs.node_metric.render import CollectPolicy, Rendering, Reported, collect_policy, with_prediction
from koordebpf.jobs.node_metric.sending import Held, OtherWriter, Report, Sending, limits
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.kube.colocation.node_metrics import MANAGER, NodeMetricReflector, NodeMetricStatus
from koordebpf.kube.http.refusal import jittered
from koordebpf.kube.http.transport import open_cluster
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.report.job_pages import HealthCheck
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.collect.cluster_view import ClusterView
    from koordebpf.report.job_pages import Families, JobPages
    from koordebpf.runner.context import NodeContext
    from koordebpf.state.prediction import ProdPrediction
    from koordebpf.state.series.store import NodeSeries

_CLOSE_S: Final = 0.9  # threads end within a second
_PREDICTED_NS: Final = 300 * NS_PER_S  # Why: a prediction is made each minute; one that is older says nothing of now
_UNITS = (("cpu", "core"), ("memory", "byte"))
PAGE = "/node-metric"
_MAX_SILENCE_NS = 3600 * NS_PER_S  # a report that is too old is a problem of its own
_log = logging.getLogger(__name__)
_STEP_NS: Final = 300_000  # Why: a job may take a millisecond of the loop's thread, and a step takes up to 0.7
_FIRST_NS: Final = 20 * NS_PER_S  # Why: the report of the agent before this one is up to 120 s old already
Predict = Callable[[int], "ProdPrediction | None"]


def open_job(node: NodeContext) -> NodeMetricJob:
    """Return the job; the stack ends its threads.

    An agent whose pods come from files knows no API server. In a dry run the NodeMetric is read, and not written.
    """
    config = node.config
    known, settings, latest = node.measuring.known, config.node_metric, node.measuring.prediction

    def predicted(now_ns: int) -> ProdPrediction | None:
        return latest.newer_than(now_ns - _PREDICTED_NS)

    beside, koordlet_node = node.measuring.beside, config.node_name if config.koordinator_metrics else None
    if config.source == "file" or config.node_name is None:
        job = NodeMetricJob(known, settings, predict=predicted)
        NodeMetricShown(job, None, settings.latest_ns, tuple, SystemClock()).show(beside, koordlet_node)
        return job
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
            job.set_spec(found.spec)
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


# What is shown of it: the page /node-metric, a part of /readyz, and metrics.


class NodeMetricNow(msgspec.Struct, frozen=True):
    """What is true of the report now. `age_s` None: the server has none of this agent's. `held`: why none is sent."""

    written: int = 0
    tries: int = 0
    bytes: int = 0
    conflicts: int = 0
    failures: int = 0
    age_s: float | None = None
    held: Held | None = None


def sending_families(now: NodeMetricNow) -> Iterator[Metric]:
    """Yield what became of the reports of this agent."""
    name = "koordebpf_node_metric"
    yield CounterMetricFamily(f"{name}_written", "Reports of the node that the API server has taken.", now.written)
    yield CounterMetricFamily(f"{name}_bytes", "Bytes of requests with reports, whatever became of them.", now.bytes)
    yield CounterMetricFamily(f"{name}_conflicts", "Reports that another writer was ahead of.", now.conflicts)
    yield CounterMetricFamily(f"{name}_failures", "Reports that were refused or not answered.", now.failures)
    if now.age_s is not None:
        yield GaugeMetricFamily(f"{name}_age_seconds", "Age of the report that the API server has.", now.age_s)
    held = GaugeMetricFamily(f"{name}_held", "Why no report is being sent; 1 for the reason.", labels=["reason"])
    for reason in get_args(Held):
        held.add_metric([reason], float(reason == now.held))
    yield held


def usage_families(node: str, status: dict[str, Any]) -> Iterator[Metric]:
    """Yield what a status says of the node, as koordlet with its gate NodeMetricPromMetrics.

    Source:  koordinator pkg/koordlet/metrics: same names, same labels.
    """
    info = status["nodeMetric"]
    for part, what in (("node", "The node"), ("system", "What is neither pod nor host application")):
        labels = ["node", "resource", "unit"]
        usage = GaugeMetricFamily(f"koordlet_node_metric_{part}_usage", f"{what}: usage as reported.", labels=labels)
        _add(usage, [node], info[f"{part}Usage"])
        yield usage
        if zones := info.get("numaUsages"):
            name, text = f"koordlet_node_metric_numa_{part}_usage", f"{what}: the same of each NUMA node."
            of_numa = GaugeMetricFamily(name, text, labels=["node", "numa_node_id", "resource", "unit"])
            for zone in zones:
                _add(of_numa, [node, str(zone["numaNodeID"])], zone[f"{part}Usage"])
            yield of_numa


def _add(family: GaugeMetricFamily, labels: list[str], usage: dict[str, Any]) -> None:
    found = usage.get("resources", {})
    for (name, unit), number in zip(_UNITS, (quantity_millicpu, quantity_bytes), strict=True):
        if name in found:
            family.add_metric([*labels, name, unit], number(found[name]) / (1000 if name == "cpu" else 1))


class NodeMetricPage(msgspec.Struct, frozen=True):
    """The report as it is now. `problems`: why it is not what it should be. `status` is what was rendered last.

    `age_s` is that of the report that the API server has of this agent; None: none.
    """

    is_sent: bool
    held: str | None
    other_writer: str | None
    age_s: float | None
    problems: tuple[str, ...]
    policy: Any
    status: dict[str, Any] | None


class NodeMetricShown:
    """Looks at a job and its reporter from any thread.

    Args:
        job: renders.
        reporter: sends; None: a dry run.
        latest_ns: a report is never to be older.
        read_problems: why the NodeMetric cannot be read.
        clock: the node's.
    """

    def __init__(
        self,
        job: NodeMetricJob,
        reporter: NodeMetricReporter | None,
        latest_ns: int,
        read_problems: Callable[[], tuple[str, ...]],
        clock: Clock,
    ) -> None:
        self._job = job
        self._reporter = reporter
        self._latest_ns = latest_ns
        self._read_problems = read_problems
        self._clock = clock
        self._opened_ns = clock.now_ns()

    def show(self, beside: JobPages, koordlet_node: str | None) -> None:
        """Put it where it is asked for; with the node's name, koordlet's metrics too."""
        beside.pages[PAGE] = lambda _: self.page()
        beside.checks[PAGE] = self.check
        beside.families[PAGE] = lambda: self.families(koordlet_node)

    def page(self) -> NodeMetricPage:
        """Return what the page shows."""
        reporter, job = self._reporter, self._job
        return NodeMetricPage(
            is_sent=reporter is not None,
            held=reporter.held if reporter else None,
            other_writer=(reporter.other_writer or None) if reporter else None,
            age_s=self._age_s(),
            problems=self._problems(),
            policy=job.policy,
            status=job.newest,
        )

    def check(self) -> HealthCheck:
        """Return whether the API server has a report that is new enough."""
        return HealthCheck("NodeMetric", "; ".join(self._problems()) or None, self._clock.now_ns(), _MAX_SILENCE_NS)

    def families(self, koordlet_node: str | None) -> Families:
        """Yield metrics; what koordlet calls them only with the node's name."""
        yield from sending_families(self._now())
        if koordlet_node is not None and (status := self._job.newest) is not None:
            yield from usage_families(koordlet_node, status)

    def _now(self) -> NodeMetricNow:
        reporter = self._reporter
        if reporter is None:
            return NodeMetricNow()
        return NodeMetricNow(**msgspec.structs.asdict(reporter.counts), age_s=self._age_s(), held=reporter.held)

    def _age_s(self) -> float | None:
        sent_ns = self._reporter.sent_ns if self._reporter else None
        return None if sent_ns is None else (self._clock.now_ns() - sent_ns) / NS_PER_S

    def _problems(self) -> tuple[str, ...]:
        job, reporter = self._job, self._reporter
        found = [*self._read_problems(), *filter(None, (job.problem, job.unmeasured))]
        if reporter is None:
            return tuple(found)
        if reporter.problem is not None:
            found.append(reporter.problem)
        if reporter.held == "other":
            found.append(f"{reporter.other_writer} writes the NodeMetric of this node: it is left alone")
        elif reporter.held == "absent":
            found.append("there is no NodeMetric of this node")
        else:
            age_ns = self._clock.now_ns() - (self._opened_ns if reporter.sent_ns is None else reporter.sent_ns)
            if age_ns > self._latest_ns:
                found.append(f"no report for {age_ns / NS_PER_S:.0f} s > {self._latest_ns / NS_PER_S:.0f} s")
        return tuple(found)


# The job.


class NodeMetricJob:
    """Renders a report each interval of the NodeMetric's policy, and hands it to what sends it.

    Args:
        known: pods, Node and NodeSLO.
        settings: of the report.
        reporter: sends; None: this agent does not write.
        predict: what is predicted, as of a moment.
        clock: the node's.
    """

    name = "the node's NodeMetric"
    period_ns = NS_PER_S

    def __init__(
        self,
        known: ClusterView,
        settings: NodeMetricSettings,
        reporter: NodeMetricReporter | None = None,
        predict: Predict | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.policy = CollectPolicy()
        self.problem: str | None = None  # of the policy
        self.unmeasured: str | None = None  # why there is no report
        self.newest: dict[str, Any] | None = None  # the status that was rendered last
        self._known = known
        self._settings = settings
        self._reporter = reporter
        self._predict = predict
        self._clock = clock or SystemClock()
        self._due = Due(0)
        self._in_work: tuple[Rendering, Iterator[None]] | None = None
        self._made = 0  # reports

    def collect(self, now_ns: int, into: NodeSeries) -> object:
        """Render a part of the report that is due, for less than a millisecond."""
        if self._in_work is None:
            if not self._made and not self._due.at_ns:
                self._due.at_ns = now_ns + int(random.random() * _FIRST_NS)
            if not self._due.is_due(now_ns) or not self._known.is_whole:
                return None
            self._begin(now_ns, into)
        assert self._in_work is not None
        rendering, steps = self._in_work
        until_ns = time.perf_counter_ns() + _STEP_NS
        for _ in steps:
            if time.perf_counter_ns() >= until_ns:
                return None
        self._in_work = None
        self._end(rendering)
        return None

    def set_spec(self, spec: Any) -> None:
        """Take the spec of the NodeMetric; where it is unusable the last good one stays. From any thread."""
        try:
            self.policy = collect_policy(spec)
            self.problem = None
        except ConfigError as error:
            said = f"NodeMetric: {error}; the last good policy stays in force"
            if said != self.problem:
                _log.warning("%s", said)
            self.problem = said

    def close(self) -> None:
        """Do nothing: what sends is closed by who opened it."""

    def _begin(self, now_ns: int, usage: NodeSeries) -> None:
        # The second one comes by chance, so that nodes that started together do not report together.
        self._made += 1
        again_ns = self._period_ns()
        self._due.done(now_ns, int(jittered(again_ns)) if self._made == 1 else again_ns)
        spec = self._known.spec
        reported = Reported(
            now_ns=now_ns,
            time=datetime.fromtimestamp(self._clock.wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            policy=self.policy,
            pods=self._known.facts,
            host_applications=spec.hostApplications if spec else (),
        )
        rendering = Rendering(usage, reported)
        self._in_work = rendering, rendering.steps()

    def _end(self, rendering: Rendering) -> None:
        self._report(None if rendering.status else "the node's own usage is not measured: nothing is reported")
        if rendering.status is None:
            return
        prediction = self._predict(rendering.now_ns) if self._predict else None
        self.newest = with_prediction(rendering.status, prediction)
        if self._reporter is None:
            return
        self._reporter.report(
            Report(
                now_ns=rendering.now_ns,
                status=self.newest,
                interval_ns=self.policy.interval_ns,
                period_ns=self._period_ns(),
                within=limits(self._settings, *_capacity(self._known)),
            )
        )

    def _report(self, problem: str | None) -> None:
        if problem is not None and problem != self.unmeasured:
            _log.warning("NodeMetric: %s", problem)
        self.unmeasured = problem

    # A longer interval than consumers wait for would be one without reports.
    def _period_ns(self) -> int:
        return min(self.policy.interval_ns, self._settings.quiet_ns)


def _capacity(known: ClusterView) -> tuple[int, int]:
    written = (known.node.status.capacity if known.node else None) or {}
    try:
        return quantity_millicpu(written.get("cpu", 0)), quantity_bytes(written.get("memory", 0))
    except ConfigError:
        return 0, 0
