"""spec.metricCollectPolicy of a NodeMetric: over which times usage is reported, how often, and what counts as memory.

Source: koordinator apis/slo/v1alpha1/nodemetric_types.go, NodeMetricCollectPolicy; pkg/koordlet/statesinformer/impl/
states_nodemetric.go, defaultNodeMetricSpec.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.go_duration import duration_ns
from koordebpf.units import NS_PER_S

MemoryPolicy = Literal["usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"]

_LEAST_AGGREGATE_S: Final = 60
_LEAST_INTERVAL_S: Final = 30
_PLACE: Final = "spec.metricCollectPolicy"
_MOST_S: Final = 86_400  # Why: of a longer one no series of a node is
_MOST_DURATIONS: Final = 16  # Why: each one is 10 numbers in each report


class CollectPolicy(msgspec.Struct, frozen=True):
    """What is in force. The defaults are koordlet's.

    `aggregate_ns`  usage is the average over so long.
    `interval_ns`   between two reports.
    `durations_ns`  of the aggregated usages, one entry of percentiles each.
    `memory`        what counts as memory of nodes, pods and host applications.
    """

    aggregate_ns: int = 300 * NS_PER_S
    interval_ns: int = 60 * NS_PER_S
    durations_ns: tuple[int, ...] = (300 * NS_PER_S, 600 * NS_PER_S, 1800 * NS_PER_S)
    memory: MemoryPolicy = "usageWithoutPageCache"


def collect_policy(spec: Any) -> CollectPolicy:
    """Return the policy of a NodeMetric's spec; fields that are absent or null have koordlet's defaults.

    What is shorter than koordlet's least (60 s of aggregation, 30 s between reports) counts as that.

    Raises:  ConfigError: a value of another type, not above zero or longer than a day, or an unknown memory policy.
    """
    written = _object(spec, "spec").get("metricCollectPolicy")
    policy = _object(written, _PLACE)
    default = CollectPolicy()
    aggregate_s = _seconds(policy, "aggregateDurationSeconds", default.aggregate_ns, _LEAST_AGGREGATE_S)
    interval_s = _seconds(policy, "reportIntervalSeconds", default.interval_ns, _LEAST_INTERVAL_S)
    memory = policy.get("nodeMemoryCollectPolicy", None)
    names = get_args(MemoryPolicy)
    if memory is not None and memory not in names:
        raise ConfigError(f"{_PLACE}.nodeMemoryCollectPolicy", memory, f"must be one of {', '.join(names)}")
    return CollectPolicy(
        aggregate_ns=aggregate_s * NS_PER_S,
        interval_ns=interval_s * NS_PER_S,
        durations_ns=_durations(policy) or default.durations_ns,
        memory=memory or default.memory,
    )


def _object(written: Any, path: str) -> dict[str, Any]:
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise ConfigError(path, written, "must be an object")
    return written


def _seconds(policy: dict[str, Any], name: str, default_ns: int, least_s: int) -> int:
    written = policy.get(name)
    if written is None:
        return default_ns // NS_PER_S
    if isinstance(written, bool) or not isinstance(written, int) or not 0 < written <= _MOST_S:
        raise ConfigError(f"{_PLACE}.{name}", written, f"must be seconds, more than 0 and at most {_MOST_S}")
    return max(written, least_s)


# An empty list is none: Go leaves it out of JSON, and the default stays.
def _durations(policy: dict[str, Any]) -> tuple[int, ...]:
    place = f"{_PLACE}.nodeAggregatePolicy"
    written = _object(policy.get("nodeAggregatePolicy"), place).get("durations")
    if written is None:
        return ()
    if not isinstance(written, list) or len(written) > _MOST_DURATIONS:
        raise ConfigError(f"{place}.durations", written, f"must be a list of at most {_MOST_DURATIONS}")
    found = []
    for index, each in enumerate(written):
        path = f"{place}.durations[{index}]"
        ns = duration_ns(each, path)
        if not 0 < ns <= _MOST_S * NS_PER_S:
            raise ConfigError(path, each, "must be more than 0 and at most a day")
        found.append(ns)
    return tuple(dict.fromkeys(found))
