"""What an operator may set of the NodeMetric report."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from koordebpf.units import NS_PER_S

_Percent = Annotated[float, Meta(ge=0, le=50)]


class NodeMetricSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the NodeMetric is kept up to date; what is in it, the NodeMetric's own spec.metricCollectPolicy says.

    `quiet_ns`        without news nothing is sent for so long. Why 120 s: two of koordlet's intervals, and time for
                      three tries before the report is too old.
    `latest_ns`       the report is never older. Why 150 s: koord-scheduler drops a node after 180 s.
    `moved_percent`   of its last sent value, by which a value must change to be sent. Why 5: koord-manager updates a
                      node where a resource changes by 10 % (resourceDiffThreshold).
    `total_percent`   the same of the node's usage, and of the sum of its pods' usages by priority class. Why 2: it is
                      what load-aware scheduling and batch resources are calculated from.
    `ignored_percent` of the node's capacity, below which no change is sent but as part of a sum. Why 0.1: percents of
                      a pod that does nothing are noise.
    """

    quiet_ns: Annotated[int, Meta(ge=30 * NS_PER_S, le=600 * NS_PER_S)] = 120 * NS_PER_S
    latest_ns: Annotated[int, Meta(ge=60 * NS_PER_S, le=600 * NS_PER_S)] = 150 * NS_PER_S
    moved_percent: _Percent = 5.0
    total_percent: _Percent = 2.0
    ignored_percent: _Percent = 0.1
