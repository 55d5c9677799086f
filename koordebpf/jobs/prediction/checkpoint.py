"""The JSON that a model is kept as, koordlet's own.

Source:  koordinator pkg/koordlet/prediction/checkpoint.go, pkg/util/histogram/histogram_checkpoint.go.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec

from koordebpf.errors import ConfigError, json_error, type_error
from koordebpf.units import GIB, MIB, NS_PER_S

# Source: koordinator pkg/koordlet/prediction/predict_server.go; vertical-pod-autoscaler's, with other bounds.
_RATIO: Final = 1.0 + 0.05
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION: Final = re.compile(r"\.(\d{1,9})(?=Z|[+-])")
_MICROSECOND: Final = timedelta(microseconds=1)
_MOST_WEIGHT: Final = 1e40  # Why: 2^100 × the samples of a century, one a second
_Weight = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Total = Annotated[float, msgspec.Meta(ge=0, le=_MOST_WEIGHT)]


# Exponential buckets of a histogram: each is wider than the one before by the same ratio.


class Buckets:
    """A fixed division of the values from 0 up; the last bucket has no upper bound.

    Bucket n starts at `first` · (ratio^n − 1) / (ratio − 1).

    Source:  koordinator pkg/util/histogram/histogram_options.go, exponentialHistogramOptions.
    """

    __slots__ = ("_first", "_log_ratio", "_ratio", "count", "starts")

    def __init__(self, highest: float, first: float, ratio: float) -> None:
        """Divide.

        Args:
            highest: in the last bucket or the one before.
            first: the width of the first bucket.
            ratio: how many times as wide each bucket is as the one before; more than 1.
        """
        self._first = first
        self._ratio = ratio
        self._log_ratio = math.log(ratio)
        self.count = math.ceil(math.log(highest * (ratio - 1) / first + 1) / self._log_ratio) + 1
        self.starts = tuple(first * (ratio**n - 1) / (ratio - 1) for n in range(self.count))

    def find(self, value: float) -> int:
        """Return the index of the bucket that a finite value is in; one below 0 is in the first.

        Cost:    0.3 µs.
        """
        if value < self._first:
            return 0
        found = int(math.log(value * (self._ratio - 1) / self._first + 1) / self._log_ratio)
        return min(found, self.count - 1)

    def end(self, bucket: int) -> float:
        """Return where a bucket ends; of the last one, where it starts."""
        return self.starts[min(bucket + 1, self.count - 1)]


CPU_BUCKETS: Final = Buckets(1024, 0.025, _RATIO)  # cores
MEMORY_BUCKETS: Final = Buckets(2048 * GIB, 5 * MIB, _RATIO)  # bytes


class HistogramCheckpoint(msgspec.Struct, frozen=True):
    """What is kept of a histogram.

    `weights` by bucket, in ten-thousandths of the heaviest; `total` is the weight of all, as of `reference_ns`, which
    counts from 1970.
    """

    reference_ns: int
    weights: dict[int, int]
    total: float


class ModelCheckpoint(msgspec.Struct, frozen=True):
    """What is kept of a model. `updated_ns` counts from 1970; None: its file does not tell."""

    uid: str
    cpu: HistogramCheckpoint
    memory: HistogramCheckpoint
    updated_ns: int | None


class _Histogram(msgspec.Struct, frozen=True, omit_defaults=True):
    referenceTimestamp: str
    bucketWeights: dict[int, _Weight] = {}
    totalWeight: _Total = 0.0


class _Model(msgspec.Struct, frozen=True):
    UID: str
    CPU: _Histogram
    Memory: _Histogram
    LastUpdated: str | None


def encode_checkpoint(kept: ModelCheckpoint) -> bytes:
    """Return the file's content."""
    updated = None if kept.updated_ns is None else _text_of(kept.updated_ns // NS_PER_S * NS_PER_S)
    return msgspec.json.encode(_Model(kept.uid, _written(kept.cpu), _written(kept.memory), updated)) + b"\n"


def decode_checkpoint(raw: bytes, uid: str, path: str) -> ModelCheckpoint:
    """Return what a file holds; like koordlet's, its UID is its name, whatever is written in it.

    Raises:  ConfigError: names the place in it, the value and the rule.
    """
    try:
        found = msgspec.json.decode(raw, type=_Model)
    except msgspec.ValidationError as error:
        raise type_error(path, raw, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise json_error(path, raw, error) from error
    updated = found.LastUpdated
    return ModelCheckpoint(
        uid,
        _read(found.CPU, CPU_BUCKETS, f"{path}: CPU"),
        _read(found.Memory, MEMORY_BUCKETS, f"{path}: Memory"),
        None if updated is None else _moment_ns(updated, f"{path}: LastUpdated"),
    )


def _written(kept: HistogramCheckpoint) -> _Histogram:
    return _Histogram(_text_of(kept.reference_ns), kept.weights, kept.total)


def _read(found: _Histogram, buckets: Buckets, path: str) -> HistogramCheckpoint:
    for bucket in found.bucketWeights:
        if not 0 <= bucket < buckets.count:
            raise ConfigError(f"{path}.bucketWeights", bucket, f"must be a bucket from 0 to {buckets.count - 1}")
    reference_ns = _moment_ns(found.referenceTimestamp, f"{path}.referenceTimestamp")
    return HistogramCheckpoint(reference_ns, found.bucketWeights, found.totalWeight)


# Go writes up to nine digits of a second, of which a datetime holds six.
def _moment_ns(text: str, path: str) -> int:
    fraction = _FRACTION.search(text)
    whole = _FRACTION.sub("", text)
    try:
        moment: datetime = msgspec.convert(whole, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError as error:
        raise ConfigError(path, text[:80], "must be a time of RFC 3339") from error
    nanoseconds = int(fraction[1].ljust(9, "0")) if fraction else 0
    return (moment - _EPOCH) // _MICROSECOND * 1000 + nanoseconds


def _text_of(at_ns: int) -> str:
    seconds, nanoseconds = divmod(at_ns, NS_PER_S)
    text = (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return f"{text}{fraction}Z"
