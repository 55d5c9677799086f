"""Checks and metrics of Katalyst's eviction manager, in the names of this agent and in Katalyst's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.report.job_pages import HealthCheck
from koordebpf.report.prom.bounded import BoundedCounts, by_label
from koordebpf.report.prom.decision import Histogram
from koordebpf.slo.katalyst import EFFECTS, TAINT_PREFIX
from koordebpf.state.view import NodeView
from koordebpf.strategies.katalyst.decide import KATALYST_EVICTION, KatalystDecision
from koordebpf.strategies.katalyst.inner import INSIDE, problem_text
from koordebpf.strategies.katalyst.plugin import KatalystPod, katalyst_pods
from koordebpf.strategies.katalyst.plugins.cnr import NETWORK, RECLAIMED, NetworkState, requested
from koordebpf.strategies.katalyst.plugins.memory import (
    NUMA_MEMORY,
    SYSTEM_MEMORY,
    Action,
    NumaMemoryState,
    SystemMemoryState,
    action_of,
)
from koordebpf.strategies.katalyst.requests import Wanted
from koordebpf.strategies.katalyst.settings import KatalystSettings, is_listed
from koordebpf.strategies.katalyst.values import (
    NOTIFY,
    Condition,
    KatalystFacts,
    KatalystMeasured,
    PluginAnswer,
    SystemMemory,
)
from koordebpf.units import NS_PER_S, PAGE_BYTES

SYNC = "eviction_manager_sync"
_REPORT_NS = 15 * NS_PER_S  # Why: Katalyst's
_PLUGIN_NS = 60 * NS_PER_S  # Why: Katalyst's
_ROUNDS = 3  # that may be missed. Why: Katalyst's
_MOST_SOCKETS = 20  # Why: a page that people read
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
_MEMORY_PLUGINS = (NUMA_MEMORY.name, SYSTEM_MEMORY.name)
_ACTIONS = {Action.RECLAIMED: "reclaimed_eviction", Action.EVERY_POD: "eviction"}
_TYPES = {"node": "NODE_CONDITION", "cnr": "CNR_CONDITION"}
_Row = tuple[Labels, float]


# Katalyst's heartbeats: the manager's rounds, what reports its conditions, and each plugin.
#
# Source: katalyst-core pkg/util/general/healthz.go, heartbeat mode; the names of pkg/agent/evictionmanager.


class PluginState(msgspec.Struct, frozen=True):
    """What one plugin answered last. `at_ns` None: nothing yet."""

    problem: str | None = None
    at_ns: int | None = None


class CheckedParts(msgspec.Struct, frozen=True):
    """All checks, by what they are of: the manager's own parts, plugins by name, sockets without a plugin."""

    manager: tuple[HealthCheck, ...]
    plugins: Mapping[str, HealthCheck] = {}
    sockets: tuple[HealthCheck, ...] = ()

    @property
    def every(self) -> tuple[HealthCheck, ...]:
        """All of them."""
        return (*self.manager, *self.plugins.values(), *self.sockets)


class KatalystChecks:
    """The checks as of the last round. The loop writes, the server's threads read: `now` is replaced as one object.

    Args:
        sync_ns: from one round to the next.
    """

    def __init__(self, sync_ns: int) -> None:
        self._sync_ns = sync_ns
        self._synced_ns: int | None = None
        self._facts: tuple[KatalystFacts, int] | None = None
        self._of_notices: tuple[str | None, ...] = ()  # the last one's problem; none: there was no notice
        self._plugins: dict[str, PluginState] = {}
        self.now = self._checked()

    def round_ended(self, answers: Iterable[PluginAnswer], registered: Collection[str], now_ns: int) -> None:
        """Take the answers of plugins whose round ended; one that is not registered any more is no check."""
        answered = {each.plugin: PluginState(each.problem, now_ns) for each in answers}
        if answered:
            self._synced_ns = now_ns
        if answered or self._plugins.keys() - INSIDE != set(registered):
            awaited = dict.fromkeys(registered, PluginState())
            kept = {name: state for name, state in self._plugins.items() if name in INSIDE or name in awaited}
            self._plugins = {**awaited, **kept, **answered}
            self.now = self._checked()

    def acted(self, facts: KatalystFacts, now_ns: int) -> None:
        """Take what became of conditions and notices."""
        self._facts = facts, now_ns
        self.now = self._checked()

    def notified(self, problem: str | None) -> None:
        """Take what became of the last notice."""
        self._of_notices = (problem,)
        self.now = self._checked()

    def _checked(self) -> CheckedParts:
        rounds_ns = _ROUNDS * self._sync_ns
        manager = [HealthCheck(SYNC, None, self._synced_ns, rounds_ns)]
        sockets: list[HealthCheck] = []
        if self._facts is not None:
            facts, at_ns = self._facts
            reporters = [*sorted(facts.reporters.items()), *((NOTIFY, why) for why in self._of_notices)]
            manager += [HealthCheck(name, why, at_ns, _REPORT_NS) for name, why in reporters]
            refused = sorted(facts.sockets.items())[:_MOST_SOCKETS]
            sockets = [HealthCheck(f"socket {path}", f"no plugin: {why}", at_ns, _REPORT_NS) for path, why in refused]
        plugins = {}
        for name, state in sorted(self._plugins.items()):
            problem = problem_text(name, state.problem)
            plugins[name] = HealthCheck(f"plugin {name}", problem, state.at_ns, max(_PLUGIN_NS, rounds_ns))
        return CheckedParts(tuple(manager), plugins, tuple(sockets))


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


# What is counted, in the names of this agent.


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


# What a round is worth under Katalyst's names of metrics.
#
# Source: katalyst-core pkg/agent/evictionmanager, metricsName… of manager.go, conditions.go and the plugins' modules.


def record_round(names: KatalystNames, made: KatalystDecision, view: NodeView, settings: KatalystSettings) -> None:
    """Take a round of plugins that ended: `made.requests` are there. Cost: 0.3 ms at 110 pods."""
    pods = {each.pod.uid: each for each in katalyst_pods(view.pods, settings.qos.by_level())}
    measured = KATALYST_EVICTION.measured_of(view) or KatalystMeasured()
    asked = [(each.plugin, condition) for each in made.answers for condition in _asked_conditions(each)]
    conditions = ((_condition(plugin, condition, settings), 1.0) for plugin, condition in asked)
    dry_run = _victim_rows(names, made.requests.dry_run if made.requests else (), pods)
    victims = _renewed(names, made, "victims_cnt", _victims(names, made, pods))
    victims[("type", "total"),] = sum(labels[0] == ("type", "plugin") for labels in victims)
    names.gauges = {
        **names.gauges,
        "running_pod_cnt": {(): made.active},
        "candidate_pod_cnt": {(): made.candidates},
        "request_condition_cnt": _renewed(names, made, "request_condition_cnt", conditions),
        "victims_cnt": victims,
        "dryrun_victims_cnt": _renewed(names, made, "dryrun_victims_cnt", dry_run),
    }
    if measured.numa is not None:  # in a round that pressure has started it is not measured
        names.gauges["numa_metric_raw"] = bounded(_numa(made, measured))
    if measured.system is not None:
        names.gauges["system_metric_raw"] = bounded(_system(measured.system))
    for answer in made.answers:
        names.count("eviction_plugin_called", answer.plugin)
        if answer.plugin in _MEMORY_PLUGINS and answer.top is not None:
            names.gauges["number_of_target_pods_raw"] = {(): len(answer.top.uids)}
        if answer.plugin == NETWORK.name:
            ill = _state(made, NETWORK.name, NetworkState).since_ns
            names.gauges["network_eviction_unhealthy_nic"] = bounded(((("nic", nic),), 1.0) for nic in sorted(ill))
        if answer.plugin == RECLAIMED.name:
            _record_reclaimed(names, pods.values(), measured)
    _count_short(names, made, view, measured, settings)


# Plugins inside and outside have rounds of their own: what the others said last stays.
def _renewed(names: KatalystNames, made: KatalystDecision, metric: str, rows: Iterable[_Row]) -> dict[Labels, float]:
    answered = {("name", each.plugin) for each in made.answers}
    before = names.gauges.get(metric, {}).items()
    kept = ((labels, value) for labels, value in before if len(labels) > 1 and not answered.intersection(labels))
    return bounded((*rows, *kept))


def reported_taints(made: KatalystDecision) -> dict[Labels, float]:
    """Return the taints of the CustomNodeResource that the decision reports, as `cnr_taint` has them."""
    rows: list[_Row] = []
    for each in made.reported:
        for effect in each.condition.effects if each.condition.kind == "cnr" else ():
            level, _, of_kubernetes = effect.partition("/")
            if of_kubernetes in EFFECTS:
                key = f"{TAINT_PREFIX}{each.condition.name}"
                rows.append(((("qos_level", level), ("key", key), ("effect", of_kubernetes)), 1.0))
    return bounded(rows)


def _asked_conditions(answer: PluginAnswer) -> Iterator[Condition]:
    if answer.threshold is not None and answer.threshold.condition is not None:
        yield answer.threshold.condition
    yield from answer.conditions


def _condition(plugin: str, condition: Condition, settings: KatalystSettings) -> Labels:
    return (
        ("name", plugin),
        ("condition_name", condition.name),
        ("condition_type", _TYPES[condition.kind]),
        ("effects", "_".join(condition.effects)),
        ("dryrun", str(is_listed(plugin, settings.dry_run)).lower()),
    )


# As Katalyst counts: what is asked for, also above the burst, and of the soft ones the one that may go.
def _victims(names: KatalystNames, made: KatalystDecision, pods: dict[str, KatalystPod]) -> Iterator[_Row]:
    asked = list(made.requests.forced.values()) if made.requests else []
    listening = set(made.listening)
    for each in made.state.queue.soft:
        pod = pods.get(each.uid)
        if pod is not None and (pod.pod.namespace, pod.pod.name) not in listening:
            asked.append(each)
            break
    for labels, value in _victim_rows(names, asked, pods):
        yield (("type", "plugin"), *labels), value


def _victim_rows(names: KatalystNames, asked: Iterable[Wanted], pods: dict[str, KatalystPod]) -> Iterator[_Row]:
    for wanted in asked:
        if (each := pods.get(wanted.uid)) is None:
            continue
        pod = each.pod
        own = ((name, pod.terms.labels[key]) for name, key in names.pod_labels.items() if key in pod.terms.labels)
        labels = (
            ("name", wanted.plugin),
            ("victim_ns", pod.namespace),
            ("victim_name", pod.name),
            ("qos", each.level or "unknown"),
            ("priority", "empty" if pod.priority is None else str(pod.priority)),
        )
        yield (*labels, *own), 1.0


def _numa(made: KatalystDecision, measured: KatalystMeasured) -> Iterator[_Row]:
    state = _state(made, NUMA_MEMORY.name, NumaMemoryState)
    for each in measured.numa or ():
        numa = ("numa_id", str(each.node))
        yield (numa, ("metric_name", "mem.free.numa")), float(each.free_pages * PAGE_BYTES)
        yield (numa, ("metric_name", "mem.total.numa")), float(each.total_bytes)
        if (times := state.nodes.get(str(each.node))) is not None:
            yield (numa, ("metric_name", "numa_free_below_watermark_times")), float(times.times)


def _system(system: SystemMemory) -> Iterator[_Row]:
    yield (("metric_name", "mem.free.system"),), float(system.free_bytes)
    yield (("metric_name", "mem.total.system"),), float(system.total_bytes)
    yield (("metric_name", "mem.scale.factor.system"),), float(system.scale_factor)


def _record_reclaimed(names: KatalystNames, pods: Iterable[KatalystPod], measured: KatalystMeasured) -> None:
    reclaimed = [each for each in pods if each.is_reclaimed]
    plugin = ("pluginName", RECLAIMED.name)
    names.gauges["pod_count"] = {(plugin,): len(reclaimed)}
    if measured.cnr is not None and not measured.cnr.allocatable:
        names.count("get_resource_empty", RECLAIMED.name)
    rows: list[_Row] = []
    for kind, amounts in (
        ("allocatable", measured.cnr.allocatable if measured.cnr else {}),
        ("used", requested(each.pod.terms.katalyst_requests for each in reclaimed)),
    ):
        rows += [((plugin, ("type", kind), ("resource", name)), float(amount)) for name, amount in amounts.items()]
    for each in reclaimed:
        pod = (("namespace", each.pod.namespace), ("name", each.pod.name), ("type", "pod"))
        for name, amount in each.pod.terms.katalyst_requests.items():
            rows.append(((plugin, *pod, ("resource", name)), float(amount)))
    names.gauges["pod_resource"] = bounded(rows)


def _count_short(
    names: KatalystNames,
    made: KatalystDecision,
    view: NodeView,
    measured: KatalystMeasured,
    settings: KatalystSettings,
) -> None:
    scopes = {each.plugin: each.threshold.scope for each in made.answers if each.threshold is not None}
    if (scope := scopes.get(NUMA_MEMORY.name)) is not None:
        for node, times in _state(made, NUMA_MEMORY.name, NumaMemoryState).nodes.items():
            if times.action is not None:
                names.count("threshold_met_count", scope, "numa", node, _ACTIONS[Action(times.action)])
    if (scope := scopes.get(SYSTEM_MEMORY.name)) is not None and measured.system is not None:
        state = _state(made, SYSTEM_MEMORY.name, SystemMemoryState)
        action = action_of(view.now_ns, measured.system, state, settings.inner.systemMemory)
        if action is not None:
            names.count("threshold_met_count", scope, "system", "", _ACTIONS[action])


def _state(made: KatalystDecision, plugin: str, kind: Any) -> Any:
    state = made.state.inner.get(plugin)
    return kind() if state is None else msgspec.convert(state, kind, from_attributes=True)
