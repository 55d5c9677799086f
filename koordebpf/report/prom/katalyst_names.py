"""Katalyst's own names of what its eviction manager counts, for dashboards that were made for katalyst-agent.

Names and labels are Katalyst's. What Katalyst stores as a raw value is a gauge of the last round. What it counts has no
type here: a counter's name would have to end in _total.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.report.prom.bounded import BoundedCounts

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
