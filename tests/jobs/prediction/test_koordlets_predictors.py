"""What is reclaimable of generated nodes is what koordlet's own predictors say of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from koordebpf.jobs.prediction.predict import predict, predicted_pod
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.kube.cache.objects import Node, Pod
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.prediction import Amounts

# Made by koordinator v1.8.0's own pkg/koordlet/prediction: the Node, the pods and a peak of each model, at random, and
# the result of its ProdReclaimablePredictor with a cold start of 24 h and a margin of 10 %.
GOLDEN = Path(__file__).parents[2] / "golden/prediction/koordlet-predictors.jsonl"
CASES = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_what_is_reclaimable(case):
    pods = [predicted_pod(pod_facts(msgspec.convert(pod, Pod))) for pod in case["pods"]]
    peaks = {uid: Amounts(*peak) for uid, peak in case["peaks"].items()}
    found = predict(peaks, pods, msgspec.convert(case["node"], Node), case["now"], PredictionSettings())
    assert found.prod.reclaimable == Amounts(case["cpu_millicpu"], case["memory_bytes"])


def test_the_cases_are_of_all_kinds():
    results = [(case["cpu_millicpu"] > 0, case["memory_bytes"] > 0) for case in CASES]
    assert len(CASES) == 60 and min(results.count(each) for each in ((True, True), (False, False))) >= 5
    pods = [pod for case in CASES for pod in case["pods"]]
    assert all(
        any(key in part for pod in pods for part in (pod["metadata"], pod["spec"]))
        for key in ("deletionTimestamp", "labels", "initContainers", "overhead", "priority")
    )
    assert any("annotations" in case["node"]["metadata"] for case in CASES)
