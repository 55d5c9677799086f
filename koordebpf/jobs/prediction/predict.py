"""What pods will use, from the models of what they used: those that Koordinator knows, and how models learn. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.jobs.prediction.models import BAND_UIDS, NO_BAND, NODE_UID, SYSTEM_UID, Model, Models, Usage, empty_model
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.kube.cache.objects import Node, Pod
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.slo.pods.qos import koord_priority, koord_qos_or_default
from koordebpf.state.pods.effective import effective
from koordebpf.state.pods.facts import PodFacts, seconds_of
from koordebpf.state.pods.requests import NATIVE_CPU, NATIVE_MEMORY, cpu_requests, memory_requests
from koordebpf.state.prediction import Amounts, HalfLives, ProdPrediction
from koordebpf.state.series.kinds import NODE_CPU, NODE_MEMORY, POD_CPU, POD_MEMORY, SeriesKey
from koordebpf.state.series.store import NodeSeries
from koordebpf.state.view import FINISHED_PHASES

_MOST = Amounts(2**62, 2**62)  # Why: the API server's quantities end at 2^63; a pod of a file may say anything
_PROD_BANDS = ("koord-prod", NO_BAND)
_NOTHING = Usage(0.0, 0.0)
_MOST_CORES, _MOST_BYTES = 1e6, 1e18  # Why: no machine has them; what says so was misread
# What a node can give before it was amplified. Source: koordinator apis/extension/node_resource_amplification.go.
RAW_ALLOCATABLE_ANNOTATION = "node.koordinator.sh/raw-allocatable"
# koordlet's names of the predictors, as its metrics have them.
POD, PRIORITY, LEAST = "podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor"
Peaks = Mapping[str, Amounts]


class PredictedPod(msgspec.Struct, frozen=True):
    """One pod.

    `band`        of its priority, by label, value or QoS class; "" for none.
    `request`     of native resources, as far as it is granted; of one that cannot be read nothing.
    `created_s`   since the epoch; None: not known.
    `is_leaving`  it is being deleted.
    `is_finished` no process of it is left.
    """

    uid: str
    band: str
    request: Amounts
    created_s: float | None
    is_leaving: bool = False
    is_finished: bool = False

    @property
    def is_prod(self) -> bool:
        """What it requests and does not use may be given to pods of the mid band."""
        return self.band in _PROD_BANDS


def predicted_pod(facts: PodFacts) -> PredictedPod:
    """Return it of one Pod.

    Cost:    15 µs with three containers that have requests.
    """
    pod = facts.pod
    qos = koord_qos_or_default(pod.metadata.labels, facts.kube_qos)
    return PredictedPod(
        facts.uid,
        koord_priority(pod.metadata.labels, facts.priority, qos),
        _request(pod),
        _created_s(pod),
        is_leaving=facts.is_terminating,
        is_finished=facts.phase in FINISHED_PHASES,
    )


def _request(pod: Pod) -> Amounts:
    its = effective(pod)
    if its.problem is not None:
        return Amounts()
    try:
        request = Amounts(cpu_requests(its).native_millicpu, memory_requests(its).native_bytes)
    except ConfigError:
        return Amounts()  # it is in the list of what is wrong with pods already
    return request.at_most(_MOST)


def _created_s(pod: Pod) -> float | None:
    written = pod.metadata.creationTimestamp
    if written is None:
        return None
    try:
        return seconds_of(written, f"pod {pod.key} metadata.creationTimestamp")
    except ConfigError:
        return None


# One step of the models: what was used in the last interval becomes one more sample of each.
#
# Source: koordinator pkg/koordlet/prediction/predict_server.go.


def pod_usage(series: NodeSeries, uid: str, now_ns: int, window_ns: int) -> Usage | None:
    """Return the p90 of what a pod used in the window; None: CPU or memory was not measured in it."""
    return _usage(series, (POD_CPU, uid), (POD_MEMORY, uid), now_ns, window_ns)


def node_usage(series: NodeSeries, now_ns: int, window_ns: int) -> Usage | None:
    """Return the same of the node."""
    return _usage(series, (NODE_CPU,), (NODE_MEMORY,), now_ns, window_ns)


def node_samples(bands: Mapping[str, str], pods: Mapping[str, Usage], node: Usage | None) -> dict[str, Usage]:
    """Return the samples of the node, of each band of priority and of the system, by the UID of their models.

    A band of which there is no pod has used nothing. One with pods of which none was measured has no sample, and
    without the node's usage the system has none: absent is not zero.

    Args:
        bands: of every pod on the node, by UID.
        pods: what was measured of them.
        node: the node as a whole; None: it was not measured.
    """
    samples: dict[str, Usage] = {} if node is None else {NODE_UID: node}
    sums: dict[str, Usage] = {}
    for uid, usage in pods.items():
        band = bands[uid]
        sums[band] = sums.get(band, _NOTHING) + usage
    present = set(bands.values())
    for band, uid in BAND_UIDS.items():
        if band in sums:
            samples[uid] = sums[band]
        elif band not in present:
            samples[uid] = _NOTHING
    if node is not None:
        of_pods = sum(sums.values(), _NOTHING)
        samples[SYSTEM_UID] = Usage(
            max(node.cpu_cores - of_pods.cpu_cores, 0.0), max(node.memory_bytes - of_pods.memory_bytes, 0.0)
        )
    return samples


def trained(models: Models, samples: Mapping[str, Usage], now_ns: int, half_lives: HalfLives) -> Models:
    """Return the models with one more sample of each UID that is given; one that is new starts with it.

    Args:
        models: those of before, which stay as they are.
        samples: by UID; one that no machine can have used is left out.
        now_ns: nanoseconds since 1970.
        half_lives: of models that are new.
    Cost:    5 µs a sample.
    """
    after = dict(models)
    for uid, usage in samples.items():
        if not (_is_possible(usage.cpu_cores, _MOST_CORES) and _is_possible(usage.memory_bytes, _MOST_BYTES)):
            continue
        before = models.get(uid)
        model = empty_model(half_lives) if before is None else before
        after[uid] = Model(
            model.cpu.plus(usage.cpu_cores, now_ns),
            model.memory.plus(usage.memory_bytes, now_ns),
            now_ns,
            model.checkpointed_ns,
        )
    return after


def expired(models: Models, now_ns: int, after_ns: int) -> tuple[str, ...]:
    """Return the UIDs of models that had no sample for longer than that."""
    return tuple(uid for uid, model in models.items() if model.updated_ns + after_ns < now_ns)


def without(models: Models, uids: Iterable[str]) -> Models:
    """Return the models of all other UIDs."""
    removed = frozenset(uids)
    return {uid: model for uid, model in models.items() if uid not in removed}


def due_for_checkpoint(models: Models, now_ns: int, every_ns: int, most: int) -> tuple[str, ...]:
    """Return the UIDs of models that are to be kept again, the one that was kept longest ago first."""
    due = [(model.checkpointed_ns, uid) for uid, model in models.items() if model.checkpointed_ns + every_ns <= now_ns]
    return tuple(uid for _, uid in sorted(due)[:most])


def checkpointed(models: Models, uids: Iterable[str], now_ns: int) -> Models:
    """Return the models with those of these UIDs kept at this moment."""
    after = dict(models)
    for uid in uids:
        model = models[uid]
        after[uid] = Model(model.cpu, model.memory, model.updated_ns, now_ns)
    return after


def _usage(series: NodeSeries, cpu: SeriesKey, memory: SeriesKey, now_ns: int, window_ns: int) -> Usage | None:
    cores = series.query(cpu, now_ns, window_ns, "p90")
    if cores is None:
        return None
    size = series.query(memory, now_ns, window_ns, "p90")
    return None if size is None else Usage(cores, size)


def _is_possible(value: float, most: float) -> bool:
    return math.isfinite(value) and value <= most


# What prod pods request and will not use, and what they will use at most: two predictors and the more careful of both.
#
# Source: koordinator pkg/koordlet/prediction/peak_predictor.go.


class Predicted(msgspec.Struct, frozen=True):
    """What came of one moment.

    `prod`        for the report.
    `by`          what each predictor says, by koordlet's name of it.
    `unpredicted` UIDs of prod pods of which the whole request counts as used: too young, or without a model.
    `problem`     why nothing is reclaimable, as a sentence; None: it is known.
    """

    prod: ProdPrediction
    by: Mapping[str, ProdPrediction] = {}
    unpredicted: tuple[str, ...] = ()
    problem: str | None = None


def node_allocatable(node: Node) -> Amounts:
    """Return what pods can request of the node, before amplification.

    Raises:  ConfigError: the Node has none, or a quantity that is none.
    """
    written, path = _raw_allocatable(node), f"node.metadata.annotations[{RAW_ALLOCATABLE_ANNOTATION}]"
    if written is None:
        written, path = node.status.allocatable, "node.status.allocatable"
    if written is None:
        raise ConfigError(path, NOT_GIVEN, "must have cpu and memory")
    return Amounts(
        quantity_millicpu(written.get(NATIVE_CPU, 0), f"{path}.{NATIVE_CPU}"),
        quantity_bytes(written.get(NATIVE_MEMORY, 0), f"{path}.{NATIVE_MEMORY}"),
    )


# An annotation that cannot be read counts as absent, as with koordlet.
def _raw_allocatable(node: Node) -> dict[str, str | int | float] | None:
    written = (node.metadata.annotations or {}).get(RAW_ALLOCATABLE_ANNOTATION)
    if written is None:
        return None
    try:
        found: dict[str, str | int | float] | None = decoder(dict[str, str | int | float] | None).decode(written)
        if found is not None:
            quantity_millicpu(found.get(NATIVE_CPU, 0))
            quantity_bytes(found.get(NATIVE_MEMORY, 0))
    except (msgspec.DecodeError, ConfigError, RecursionError):
        return None
    return found


def peak_of(model: Model, settings: PredictionSettings) -> Amounts:
    """Return what is predicted to be used at most, without a margin.

    Cost:    8 µs.
    """
    return model.peak(settings.cpu_peak_percent / 100, settings.memory_peak_percent / 100)


def predict(
    peaks: Peaks, pods: Sequence[PredictedPod], node: Node | None, now_s: float, settings: PredictionSettings
) -> Predicted:
    """Return what is predicted of the node's prod pods now.

    Args:
        peaks: `peak_of` each model, by UID.
        pods: those that were measured; of others koordlet predicts nothing, too.
        node: None: not known.
        now_s: seconds since the epoch, by the clock of `creationTimestamp`.
        settings: cold start, margin and shares.
    Cost:    2 µs a pod.
    """
    of_pods = _ByPod(peaks, settings)
    for pod in pods:
        of_pods.add(pod, now_s)
    requests = sum((pod.request for pod in pods if pod.is_prod and not _is_over(pod)), Amounts())
    unreclaimable = _by_priority(peaks, settings)
    if unreclaimable is None:
        return _nothing(of_pods, "the models of the system and of prod pods have not been trained yet")
    at_most = {POD: of_pods.peak, PRIORITY: unreclaimable}
    peak = of_pods.peak.at_least(unreclaimable)
    if node is None:
        return _nothing(of_pods, "the Node is not known", at_most, peak)
    try:
        allocatable = node_allocatable(node)
    except ConfigError as error:
        return _nothing(of_pods, str(error), at_most, peak)
    by_pod = allocatable.less(of_pods.unreclaimable).at_most(of_pods.reclaimable)
    by_priority = allocatable.less(unreclaimable).at_most(requests.less(unreclaimable))
    prod = ProdPrediction(by_pod.at_most(by_priority), peak)
    by = {POD: ProdPrediction(by_pod, of_pods.peak), PRIORITY: ProdPrediction(by_priority, unreclaimable), LEAST: prod}
    return Predicted(prod, by, tuple(of_pods.unpredicted))


class _ByPod:
    """Sums over pods, of the peak and of what it leaves of the request of each one."""

    def __init__(self, peaks: Peaks, settings: PredictionSettings) -> None:
        self._peaks = peaks
        self._settings = settings
        self.reclaimable = self.unreclaimable = self.unknown = Amounts()
        self.unpredicted: list[str] = []

    @property
    def peak(self) -> Amounts:
        return self.unreclaimable + self.unknown

    def add(self, pod: PredictedPod, now_s: float) -> None:
        if not pod.is_prod or pod.is_finished:
            return
        is_young = pod.created_s is None or now_s - pod.created_s <= self._settings.cold_start_ns / 1e9
        if pod.is_leaving and not is_young:
            return
        peak = self._peaks.get(pod.uid)
        if is_young or peak is None:
            self.unknown += pod.request
            self.unpredicted.append(pod.uid)
            return
        peak = with_margin(peak, self._settings)
        self.unreclaimable += peak
        self.reclaimable += pod.request.less(peak)


# What the system, prod pods and those without a band use at most; None: one of the models is not there.
def _by_priority(peaks: Peaks, settings: PredictionSettings) -> Amounts | None:
    total = Amounts()
    for uid in (SYSTEM_UID, BAND_UIDS["koord-prod"], BAND_UIDS[NO_BAND]):
        if (peak := peaks.get(uid)) is None:
            return None
        total += peak
    return with_margin(total, settings)


def with_margin(peak: Amounts, settings: PredictionSettings) -> Amounts:
    """Return a peak with the safety margin, truncated."""
    ratio = (100 + settings.safety_margin_percent) / 100
    return Amounts(int(peak.cpu_millicpu * ratio), int(peak.memory_bytes * ratio))


def _is_over(pod: PredictedPod) -> bool:
    return pod.is_leaving or pod.is_finished


def _nothing(
    of_pods: _ByPod, problem: str, peaks: Mapping[str, Amounts] | None = None, peak: Amounts | None = None
) -> Predicted:
    by = {name: ProdPrediction(None, each) for name, each in (peaks or {}).items()}
    return Predicted(ProdPrediction(None, peak), by, tuple(of_pods.unpredicted), problem)
