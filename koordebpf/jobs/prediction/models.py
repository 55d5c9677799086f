"""The models of a node: one for each pod, for each band of priority, for the system and for the node.

Source:  koordinator pkg/koordlet/prediction/{predict_server,prediction}.go.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from koordebpf.jobs.prediction.checkpoint import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    Buckets,
    HistogramCheckpoint,
    ModelCheckpoint,
)
from koordebpf.slo.pods.qos import BANDS
from koordebpf.state.prediction import Amounts, HalfLives
from koordebpf.units import NS_PER_S

EPSILON: Final = 0.0001  # a bucket of less weight is empty
LONGEST_HALF_LIVES: Final = 100  # after so many the reference is moved: weights are at most 2^100
STORED: Final = 10_000  # what the heaviest bucket of a checkpoint weighs
# Go's zero time, 0001-01-01: multiples of a half-life are counted from there. Nanoseconds since 1970.
YEAR_ONE_NS: Final = -62_135_596_800 * NS_PER_S
NODE_UID: Final = "__node__"
NO_BAND: Final = ""  # of a pod without a priority that Koordinator knows
_RESULTS: Final[Mapping[str, float]] = {"p60": 0.6, "p90": 0.9, "p95": 0.95, "p98": 0.98, "max": 1.0}


class Histogram:
    """Weights by bucket, immutable: what changes it returns another one.

    A sample at t weighs 2^((t − reference) / half-life), so that the weights of old ones need not be touched.

    Units:   moments and half-life in nanoseconds, moments since 1970.
    Source:  koordinator pkg/util/histogram/{histogram,decaying_histogram}.go.
    Cost:    8 bytes a bucket; 1.5 µs a sample.
    """

    __slots__ = ("_buckets", "_half_life_ns", "_highest", "_lowest", "_reference_ns", "_total", "_weights")

    def __init__(self, buckets: Buckets, half_life_ns: int) -> None:
        """Start empty."""
        self._buckets = buckets
        self._half_life_ns = half_life_ns
        self._reference_ns = YEAR_ONE_NS
        self._weights = array("d", bytes(8 * buckets.count))
        self._total = 0.0
        self._lowest = buckets.count - 1  # the first bucket that is not empty; if there is none, the last
        self._highest = 0  # the last bucket that is not empty

    @property
    def total(self) -> float:
        """The weight of all samples, as of `reference_ns`."""
        return self._total

    @property
    def reference_ns(self) -> int:
        """When a sample weighs what it was given; a multiple of the half-life since year 1."""
        return self._reference_ns

    @property
    def is_empty(self) -> bool:
        """No bucket has a weight that counts."""
        return self._weights[self._lowest] < EPSILON

    def weight(self, bucket: int) -> float:
        """Return a bucket's weight, as of `reference_ns`."""
        return self._weights[bucket]

    def plus(self, value: float, at_ns: int, weight: float = 1.0) -> Histogram:
        """Return it with one more sample, a finite number.

        Raises:  ValueError: the value is not finite, or the weight negative.
        """
        if not math.isfinite(value) or weight < 0:
            raise ValueError(f"no sample: {value} of weight {weight}")
        after = self._copy()
        if at_ns > after._reference_ns + LONGEST_HALF_LIVES * after._half_life_ns:
            after._shift(at_ns)
        decayed = weight * 2.0 ** ((at_ns - after._reference_ns) / after._half_life_ns)
        bucket = after._buckets.find(value)
        after._weights[bucket] += decayed
        after._total += decayed
        if after._weights[bucket] >= EPSILON:
            after._lowest = min(after._lowest, bucket)
            after._highest = max(after._highest, bucket)
        return after

    def merged(self, other: Histogram) -> Histogram:
        """Return it with all samples of another one; both count as of the later reference.

        Raises:  ValueError: their buckets or half-lives differ.
        """
        if self._buckets is not other._buckets or self._half_life_ns != other._half_life_ns:
            raise ValueError("histograms of different buckets or half-lives")
        after, added = self._copy(), other._copy()
        if after._reference_ns < added._reference_ns:
            after._shift(added._reference_ns)
        elif added._reference_ns < after._reference_ns:
            added._shift(after._reference_ns)
        for bucket in range(added._lowest, added._highest + 1):
            after._weights[bucket] += added._weights[bucket]
        after._total += added._total
        after._lowest = min(after._lowest, added._lowest)
        after._highest = max(after._highest, added._highest)
        return after

    def percentiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Return for each share, from 0 to 1, the end of the first bucket up to which so much of the weight lies.

        Of an empty one 0; of what lies in the last bucket, where that starts.

        Cost:    6 µs for five.
        """
        if self.is_empty:
            return (0.0,) * len(shares)
        sums = list(accumulate(self._weights[self._lowest : self._highest]))
        return tuple(self._buckets.end(self._lowest + bisect_left(sums, share * self._total)) for share in shares)

    def percentile(self, share: float) -> float:
        """Return the same of one share."""
        return self.percentiles((share,))[0]

    def checkpoint(self) -> HistogramCheckpoint:
        """Return what is kept of it: weights in ten-thousandths of the heaviest one, the smallest left out."""
        weights = self._weights[self._lowest : self._highest + 1]
        heaviest = max(weights, default=0.0)
        stored: dict[int, int] = {}
        if heaviest > 0:
            ratio = STORED / heaviest
            rounded = ((bucket, math.floor(each * ratio + 0.5)) for bucket, each in enumerate(weights, self._lowest))
            stored = {bucket: each for bucket, each in rounded if each > 0}
        return HistogramCheckpoint(self._reference_ns, stored, self._total)

    @classmethod
    def restored(cls, buckets: Buckets, half_life_ns: int, kept: HistogramCheckpoint) -> Histogram:
        """Return the one that a checkpoint of these buckets was made of, as far as that tells."""
        after = cls(buckets, half_life_ns)
        after._reference_ns = kept.reference_ns
        if not (stored := sum(kept.weights.values())):
            return after
        ratio = kept.total / stored
        for bucket, each in kept.weights.items():
            after._weights[bucket] += each * ratio
        after._lowest = min(kept.weights)
        after._highest = max(kept.weights)
        after._total = kept.total
        return after

    def as_of(self, now_ns: int) -> Histogram:
        """Return it if its reference lies at most a half-life ahead, else with the reference moved back to now.

        A clock that was ahead once leaves such a reference: beside weights of the future new samples weigh nothing.
        """
        if self._reference_ns <= now_ns + self._half_life_ns:
            return self
        after = self._copy()
        after._reference_ns = self._rounded(now_ns)
        return after

    def _copy(self) -> Histogram:
        after = Histogram.__new__(Histogram)
        after._buckets, after._half_life_ns, after._reference_ns = self._buckets, self._half_life_ns, self._reference_ns
        after._weights = self._weights[:]
        after._total, after._lowest, after._highest = self._total, self._lowest, self._highest
        return after

    # As time.Time.Round of Go: to a multiple of the half-life since year 1, half of one up.
    def _rounded(self, at_ns: int) -> int:
        since_ns, half_life_ns = at_ns - YEAR_ONE_NS, self._half_life_ns
        return YEAR_ONE_NS + (2 * since_ns + half_life_ns) // (2 * half_life_ns) * half_life_ns

    def _shift(self, at_ns: int) -> None:
        reference_ns = self._rounded(at_ns)
        halved = math.floor((reference_ns - self._reference_ns) / self._half_life_ns + 0.5)
        factor = math.ldexp(1.0, -halved)
        for bucket in range(self._lowest, self._highest + 1):
            self._weights[bucket] *= factor
        self._total *= factor
        self._reference_ns = reference_ns
        last = self._buckets.count - 1
        while self._weights[self._lowest] < EPSILON and self._lowest < last:
            self._lowest += 1
        while self._weights[self._highest] < EPSILON and self._highest > 0:
            self._highest -= 1


def item_uid(item: str) -> str:
    """Return the UID of a part of the node: a band's name, or sys."""
    return f"__node-{item}__"


SYSTEM_UID: Final = item_uid("sys")  # what no pod uses
BAND_UIDS: Final[Mapping[str, str]] = {band: item_uid(band) for band in (*(each.name for each in BANDS), NO_BAND)}
OWN_UIDS: Final = frozenset({NODE_UID, SYSTEM_UID, *BAND_UIDS.values()})


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What was used in an interval: cores and bytes."""

    cpu_cores: float
    memory_bytes: float

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu_cores + other.cpu_cores, self.memory_bytes + other.memory_bytes)


class Model(msgspec.Struct, frozen=True):
    """What was learned of one UID. Moments are nanoseconds since 1970.

    `checkpointed_ns`  when it was last kept; 0: not by this agent.
    """

    cpu: Histogram
    memory: Histogram
    updated_ns: int
    checkpointed_ns: int = 0

    def results(self) -> dict[str, Amounts]:
        """Return what is predicted at each share that koordlet names: p60, p90, p95, p98, max.

        Cost:    15 µs.
        """
        shares = tuple(_RESULTS.values())
        pairs = zip(self.cpu.percentiles(shares), self.memory.percentiles(shares), strict=True)
        return {
            name: Amounts(int(cores * 1000.0), int(size)) for name, (cores, size) in zip(_RESULTS, pairs, strict=True)
        }

    def peak(self, cpu_share: float = 0.95, memory_share: float = 0.98) -> Amounts:
        """Return what is used at most, as predicted: koordlet takes p95 of CPU and p98 of memory."""
        return Amounts(int(self.cpu.percentile(cpu_share) * 1000.0), int(self.memory.percentile(memory_share)))

    def checkpoint(self, uid: str, now_ns: int) -> ModelCheckpoint:
        """Return what is kept of it at this moment."""
        return ModelCheckpoint(uid, self.cpu.checkpoint(), self.memory.checkpoint(), now_ns)


Models = Mapping[str, Model]


def empty_model(half_lives: HalfLives) -> Model:
    """Return a model that has learned nothing."""
    cpu, memory = Histogram(CPU_BUCKETS, half_lives.cpu_ns), Histogram(MEMORY_BUCKETS, half_lives.memory_ns)
    return Model(cpu, memory, 0)


def restored_model(kept: ModelCheckpoint, half_lives: HalfLives, now_ns: int) -> Model:
    """Return the model that a checkpoint was made of.

    It counts as updated now: of what was away for longer than models are kept, no sample has come yet.

    Cost:    25 µs.
    """
    cpu = Histogram.restored(CPU_BUCKETS, half_lives.cpu_ns, kept.cpu)
    memory = Histogram.restored(MEMORY_BUCKETS, half_lives.memory_ns, kept.memory)
    return Model(cpu.as_of(now_ns), memory.as_of(now_ns), now_ns)
