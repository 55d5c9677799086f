"""Decaying histograms: koordlet's own numbers, and what a plain list of the same samples says."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from koordebpf.errors import ConfigError
from koordebpf.jobs.prediction.checkpoint import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    HistogramCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from koordebpf.jobs.prediction.models import YEAR_ONE_NS, Histogram, Model, empty_model, restored_model
from koordebpf.state.prediction import Amounts, HalfLives
from koordebpf.units import MIB, NS_PER_S

# Made by koordinator v1.8.0's own pkg/util/histogram: samples of a fixed formula, and what its histograms say of them.
GOLDEN = Path(__file__).parents[2] / "golden/prediction/koordlet-histograms.jsonl"
RUNS = {run["name"]: run for run in map(json.loads, GOLDEN.read_text().splitlines())}
SHARES = (0.0, 0.5, 0.6, 0.9, 0.95, 0.98, 1.0)
HOUR_NS = 3600 * NS_PER_S
HALF_LIVES = HalfLives(12 * HOUR_NS, 24 * HOUR_NS)
NOW_NS = 1_772_702_621 * NS_PER_S


def replayed(run) -> Histogram:
    buckets = CPU_BUCKETS if run["scale"] < 1e6 else MEMORY_BUCKETS
    histogram = Histogram(buckets, run["half_life_ns"])
    for i in range(run["n"]):
        value = run["scale"] * (1 + 0.9 * math.sin(i * 0.37)) * (1 + (i % 17) / 9)
        histogram = histogram.plus(value, run["first_ns"] + i * run["step_ns"])
    return histogram


def kept_of(run, uid="uid-1") -> dict[str, object]:
    other = {"referenceTimestamp": "0001-01-01T00:00:00Z"}
    cpu, memory = (run["checkpoint"], other) if run["scale"] < 1e6 else (other, run["checkpoint"])
    return {"UID": uid, "CPU": cpu, "Memory": memory, "LastUpdated": "2026-03-05T09:23:41Z"}


@pytest.mark.parametrize("name", RUNS)
class TestKoordletsOwnNumbers:
    def test_percentiles(self, name):
        assert replayed(RUNS[name]).percentiles(SHARES) == pytest.approx(RUNS[name]["percentiles"], rel=1e-12)

    def test_what_is_kept(self, name):
        kept, theirs = replayed(RUNS[name]).checkpoint(), RUNS[name]["checkpoint"]
        assert {str(bucket): weight for bucket, weight in kept.weights.items()} == theirs.get("bucketWeights", {})
        assert kept.total == pytest.approx(theirs.get("totalWeight", 0.0), rel=1e-9)

    def test_a_file_of_koordlet_is_read(self, name):
        run = RUNS[name]
        read = decode_checkpoint(json.dumps(kept_of(run)).encode(), "uid-1", "file")
        model = restored_model(read, HalfLives(run["half_life_ns"], run["half_life_ns"]), 2**62)
        histogram = model.cpu if run["scale"] < 1e6 else model.memory
        assert histogram.percentiles(SHARES) == pytest.approx(run["restored"], rel=1e-12)
        merged = histogram.merged(replayed(run))
        assert merged.percentile(0.9) == pytest.approx(run["merged_p90"], rel=1e-12)

    def test_what_is_written_is_what_koordlet_writes(self, name):
        run = RUNS[name]
        read = decode_checkpoint(json.dumps(kept_of(run)).encode(), "uid-1", "file")
        again = json.loads(encode_checkpoint(read))
        assert list(again) == ["UID", "CPU", "Memory", "LastUpdated"]
        for part in ("CPU", "Memory"):
            theirs = kept_of(run)[part]
            assert again[part].get("bucketWeights") == theirs.get("bucketWeights")  # type: ignore[attr-defined]
            assert float(again[part].get("totalWeight", 0)) == float(theirs.get("totalWeight", 0))  # type: ignore[attr-defined]
        assert decode_checkpoint(encode_checkpoint(read), "uid-1", "file") == read


@pytest.mark.parametrize(
    ("buckets", "highest", "first", "count"), [(CPU_BUCKETS, 1024, 0.025, 158), (MEMORY_BUCKETS, 2**41, 5 * MIB, 205)]
)
class TestBuckets:
    def test_their_number(self, buckets, highest, first, count):
        wanted = math.ceil(math.log(highest * 0.05 / first + 1, 1.05)) + 1
        assert buckets.count == wanted == count

    def test_each_one_is_a_twentieth_wider(self, buckets, highest, first, count):
        widths = [b - a for a, b in pairwise(buckets.starts)]
        assert widths[0] == pytest.approx(first)
        assert [b / a for a, b in pairwise(widths)] == pytest.approx([1.05] * (count - 2))

    def test_a_value_is_in_the_bucket_around_it(self, buckets, highest, first, count):
        for bucket, start in enumerate(buckets.starts[:-1]):
            middle = (start + buckets.starts[bucket + 1]) / 2
            assert buckets.find(middle) == bucket

    def test_what_is_outside_is_in_the_first_or_the_last(self, buckets, highest, first, count):
        assert buckets.find(-5.0) == buckets.find(0.0) == buckets.find(first * 0.999) == 0
        assert buckets.find(highest * 1e6) == count - 1
        assert buckets.end(count - 1) == buckets.starts[-1]


def test_a_sample_of_a_half_life_ago_counts_half():
    histogram = Histogram(CPU_BUCKETS, HOUR_NS).plus(1.0, NOW_NS).plus(1.0, NOW_NS + HOUR_NS)
    bucket = next(n for n in range(158) if CPU_BUCKETS.starts[n] <= 1.0 < CPU_BUCKETS.starts[n + 1])
    first = 2.0 ** ((NOW_NS - histogram.reference_ns) / HOUR_NS)
    assert histogram.weight(bucket) == pytest.approx(3 * first)
    assert histogram.total == pytest.approx(3 * first)


def test_the_reference_is_a_multiple_of_the_half_life_since_year_one():
    for half_life_ns in (HOUR_NS, 12 * HOUR_NS, 7 * HOUR_NS + 13 * 60 * NS_PER_S):
        histogram = Histogram(CPU_BUCKETS, half_life_ns).plus(1.0, NOW_NS)
        assert (histogram.reference_ns - YEAR_ONE_NS) % half_life_ns == 0
        assert abs(histogram.reference_ns - NOW_NS) <= half_life_ns / 2


def test_after_a_hundred_half_lives_nothing_is_left_of_what_was():
    histogram = Histogram(CPU_BUCKETS, HOUR_NS).plus(100.0, NOW_NS).plus(1.0, NOW_NS + 102 * HOUR_NS)
    assert histogram.percentile(1.0) < 1.1
    assert histogram.total == pytest.approx(histogram.weight(CPU_BUCKETS.find(1.0)))


def test_an_empty_one_says_zero():
    histogram = Histogram(CPU_BUCKETS, HOUR_NS)
    assert histogram.is_empty and histogram.percentiles((0.0, 0.5, 1.0)) == (0.0, 0.0, 0.0)
    assert not histogram.plus(0.0, NOW_NS).is_empty


def test_adding_a_sample_leaves_the_one_before_as_it_was():
    before = Histogram(CPU_BUCKETS, HOUR_NS).plus(1.0, NOW_NS)
    before.plus(50.0, NOW_NS + 200 * HOUR_NS)
    assert before.percentile(1.0) < 1.1 and before.total == pytest.approx(before.weight(CPU_BUCKETS.find(1.0)))


@pytest.mark.parametrize(("value", "weight"), [(math.nan, 1), (math.inf, 1), (1.0, -1)])
def test_what_is_no_sample_is_refused(value, weight):
    with pytest.raises(ValueError, match="no sample"):
        Histogram(CPU_BUCKETS, HOUR_NS).plus(value, NOW_NS, weight)


def test_different_histograms_are_not_merged():
    with pytest.raises(ValueError, match="different"):
        Histogram(CPU_BUCKETS, HOUR_NS).merged(Histogram(MEMORY_BUCKETS, HOUR_NS))


def test_a_reference_of_a_clock_that_was_ahead_does_not_hide_new_samples():
    ahead = Histogram(CPU_BUCKETS, HOUR_NS).plus(1.0, NOW_NS + 5000 * HOUR_NS).as_of(NOW_NS)
    assert ahead.percentile(0.5) < 1.1  # it still counts, as of now
    assert ahead.plus(8.0, NOW_NS).plus(8.0, NOW_NS).percentile(0.9) > 8.0
    ordinary = Histogram(CPU_BUCKETS, HOUR_NS).plus(1.0, NOW_NS)
    assert ordinary.as_of(NOW_NS) is ordinary


def test_results_are_whole_millicpu_and_bytes():
    model = empty_model(HALF_LIVES)
    model = Model(model.cpu.plus(1.0, NOW_NS), model.memory.plus(100 * MIB, NOW_NS), NOW_NS)
    cores = next(start for start in CPU_BUCKETS.starts if start > 1.0)
    size = next(start for start in MEMORY_BUCKETS.starts if start > 100 * MIB)
    assert model.results() == dict.fromkeys(("p60", "p90", "p95", "p98", "max"), Amounts(int(cores * 1000), int(size)))
    assert model.peak() == model.results()["p95"]


class TestFileOfAModel:
    GOOD = kept_of(RUNS["minutes"])

    def refused(self, **changes: object) -> ConfigError:
        raw = json.dumps({**self.GOOD, **changes}).encode()
        with pytest.raises(ConfigError) as raised:
            decode_checkpoint(raw, "uid-1", "file")
        return raised.value

    def test_its_uid_is_its_name(self):
        assert decode_checkpoint(json.dumps({**self.GOOD, "UID": "other"}).encode(), "uid-1", "file").uid == "uid-1"

    def test_a_moment_of_nine_digits_and_another_zone_is_read(self):
        moment = "2026-03-05T17:23:41.123456789+08:00"
        raw = json.dumps({**self.GOOD, "LastUpdated": moment}).encode()
        assert decode_checkpoint(raw, "u", "file").updated_ns == RUNS["minutes"]["first_ns"]

    def test_one_that_was_never_updated_is_read(self):
        raw = json.dumps({**self.GOOD, "LastUpdated": None}).encode()
        assert decode_checkpoint(raw, "u", "file").updated_ns is None

    def test_what_is_wrong_in_it_is_named(self):
        reference = "2026-03-05T20:00:00+08:00"
        for cpu, path in (
            ({"referenceTimestamp": reference, "bucketWeights": {"158": 1}, "totalWeight": 1.0}, "CPU.bucketWeights"),
            ({"referenceTimestamp": reference, "bucketWeights": {"-1": 1}, "totalWeight": 1.0}, "CPU.bucketWeights"),
            ({"referenceTimestamp": reference, "bucketWeights": {"1": -1}, "totalWeight": 1.0}, "CPU.bucketWeights"),
            ({"referenceTimestamp": reference, "totalWeight": -1.0}, "CPU.totalWeight"),
            ({"referenceTimestamp": "yesterday"}, "CPU.referenceTimestamp"),
            ({}, "CPU"),
            (None, "CPU"),
        ):
            assert path in self.refused(CPU=cpu).path
        assert "LastUpdated" in self.refused(LastUpdated="2026-13-01T00:00:00Z").path

    @pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b'{"UID":', b"[" * 100_000])
    def test_what_is_no_json_is_named(self, raw):
        with pytest.raises(ConfigError, match="file"):
            decode_checkpoint(raw, "u", "file")

    def test_weights_of_nothing_restore_to_nothing(self):
        kept = HistogramCheckpoint(NOW_NS, {3: 0}, 5.0)
        assert Histogram.restored(CPU_BUCKETS, HOUR_NS, kept).is_empty
