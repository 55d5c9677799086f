"""A decaying histogram says what a plain list of its samples does."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koordebpf.errors import ConfigError
from koordebpf.jobs.prediction.checkpoint import CPU_BUCKETS, ModelCheckpoint, decode_checkpoint, encode_checkpoint
from koordebpf.jobs.prediction.models import Histogram
from koordebpf.units import NS_PER_S

HALF_LIFE_NS = 3600 * NS_PER_S
START_NS = 1_772_702_621 * NS_PER_S
# Up to 90 half-lives: beyond them the least weights are dropped.
_SAMPLES = st.lists(
    st.tuples(st.floats(-1, 3000), st.integers(0, 90 * 3600).map(lambda second: START_NS + second * NS_PER_S)),
    min_size=1,
    max_size=30,
)


def histogram_of(samples) -> Histogram:
    histogram = Histogram(CPU_BUCKETS, HALF_LIFE_NS)
    for value, at_ns in samples:
        histogram = histogram.plus(value, at_ns)
    return histogram


def bucket_of(value: float) -> int:
    if value < 0.025:
        return 0
    return min(int(math.log(value * (1.05 - 1) / 0.025 + 1) / math.log(1.05)), 157)


def start_of(bucket: int) -> float:
    return float(0.025 * (1.05**bucket - 1) / (1.05 - 1))


# The whole list, each sample with its weight as of the first one.
def of_the_list(samples, share: float) -> set[float]:
    weights = [0.0] * 158
    for value, at_ns in samples:
        weights[bucket_of(value)] += 2.0 ** ((at_ns - START_NS) / HALF_LIFE_NS)
    total = math.fsum(weights)
    # Where the sum is the share to the last bit, the order of additions decides: both neighbours are right.
    found = set()
    for nudge in (1 - 1e-9, 1 + 1e-9):
        summed, at = 0.0, max(bucket for bucket in range(158) if weights[bucket] > 0)
        for bucket, weight in enumerate(weights):
            summed += weight
            if weight > 0 and summed >= share * total * nudge:
                at = bucket
                break
        found.add(start_of(min(at + 1, 157)))
    return found


@example(samples=[(1.0, START_NS), (2.0, START_NS), (0.0, START_NS + 189_379 * NS_PER_S)], share=1.0)
@given(samples=_SAMPLES, share=st.sampled_from((0.0, 0.5, 0.6, 0.9, 0.95, 0.98, 1.0)))
def test_a_percentile_is_that_of_the_list(samples, share):
    samples.sort(key=lambda sample: sample[1])
    found = histogram_of(samples).percentile(share)
    # Where a sum is the share to the last bit, what is too light for a double lies between.
    wanted = of_the_list(samples, share)
    assert min(wanted) * (1 - 1e-9) - 1e-12 <= found <= max(wanted) * (1 + 1e-9) + 1e-12


@given(samples=_SAMPLES)
def test_percentiles_do_not_fall_and_bound_what_was_seen(samples):
    samples.sort(key=lambda sample: sample[1])
    found = histogram_of(samples).percentiles((0.0, 0.5, 0.9, 0.95, 0.98, 1.0))
    assert list(found) == sorted(found)
    # What is older than that is less than a double tells beside the newest.
    samples = [each for each in samples if each[1] > samples[-1][1] - 40 * HALF_LIFE_NS]
    assert found[-1] >= min(max(value for value, _ in samples), start_of(157)) * (1 - 1e-12)


@given(first=_SAMPLES, second=_SAMPLES)
def test_merged_it_has_the_samples_of_both(first, second):
    merged, whole = histogram_of(first).merged(histogram_of(second)), histogram_of([*first, *second])
    scale = 2.0 ** ((whole.reference_ns - merged.reference_ns) / HALF_LIFE_NS)
    assert merged.total == pytest.approx(whole.total * scale)
    for bucket in range(158):
        assert merged.weight(bucket) == pytest.approx(whole.weight(bucket) * scale, rel=1e-9, abs=0.0002)


@given(samples=_SAMPLES)
def test_kept_and_restored_it_has_its_weights_to_a_ten_thousandth(samples):
    before = histogram_of(samples)
    kept = ModelCheckpoint("u", before.checkpoint(), before.checkpoint(), START_NS)
    read = decode_checkpoint(encode_checkpoint(kept), "u", "file")
    assert read == kept
    after = Histogram.restored(CPU_BUCKETS, HALF_LIFE_NS, read.cpu)
    assert after.total == pytest.approx(before.total)
    heaviest = max(before.weight(bucket) for bucket in range(158))
    assert all(abs(after.weight(bucket) - before.weight(bucket)) <= heaviest * 158 / 10_000 for bucket in range(158))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_checkpoint_or_an_error_that_names_the_file(raw):
    try:
        decode_checkpoint(raw, "u", "file")
    except ConfigError as error:
        assert error.path.startswith("file")
