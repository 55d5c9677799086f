"""What becomes a sample of which model, and which models are kept and deleted."""

from __future__ import annotations

import math

import pytest

from koordebpf.jobs.prediction.models import BAND_UIDS, Usage
from koordebpf.jobs.prediction.predict import (
    checkpointed,
    due_for_checkpoint,
    expired,
    node_samples,
    node_usage,
    pod_usage,
    trained,
    without,
)
from koordebpf.state.prediction import HalfLives
from koordebpf.state.series.store import node_series
from koordebpf.units import GIB, NS_PER_S

HALF_LIVES = HalfLives(12 * 3600 * NS_PER_S, 24 * 3600 * NS_PER_S)
NOW_NS = 1_772_702_621 * NS_PER_S
MINUTE_NS = 60 * NS_PER_S
ONE = Usage(1.0, float(GIB))


def test_the_models_of_the_node_have_koordlets_names():
    assert BAND_UIDS == {
        "koord-prod": "__node-koord-prod__",
        "koord-mid": "__node-koord-mid__",
        "koord-batch": "__node-koord-batch__",
        "koord-free": "__node-koord-free__",
        "": "__node-__",
    }


def test_a_sample_is_the_p90_of_the_interval():
    series = node_series()
    for second in range(1, 101):
        series.append(("pod_cpu_usage", "u"), second * NS_PER_S, second)
        series.append(("pod_memory_usage", "u"), second * NS_PER_S, second * 1000)
        series.append(("node_cpu_usage",), second * NS_PER_S, second * 2)
    # of the 60 samples 41 to 100 the one at index trunc(60 · 0.9) − 1 = 53
    assert pod_usage(series, "u", 100 * NS_PER_S, MINUTE_NS) == Usage(94, 94_000)
    assert pod_usage(series, "other", 100 * NS_PER_S, MINUTE_NS) is None
    assert node_usage(series, 100 * NS_PER_S, MINUTE_NS) is None  # its memory was not measured


def test_bands_are_summed_and_the_system_is_what_no_pod_uses():
    bands = {"a": "koord-prod", "b": "koord-prod", "c": "koord-batch", "d": "koord-mid"}
    pods = {"a": ONE, "b": ONE, "c": Usage(0.5, 1.0)}
    assert node_samples(bands, pods, Usage(4.0, 3.0 * GIB)) == {
        "__node__": Usage(4.0, 3.0 * GIB),
        "__node-koord-prod__": Usage(2.0, 2.0 * GIB),
        "__node-koord-batch__": Usage(0.5, 1.0),
        "__node-koord-free__": Usage(0.0, 0.0),
        "__node-__": Usage(0.0, 0.0),
        "__node-sys__": Usage(1.5, GIB - 1.0),
    }


def test_a_band_whose_pods_were_not_measured_has_no_sample():
    assert "__node-koord-mid__" not in node_samples({"d": "koord-mid"}, {}, ONE)
    assert node_samples({}, {}, ONE)["__node-koord-mid__"] == Usage(0.0, 0.0)


def test_without_the_node_neither_it_nor_the_system_has_a_sample():
    samples = node_samples({"a": "koord-prod"}, {"a": ONE}, None)
    assert "__node__" not in samples and "__node-sys__" not in samples
    assert samples["__node-koord-prod__"] == ONE


def test_pods_that_use_more_than_the_node_leave_the_system_nothing():
    assert node_samples({"a": ""}, {"a": Usage(9.0, 9.0)}, ONE)["__node-sys__"] == Usage(0.0, GIB - 9.0)


def test_training_adds_a_sample_to_each_and_leaves_the_models_before_as_they_were():
    before = trained({}, {"a": ONE, "b": ONE}, NOW_NS, HALF_LIVES)
    after = trained(before, {"a": Usage(50.0, 2.0)}, NOW_NS + MINUTE_NS, HALF_LIVES)
    assert after["b"] is before["b"]
    assert before["a"].cpu.percentile(1.0) < 1.1 < 50 < after["a"].cpu.percentile(1.0)
    assert [after[uid].updated_ns for uid in "ab"] == [NOW_NS + MINUTE_NS, NOW_NS]


@pytest.mark.parametrize("cores", [math.nan, math.inf, -math.inf, 1e9])
def test_what_no_machine_can_have_used_is_no_sample(cores):
    assert trained({}, {"a": Usage(cores, 1.0), "b": Usage(1.0, cores * 1e12)}, NOW_NS, HALF_LIVES) == {}


def test_a_model_without_a_sample_for_too_long_is_deleted():
    models = trained({}, {"a": ONE}, NOW_NS, HALF_LIVES)
    models = trained(models, {"b": ONE}, NOW_NS + MINUTE_NS, HALF_LIVES)
    assert expired(models, NOW_NS + 30 * MINUTE_NS, 30 * MINUTE_NS) == ()
    assert expired(models, NOW_NS + 30 * MINUTE_NS + 1, 30 * MINUTE_NS) == ("a",)
    assert list(without(models, ("a", "unknown"))) == ["b"]


def test_the_models_kept_longest_ago_are_kept_first_and_at_most_so_many():
    models = trained({}, dict.fromkeys("abcd", ONE), NOW_NS, HALF_LIVES)
    models = checkpointed(models, ("b",), NOW_NS - 20 * MINUTE_NS)
    models = checkpointed(models, ("c",), NOW_NS - 10 * MINUTE_NS)
    models = checkpointed(models, ("d",), NOW_NS - 10 * MINUTE_NS + 1)
    assert due_for_checkpoint(models, NOW_NS, 10 * MINUTE_NS, 12) == ("a", "b", "c")
    assert due_for_checkpoint(models, NOW_NS, 10 * MINUTE_NS, 2) == ("a", "b")


def test_every_model_is_kept_within_its_interval_at_twelve_a_minute():
    models = trained({}, {str(n): ONE for n in range(117)}, NOW_NS, HALF_LIVES)
    for minute in range(40):
        now_ns = NOW_NS + minute * MINUTE_NS
        models = checkpointed(models, due_for_checkpoint(models, now_ns, 10 * MINUTE_NS, 12), now_ns)
    assert min(model.checkpointed_ns for model in models.values()) >= NOW_NS + 29 * MINUTE_NS
