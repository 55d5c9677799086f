"""What of prod pods' requests may be used again, and what they use at most."""

from __future__ import annotations

import math

import pytest

from koordebpf.jobs.prediction.models import Usage
from koordebpf.jobs.prediction.predict import (
    LEAST,
    POD,
    PRIORITY,
    PredictedPod,
    node_allocatable,
    peak_of,
    predict,
    predicted_pod,
    trained,
)
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.kube.cache.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus
from koordebpf.kube.cache.objects import ResourceRequirements as Resources
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.prediction import Amounts, ProdPrediction
from koordebpf.units import GIB, NS_PER_S

SETTINGS = PredictionSettings()
NOW_S = 1_772_702_621.0
NOW_NS = int(NOW_S) * NS_PER_S
DAY_S = 86_400
NODE = Node(ObjectMeta(name="n1"), NodeStatus(allocatable={"cpu": "16", "memory": "64Gi"}))


def bucket_end(value: float, first: float) -> float:
    """Return where the bucket of a value ends: first · (1.05^(n+1) − 1) / 0.05."""
    n = 0 if value < first else int(math.log(value * 0.05 / first + 1) / math.log(1.05))
    return first * (1.05 ** (n + 1) - 1) / 0.05


def with_margin(cores: float, size: float) -> Amounts:
    """Return what is predicted of one that always used this much, with a margin of a tenth."""
    cpu, memory = bucket_end(cores, 0.025), bucket_end(size, 5 << 20)
    return Amounts(int(int(cpu * 1000) * 1.1), int(int(memory) * 1.1))


def raw_peak(cores: float, size: float) -> Amounts:
    return Amounts(int(bucket_end(cores, 0.025) * 1000), int(bucket_end(size, 5 << 20)))


def models_of(**usage: tuple[float, float]):
    """Return models that saw one usage each; those of the node that are not named saw nothing."""
    samples = {"__node-sys__": (0.0, 0.0), "__node-koord-prod__": (0.0, 0.0), "__node-__": (0.0, 0.0), **usage}
    return peaks_after({uid: Usage(*each) for uid, each in samples.items()})


def peaks_after(*samples, settings=SETTINGS):
    models = {}
    for each in samples:
        models = trained(models, each, NOW_NS, settings.half_lives)
    return {uid: peak_of(model, settings) for uid, model in models.items()}


def of(uid: str, cpu: int, gib: float, band: str = "koord-prod", age_s: float = 2 * DAY_S, **more: bool):
    return PredictedPod(uid, band, Amounts(cpu, int(gib * GIB)), NOW_S - age_s, **more)


ZERO = raw_peak(0.0, 0.0)  # the end of the first bucket
SYSTEM_ONLY = Amounts(int(3 * ZERO.cpu_millicpu * 1.1), int(3 * ZERO.memory_bytes * 1.1))


def test_what_a_pod_requests_above_its_peak_is_reclaimable():
    models = models_of(a=(1.0, 2.0 * GIB), b=(0.5, 1.0 * GIB))
    predicted = predict(models, [of("a", 4000, 8), of("b", 2000, 4)], NODE, NOW_S, SETTINGS)
    a, b = with_margin(1.0, 2.0 * GIB), with_margin(0.5, 1.0 * GIB)
    assert predicted.by[POD].reclaimable == Amounts(4000, 8 * GIB).less(a) + Amounts(2000, 4 * GIB).less(b)
    assert predicted.by[POD].peak == a + b
    assert predicted.problem is None and predicted.unpredicted == ()


def test_a_pod_that_uses_more_than_it_requests_takes_nothing_from_others():
    models = models_of(a=(8.0, 16.0 * GIB), b=(0.5, 1.0 * GIB))
    predicted = predict(models, [of("a", 1000, 1), of("b", 2000, 4)], NODE, NOW_S, SETTINGS)
    assert predicted.by[POD].reclaimable == Amounts(2000, 4 * GIB).less(with_margin(0.5, 1.0 * GIB))


def test_no_more_is_reclaimable_than_the_node_has_beside_the_peaks():
    models = models_of(a=(14.0, 60.0 * GIB), b=(0.5, 1.0 * GIB))
    pods = [of("a", 1000, 1), of("b", 12_000, 60)]
    predicted = predict(models, pods, NODE, NOW_S, SETTINGS)
    left = Amounts(16_000, 64 * GIB).less(with_margin(14.0, 60.0 * GIB) + with_margin(0.5, 1.0 * GIB))
    assert predicted.by[POD].reclaimable == left
    assert left.memory_bytes == 0  # the peak with its margin is above the node's memory


def test_by_priority_the_peaks_of_system_and_prod_pods_are_added_before_the_margin():
    models = models_of(**{"__node-sys__": (1.0, 2.0 * GIB), "__node-koord-prod__": (3.0, 6.0 * GIB), "a": (3.0, GIB)})
    predicted = predict(models, [of("a", 10_000, 20)], NODE, NOW_S, SETTINGS)
    total = raw_peak(1.0, 2.0 * GIB) + raw_peak(3.0, 6.0 * GIB) + ZERO
    unreclaimable = Amounts(int(total.cpu_millicpu * 1.1), int(total.memory_bytes * 1.1))
    assert predicted.by[PRIORITY].peak == unreclaimable
    assert predicted.by[PRIORITY].reclaimable == Amounts(10_000, 20 * GIB).less(unreclaimable)


def test_the_more_careful_predictor_counts_of_each_resource():
    models = models_of(**{"__node-koord-prod__": (6.0, 1.0 * GIB), "a": (1.0, 6.0 * GIB)})
    predicted = predict(models, [of("a", 8000, 16)], NODE, NOW_S, SETTINGS)
    by_pod, by_priority = predicted.by[POD], predicted.by[PRIORITY]
    assert by_pod.reclaimable and by_priority.reclaimable and by_pod.peak and by_priority.peak
    assert (
        predicted.prod
        == predicted.by[LEAST]
        == ProdPrediction(
            Amounts(by_priority.reclaimable.cpu_millicpu, by_pod.reclaimable.memory_bytes),
            Amounts(by_priority.peak.cpu_millicpu, by_pod.peak.memory_bytes),
        )
    )


@pytest.mark.parametrize(("age_s", "is_young"), [(DAY_S, True), (DAY_S + 1, False), (-5.0, True)])
def test_nothing_of_a_young_pod_is_reclaimable_and_its_whole_request_counts_as_used(age_s, is_young):
    predicted = predict(models_of(a=(1.0, GIB)), [of("a", 4000, 8, age_s=age_s)], NODE, NOW_S, SETTINGS)
    assert (predicted.by[POD].reclaimable == Amounts()) is is_young
    assert (predicted.by[POD].peak == Amounts(4000, 8 * GIB)) is is_young
    assert predicted.unpredicted == (("a",) if is_young else ())


def test_a_pod_whose_creation_is_not_known_counts_as_young():
    pod = PredictedPod("a", "koord-prod", Amounts(4000, 0), None)
    assert predict(models_of(a=(1.0, GIB)), [pod], NODE, NOW_S, SETTINGS).unpredicted == ("a",)


@pytest.mark.parametrize("age_s", [60, 2 * DAY_S])
def test_a_finished_pod_uses_nothing_however_young(age_s):
    predicted = predict(models_of(), [of("a", 4000, 8, age_s=age_s, is_finished=True)], NODE, NOW_S, SETTINGS)
    assert predicted.prod == ProdPrediction(Amounts(), SYSTEM_ONLY)


def test_of_a_pod_that_is_deleted_nothing_is_reclaimable():
    predicted = predict(models_of(a=(1.0, GIB)), [of("a", 4000, 8, is_leaving=True)], NODE, NOW_S, SETTINGS)
    assert predicted.prod == ProdPrediction(Amounts(), SYSTEM_ONLY)


@pytest.mark.parametrize("band", ["koord-mid", "koord-batch", "koord-free"])
def test_pods_of_other_bands_do_not_count(band):
    predicted = predict(models_of(a=(1.0, GIB)), [of("a", 4000, 8, band)], NODE, NOW_S, SETTINGS)
    assert predicted.prod == ProdPrediction(Amounts(), SYSTEM_ONLY)


def test_a_pod_without_a_model_counts_by_priority_all_the_same():
    # koordlet's minPredictor leaves it out of both sums when the first predictor fails
    predicted = predict(models_of(), [of("a", 4000, 8)], NODE, NOW_S, SETTINGS)
    assert predicted.unpredicted == ("a",)
    assert predicted.by[PRIORITY].reclaimable == Amounts(4000, 8 * GIB).less(SYSTEM_ONLY)
    assert predicted.by[POD] == ProdPrediction(Amounts(), Amounts(4000, 8 * GIB))
    assert predicted.prod.reclaimable == Amounts()


@pytest.mark.parametrize("missing", ["__node-sys__", "__node-koord-prod__", "__node-__"])
def test_without_a_model_of_the_node_nothing_is_predicted(missing):
    models = {uid: each for uid, each in models_of(a=(1.0, GIB)).items() if uid != missing}
    predicted = predict(models, [of("a", 4000, 8)], NODE, NOW_S, SETTINGS)
    assert predicted.prod == ProdPrediction(None, None) and predicted.problem


def test_without_a_node_the_peak_is_known_and_nothing_is_reclaimable():
    predicted = predict(models_of(a=(1.0, GIB)), [of("a", 4000, 8)], None, NOW_S, SETTINGS)
    assert predicted.prod == ProdPrediction(None, with_margin(1.0, GIB).at_least(SYSTEM_ONLY))
    assert predicted.problem == "the Node is not known"


def test_other_percentiles_and_another_margin_may_be_set():
    careful = PredictionSettings(safety_margin_percent=0, cpu_peak_percent=50, memory_peak_percent=50)
    nothing = dict.fromkeys(("__node-sys__", "__node-koord-prod__", "__node-__"), Usage(0.0, 0.0))
    low, high = Usage(1.0, GIB), Usage(9.0, 9.0 * GIB)
    models = peaks_after({**nothing, "a": low}, {"a": high}, settings=careful)
    predicted = predict(models, [of("a", 16_000, 64)], NODE, NOW_S, careful)
    assert predicted.by[POD].peak == raw_peak(1.0, GIB)


class TestAllocatable:
    RAW = "node.koordinator.sh/raw-allocatable"

    def node(self, raw: str | None, allocatable: dict[str, str | int | float] | None) -> Node:
        return Node(ObjectMeta(annotations={self.RAW: raw} if raw else None), NodeStatus(allocatable=allocatable))

    def test_is_that_before_amplification(self):
        node = self.node('{"cpu":"8","memory":"32Gi"}', {"cpu": "16", "memory": "32Gi"})
        assert node_allocatable(node) == Amounts(8000, 32 * GIB)

    @pytest.mark.parametrize("raw", ["", "{", "[]", "null", '{"cpu":true}', '{"cpu":"much"}', '{"cpu":"-1"}'])
    def test_an_annotation_that_cannot_be_read_counts_as_absent(self, raw):
        assert node_allocatable(self.node(raw, {"cpu": "16", "memory": "1Gi"})) == Amounts(16_000, GIB)

    def test_of_a_node_that_has_none_nothing_is_reclaimable(self):
        predicted = predict(models_of(), [], self.node(None, None), NOW_S, SETTINGS)
        assert predicted.prod.reclaimable is None and predicted.problem and "allocatable" in predicted.problem

    def test_a_quantity_that_is_none_is_named(self):
        predicted = predict(models_of(), [], self.node(None, {"cpu": "many"}), NOW_S, SETTINGS)
        assert predicted.problem and "node.status.allocatable.cpu" in predicted.problem


class TestPod:
    def pod(self, *, labels=None, priority=None, cpu="500m", phase="Running", **meta) -> PredictedPod:
        asked = Resources(requests={"cpu": cpu, "memory": "1Gi"})
        init = Container("i", Resources(requests={"cpu": "2", "memory": "1Gi"}))
        spec = PodSpec(
            containers=[Container("c", asked)], initContainers=[init], overhead={"cpu": "100m"}, priority=priority
        )
        pod = Pod(ObjectMeta(name="p", namespace="d", uid="u", labels=labels, **meta), spec, PodStatus(phase=phase))
        return predicted_pod(pod_facts(pod))

    def test_its_request_is_native_with_init_containers_and_overhead(self):
        assert self.pod().request == Amounts(2100, GIB)

    def test_its_band_is_by_label_value_or_qos(self):
        assert self.pod().band == "koord-prod"
        assert self.pod(priority=5500).band == "koord-batch"
        assert self.pod(labels={"koordinator.sh/qosClass": "BE"}).band == "koord-batch"
        assert self.pod(labels={"koordinator.sh/priority-class": "koord-mid"}, priority=9500).band == "koord-mid"

    def test_one_that_cannot_be_read_requests_nothing(self):
        assert self.pod(cpu="lots").request == Amounts()

    def test_one_that_requests_more_than_there_can_be_is_cut(self):
        assert self.pod(cpu="9e15").request == Amounts(2**62, GIB)

    def test_of_one_that_64_bits_do_not_hold_what_the_scheduler_counts_is_left(self):
        assert self.pod(cpu="1e300").request == Amounts(100, GIB)

    def test_when_it_was_created(self):
        assert self.pod(creationTimestamp="2026-03-05T09:23:41Z").created_s == NOW_S
        assert self.pod(creationTimestamp="yesterday").created_s is None
        assert self.pod().created_s is None

    def test_whether_it_ends(self):
        assert self.pod(phase="Succeeded").is_finished and self.pod(phase="Failed").is_finished
        assert self.pod(deletionTimestamp="2026-03-05T09:23:41Z").is_leaving
        assert not self.pod().is_finished and not self.pod().is_leaving
