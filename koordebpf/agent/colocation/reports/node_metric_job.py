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
from typing import TYPE_CHECKING, Any, Final

from koordebpf.clock import Clock, Due, SystemClock
from koordebpf.errors import ConfigError
from koordebpf.kube.http.backoff import jittered
from koordebpf.policy.node_metric.render import Rendering, Reported, with_prediction
from koordebpf.policy.node_metric.sending import Report
from koordebpf.policy.node_metric.settings import NodeMetricSettings
from koordebpf.policy.node_metric.settled import limits
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.slo.node_metric import CollectPolicy, collect_policy
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.act.node_metric import NodeMetricReporter
    from koordebpf.collect.cluster_view import Known
    from koordebpf.state.prediction.values import ProdPrediction
    from koordebpf.state.series.node import NodeSeries

_log = logging.getLogger(__name__)
_STEP_NS: Final = 300_000  # Why: a job may take a millisecond of the loop's thread, and a step takes up to 0.7
_FIRST_NS: Final = 20 * NS_PER_S  # Why: the report of the agent before this one is up to 120 s old already

Predict = Callable[[int], "ProdPrediction | None"]


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
        known: Known,
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

    def take_spec(self, spec: Any) -> None:
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
        self._say(None if rendering.status else "the node's own usage is not measured: nothing is reported")
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

    def _say(self, problem: str | None) -> None:
        if problem is not None and problem != self.unmeasured:
            _log.warning("NodeMetric: %s", problem)
        self.unmeasured = problem

    # A longer interval than consumers wait for would be one without reports.
    def _period_ns(self) -> int:
        return min(self.policy.interval_ns, self._settings.quiet_ns)


def _capacity(known: Known) -> tuple[int, int]:
    written = (known.node.status.capacity if known.node else None) or {}
    try:
        return quantity_millicpu(written.get("cpu", 0)), quantity_bytes(written.get("memory", 0))
    except ConfigError:
        return 0, 0
