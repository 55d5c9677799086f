"""Metrics of Katalyst's eviction manager, in the names of this agent."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.policy.katalyst.inner import INSIDE
from koordebpf.report.katalyst.checks import KatalystChecks
from koordebpf.report.prom.bounded import BoundedCounts, by_label
from koordebpf.report.prom.decision import Histogram

_DETAIL_NS = 300_000_000_000  # Why: as koordlet's names of pods
MAX_DETAILS = 500  # Why: as of koordlet's names
Labels = tuple[tuple[str, str], ...]
Rows = Mapping[Labels, float]
Key = tuple[str, Labels]  # name of the metric, and its labels
_GAUGES = {
    "running_pod_cnt": "Pods that did not end.",
    "candidate_pod_cnt": "Of those, what plugins are asked about.",
    "request_condition_cnt": "Conditions that plugins asked for in their last round.",
    "victims_cnt": "Pods that the last round asked to evict.",
    "dryrun_victims_cnt": "Pods that plugins of a dry run asked for in their last round.",
    "cnr_taint": "Taints of the CustomNodeResource that are reported.",
    "number_of_target_pods_raw": "Pods that a memory plugin chose last.",
    "numa_metric_raw": "What the NUMA memory plugin judged by.",
    "system_metric_raw": "What the system memory plugin judged by.",
    "network_eviction_unhealthy_nic": "NICs without bandwidth or without a link.",
    "pod_count": "Pods of reclaimed_cores.",
    "pod_resource": "What reclaimed pods request, and what the CustomNodeResource has to give.",
}
_COUNTS = {
    "eviction_plugin_called": ("Rounds in which the plugin was called.", ("name",)),
    "threshold_met_count": (
        "Rounds in which memory was short.",
        ("eviction_scope", "detection_level", "numa_id", "action"),
    ),
    "get_resource_empty": ("Rounds in which the CustomNodeResource had nothing to give.", ("pluginName",)),
}
_DETAILS = {
    "kill_pod": "Pods whose eviction ended, each for 5 minutes.",
    "notify_pod": "Pods that were notified of a soft eviction, each for 5 minutes.",
}
_VALIDATE = "eviction_plugin_validate"
MAX_PLUGINS = 64  # Why: ten times those of Katalyst's own agent; others share the name _other
_MAX_CONDITIONS = 64
_ROUND_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


# Katalyst's own names of what its eviction manager counts, for dashboards that were made for katalyst-agent.
#
# Names and labels are Katalyst's. What Katalyst stores as a raw value is a gauge of the last round. What it counts has
# no type here: a counter's name would have to end in _total.


class KatalystNames:
    """Values under Katalyst's names. The loop sets them, scrapes read copies.

    `pod_labels` are the labels of victims that are shown too.
    """

    def __init__(self, pod_labels: Sequence[str]) -> None:
        self.pod_labels = {f"pod_{re.sub('[^a-zA-Z0-9_]', '_', each)}": each for each in reversed(pod_labels)}
        self.gauges: dict[str, Rows] = {}  # by name; each is replaced
        self.validations: Rows = {}
        self._counts = {name: BoundedCounts(100) for name in _COUNTS}
        self._details: dict[Key, tuple[int, int]] = {}  # how often, and when last

    def count(self, name: str, *values: str) -> None:
        """Count one of `eviction_plugin_called`, `threshold_met_count`, `get_resource_empty`."""
        self._counts[name].add(*values)

    def detail(self, name: str, labels: Labels, now_ns: int) -> None:
        """Count one of `kill_pod`, `notify_pod`: a series that ends 5 minutes after its last, of so many at most."""
        count, _ = self._details.pop((name, labels), (0, 0))
        kept = [each for each in self._details.items() if now_ns - each[1][1] < _DETAIL_NS][-(MAX_DETAILS - 1) :]
        self._details = {**dict(kept), (name, labels): (count + 1, now_ns)}

    def families(self, now_ns: int) -> Iterator[Metric]:
        """Yield every family; one without a value has no sample."""
        gauges = self.gauges.copy()
        for name, text in _GAUGES.items():
            yield _family(GaugeMetricFamily(name, text), gauges.get(name, {}).items())
        for name, (text, labels) in _COUNTS.items():
            rows = ((tuple(zip(labels, values, strict=True)), n) for values, n in self._counts[name].items().items())
            yield _family(Metric(name, text, "unknown"), rows)
        yield _family(Metric(_VALIDATE, "Plugins that asked to be registered.", "unknown"), self.validations.items())
        details = self._details
        for name, text in _DETAILS.items():
            of = (
                (key[1], count) for key, (count, at) in details.items() if key[0] == name and now_ns - at < _DETAIL_NS
            )
            yield _family(Metric(name, text, "unknown"), of)


def bounded(rows: Iterable[tuple[Labels, float]]) -> dict[Labels, float]:
    """Return the first of the rows, as many as are shown."""
    found: dict[Labels, float] = {}
    for labels, value in rows:
        if len(found) >= MAX_DETAILS:
            break
        found[labels] = value
    return found


def _family(family: Metric, rows: Iterable[tuple[Labels, float]]) -> Metric:
    for labels, value in rows:
        family.add_sample(family.name, dict(labels), value)
    return family


class KatalystNow(msgspec.Struct, frozen=True):
    """As of the last round. `queued`: pods by mode; `conditions`: name and kind."""

    queued: Mapping[str, int] = {}
    conditions: tuple[tuple[str, str], ...] = ()
    notices: tuple[int, int] = (0, 0)
    validations: Mapping[tuple[str, str], int] = {}  # outcome and reason → how often


class KatalystMetrics:
    """The loop counts, scrapes read. `names`: Katalyst's own names too; `clock_ns`: CLOCK_MONOTONIC."""

    def __init__(
        self,
        checks: KatalystChecks,
        names: KatalystNames | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock_ns = clock_ns
        self._checks = checks
        self._names = names
        self.now = KatalystNow()
        self.rounds = BoundedCounts(2)
        self.seconds = {"inside": Histogram(_ROUND_BOUNDS_S), "outside": Histogram(_ROUND_BOUNDS_S)}
        self.calls = BoundedCounts(MAX_PLUGINS)
        self.met = BoundedCounts(MAX_PLUGINS)
        self.requested = BoundedCounts(MAX_PLUGINS)
        self.refused = BoundedCounts(MAX_PLUGINS)
        self.released = BoundedCounts(MAX_PLUGINS)

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield self.rounds.family("koordebpf_katalyst_rounds", "Rounds of eviction plugins.", ("plugins",))
        for plugins, seconds in self.seconds.items():
            text = {
                "inside": "A round of plugins inside: from the measurement to the last eviction sent.",
                "outside": "A round of plugins outside: from the first call to the last answer.",
            }[plugins]
            yield seconds.family(f"koordebpf_katalyst_{plugins}_round_seconds", text)
        counts: tuple[tuple[BoundedCounts, str, str, str], ...] = (
            (self.calls, "plugin_calls", "Answers of a plugin: complete, or with a problem.", "result"),
            (self.met, "thresholds_met", "Rounds in which a plugin's threshold was met.", "met"),
            (self.requested, "requested_pods", "Pods that a plugin asks for, in each round again.", "mode"),
            (self.refused, "refused_pods", "Pods that a plugin asks for in vain, in each round again.", "reason"),
            (self.released, "released_pods", "Pods whose eviction was started for a plugin.", "mode"),
        )
        for each, name, text, label in counts:
            yield each.family(f"koordebpf_katalyst_{name}", text, ("plugin", label))
        now = self.now
        text = "Pods that the last round asks for: forced ones within the burst, and soft ones of which one may go."
        yield by_label(GaugeMetricFamily, "koordebpf_katalyst_queued_pods", text, "mode", now.queued)
        yield from _conditions(now)
        yield from _reported(now)
        yield from self._health()
        if self._names is not None:
            yield from self._names.families(self._clock_ns())

    def _health(self) -> Iterator[Metric]:
        parts, now_ns = self._checks.now, self._clock_ns()
        text = "1: this part of Katalyst's manager works."
        healthy = GaugeMetricFamily("koordebpf_katalyst_check", text, labels=["check"])
        for each in parts.manager:
            healthy.add_metric([each.name], each.failure(now_ns) is None)
        yield healthy
        text = "1: the plugin's last answer failed, or it lacks what it judges by."
        problems = GaugeMetricFamily("koordebpf_katalyst_plugin_problem", text, labels=["plugin", "reason"])
        for name, check in list(parts.plugins.items())[:MAX_PLUGINS]:
            if check.failure(now_ns) is not None:
                reason = "lacks_input" if name in INSIDE and check.problem is not None else "failed"
                problems.add_metric([name, reason], 1)
        yield problems


def _conditions(now: KatalystNow) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "koordebpf_katalyst_condition", "1: the condition is reported.", labels=["condition", "kind"]
    )
    for condition, kind in now.conditions[:_MAX_CONDITIONS]:
        family.add_metric([condition, kind], 1)
    yield family


def _reported(now: KatalystNow) -> Iterator[Metric]:
    text = "Notices of soft evictions, in each round again."
    notices = CounterMetricFamily("koordebpf_katalyst_notices", text, labels=["result"])
    for result, count in zip(("sent", "failed"), now.notices, strict=True):
        notices.add_metric([result], count)
    yield notices
    text = "Plugins outside that asked to be registered."
    validations = CounterMetricFamily("koordebpf_katalyst_validations", text, labels=["outcome", "reason"])
    for labels, count in now.validations.items():
        validations.add_metric(labels, count)
    yield validations
