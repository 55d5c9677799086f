"""What prod pods request and will not use, and what they will use at most: two predictors and the more careful of both.

Source:  koordinator pkg/koordlet/prediction/peak_predictor.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.kube.cache.objects import Node
from koordebpf.policy.predict.pods import PredictedPod
from koordebpf.policy.predict.settings import PredictionSettings
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.state.pods.requests import NATIVE_CPU, NATIVE_MEMORY
from koordebpf.state.prediction.models import BAND_UIDS, NO_BAND, SYSTEM_UID, Model
from koordebpf.state.prediction.values import Amounts, ProdPrediction

# What a node can give before it was amplified. Source: koordinator apis/extension/node_resource_amplification.go.
RAW_ALLOCATABLE_ANNOTATION = "node.koordinator.sh/raw-allocatable"

# koordlet's names of the predictors, as its metrics have them.
POD, PRIORITY, LEAST = "podReclaimablePredictor", "priorityReclaimablePredictor", "minPredictor"


Peaks = Mapping[str, Amounts]


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
        found = msgspec.json.decode(written, type=dict[str, str | int | float] | None)
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
