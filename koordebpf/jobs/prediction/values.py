"""What an operator may set about prediction."""

from __future__ import annotations

from typing import Annotated

import msgspec

from koordebpf.state.prediction import HalfLives
from koordebpf.units import NS_PER_S

_MINUTE_NS = 60 * NS_PER_S
_HOUR_NS = 60 * _MINUTE_NS

_HalfLife = Annotated[int, msgspec.Meta(ge=_MINUTE_NS)]


class PredictionSettings(msgspec.Struct, frozen=True):
    """How peaks of usage are learned and what is added to them.

    `cpu_half_life_ns`     after this time a sample of CPU counts half. Why 12 h: koordlet's.
    `memory_half_life_ns`  the same of memory. Why 24 h: koordlet's.
    `cpu_peak_percent`     share of the samples of CPU that lie below the peak. Why 95: koordlet's.
    `memory_peak_percent`  the same of memory. Why 98: koordlet's; memory, unlike CPU, cannot be taken back.
    `safety_margin_percent` added to a predicted peak. Why 10: koordlet's.
    `cold_start_ns`        of a pod that is not older, nothing is reclaimable. Why 24 h: koordlet's; a day has most
                           loads' ups and downs.
    `train_every_ns`       between two samples; each is the p90 of this time. Why 60 s: koordlet's.
    `expire_ns`            a model without a sample for so long is deleted. Why 30 m: koordlet's.
    `checkpoint_every_ns`  a model is written to its file so often. Why 10 m: koordlet's; a crash loses less than that.
    `checkpoints_per_step` models that are written each minute, at most; the oldest first. Why 12: koordlet's.
    `folder`               where models are kept; only an agent that acts writes there. Why null: prediction below
                           node.runDir, which ends with the machine; a folder on a disk outlives it.
    `koordlet_folder`      koordlet's own models: of a UID that is in both folders the newer one is read at the start.
                           Nothing is written or removed there. Why: koordlet's DaemonSet keeps them there on the node.
    """

    cpu_half_life_ns: _HalfLife = 12 * _HOUR_NS
    memory_half_life_ns: _HalfLife = 24 * _HOUR_NS
    cpu_peak_percent: int = 95
    memory_peak_percent: int = 98
    safety_margin_percent: int = 10
    cold_start_ns: int = 24 * _HOUR_NS
    train_every_ns: Annotated[int, msgspec.Meta(ge=5 * NS_PER_S, le=10 * _MINUTE_NS)] = _MINUTE_NS
    expire_ns: Annotated[int, msgspec.Meta(ge=_MINUTE_NS)] = 30 * _MINUTE_NS
    checkpoint_every_ns: Annotated[int, msgspec.Meta(ge=_MINUTE_NS)] = 10 * _MINUTE_NS
    checkpoints_per_step: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 12
    folder: str | None = None
    koordlet_folder: str | None = "/var/run/koordlet/prediction-checkpoints"

    @property
    def half_lives(self) -> HalfLives:
        """Both, as models take them."""
        return HalfLives(self.cpu_half_life_ns, self.memory_half_life_ns)
