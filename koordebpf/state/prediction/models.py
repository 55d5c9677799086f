"""The models of a node: one for each pod, for each band of priority, for the system and for the node.

Source:  koordinator pkg/koordlet/prediction/{predict_server,prediction}.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from koordebpf.slo.pods.priority import BANDS
from koordebpf.state.prediction.buckets import CPU_BUCKETS, MEMORY_BUCKETS
from koordebpf.state.prediction.checkpoint import ModelCheckpoint
from koordebpf.state.prediction.histogram import Histogram
from koordebpf.state.prediction.values import Amounts, HalfLives

NODE_UID: Final = "__node__"
NO_BAND: Final = ""  # of a pod without a priority that Koordinator knows


def item_uid(item: str) -> str:
    """Return the UID of a part of the node: a band's name, or sys."""
    return f"__node-{item}__"


SYSTEM_UID: Final = item_uid("sys")  # what no pod uses
BAND_UIDS: Final[Mapping[str, str]] = {band: item_uid(band) for band in (*(each.name for each in BANDS), NO_BAND)}
OWN_UIDS: Final = frozenset({NODE_UID, SYSTEM_UID, *BAND_UIDS.values()})

_RESULTS: Final[Mapping[str, float]] = {"p60": 0.6, "p90": 0.9, "p95": 0.95, "p98": 0.98, "max": 1.0}


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
