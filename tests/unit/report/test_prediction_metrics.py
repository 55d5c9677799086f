"""What is predicted, under koordlet's names."""

from __future__ import annotations

from koordebpf.report.prom.koordlet import KoordletMetrics, prediction_families
from koordebpf.state.prediction import Amounts, LatestPrediction, ProdPrediction
from koordebpf.units import NS_PER_S

NOW_NS = 1060 * NS_PER_S
GIVEN = ProdPrediction(Amounts(1500, 1 << 30), Amounts(2500, 2 << 30))


def shown(latest: LatestPrediction, now_ns: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(each.labels, each.value) for each in family.samples]
        for family in prediction_families("n1", latest, now_ns)
    }


def latest(prod: ProdPrediction) -> LatestPrediction:
    made = LatestPrediction()
    made.put(prod, {"minPredictor": prod}, 1000 * NS_PER_S)
    return made


def test_each_predictor_and_resource_has_its_row():
    cpu = {"node": "n1", "predictor": "minPredictor", "resource": "cpu", "unit": "core"}
    memory = {**cpu, "resource": "memory", "unit": "byte"}
    assert shown(latest(GIVEN), NOW_NS) == {
        "koordlet_node_predicted_resource_reclaimable": [(cpu, 1.5), (memory, 1 << 30)],
        "koordlet_node_predicted_resource_peak": [(cpu, 2.5), (memory, 2 << 30)],
    }


def test_what_is_not_known_is_absent():
    assert shown(LatestPrediction(), 0) == {}
    assert shown(latest(GIVEN), 1601 * NS_PER_S) == {}
    assert list(shown(latest(ProdPrediction(None, GIVEN.peak)), NOW_NS)) == ["koordlet_node_predicted_resource_peak"]


def test_koordlets_names_have_them():
    names = {each.name for each in KoordletMetrics("n1", 0.0, latest(GIVEN)).families(None, NOW_NS)}
    assert {name for name in names if "predicted" in name} == shown(latest(GIVEN), NOW_NS).keys()
