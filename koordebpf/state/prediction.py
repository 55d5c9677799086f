"""The amounts that a prediction is made of and results in."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """CPU and memory together.

    Units:   millicpu; bytes.
    >>> Amounts(500, 1 << 20) + Amounts(250, 0)
    Amounts(cpu_millicpu=750, memory_bytes=1048576)
    """

    cpu_millicpu: int = 0
    memory_bytes: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpu_millicpu + other.cpu_millicpu, self.memory_bytes + other.memory_bytes)

    def less(self, other: Amounts) -> Amounts:
        """Return what is left of each, never below 0."""
        return Amounts(max(self.cpu_millicpu - other.cpu_millicpu, 0), max(self.memory_bytes - other.memory_bytes, 0))

    def at_most(self, other: Amounts) -> Amounts:
        """Return the lower one of each."""
        return Amounts(min(self.cpu_millicpu, other.cpu_millicpu), min(self.memory_bytes, other.memory_bytes))

    def at_least(self, other: Amounts) -> Amounts:
        """Return the higher one of each."""
        return Amounts(max(self.cpu_millicpu, other.cpu_millicpu), max(self.memory_bytes, other.memory_bytes))


class ProdPrediction(msgspec.Struct, frozen=True):
    """What NodeMetric says of a node's prod pods; a part that could not be predicted is None, which is not zero.

    `reclaimable`  what they request and will not use: status.prodReclaimableMetric.
    `peak`         what they will use at most: status.prodPeakMetric.

    Source:  koordinator apis/slo/v1alpha1/nodemetric_types.go.
    """

    reclaimable: Amounts | None = None
    peak: Amounts | None = None


class HalfLives(msgspec.Struct, frozen=True):
    """After what time a sample counts half. Nanoseconds."""

    cpu_ns: int
    memory_ns: int


class LatestPrediction:
    """Where who predicts leaves the newest prediction, and who reports it finds it.

    `prod`   None: nothing was predicted yet.
    `by`     what each predictor says, by koordlet's name of it.
    `at_ns`  CLOCK_MONOTONIC when it was made.
    """

    __slots__ = ("at_ns", "by", "prod")

    def __init__(self) -> None:
        self.prod: ProdPrediction | None = None
        self.by: Mapping[str, ProdPrediction] = {}
        self.at_ns = 0

    def put(self, prod: ProdPrediction, by: Mapping[str, ProdPrediction], at_ns: int) -> None:
        """Replace the one before."""
        self.prod, self.by, self.at_ns = prod, by, at_ns

    def newer_than(self, since_ns: int) -> ProdPrediction | None:
        """Return the prediction if it was made after that moment: an older one says nothing of now."""
        return self.prod if self.at_ns > since_ns else None
