"""How many series may have a pod's name in a label."""

from __future__ import annotations

import msgspec

POD_SERIES = 70  # Why: with the 110 to 130 of the node itself 200 series
_POD_FORECASTS = 3  # series of one forecast: low, point, high


class PodSeries(msgspec.Struct, frozen=True):
    """The most series of each metric that has a pod's name in a label; what is above it is counted as `_other`."""

    stalls: int
    pairs: int
    forecast_pods: int

    @classmethod
    def of(cls, most: int) -> PodSeries:
        """Return the parts of so many series in all: the overflow of stalls and of pairs is a part of it."""
        forecast_pods = most // 5 // _POD_FORECASTS
        left = most - forecast_pods * _POD_FORECASTS
        return cls(stalls=max(0, left // 2 - 2), pairs=max(0, left - left // 2 - 1), forecast_pods=forecast_pods)
