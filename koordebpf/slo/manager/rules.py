"""What Koordinator's webhook asks of resource-threshold-config and of the QoS classes' bandwidths.

Source: koordinator pkg/webhook/cm/plugins/sloconfig/resource_threshold_checker.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from koordebpf.errors import ConfigError
from koordebpf.quantity import parse_quantity
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

Broken = tuple[str, Any, str]  # path, value, rule
_CLASSES: Final = ("lsrClass", "lsClass", "beClass")
_REQUESTS: Final = ("ingressRequest", "egressRequest")
_FIELDS: Final = (*_REQUESTS, "ingressLimit", "egressLimit")
_WHOLE_PERCENT: Final = 100
_PERCENTS = (
    "cpuSuppressThresholdPercent",
    "cpuSuppressMinPercent",
    "memoryEvictThresholdPercent",
    "memoryEvictLowerPercent",
    "cpuEvictBESatisfactionUpperPercent",
    "cpuEvictBESatisfactionLowerPercent",
    "cpuEvictBEUsageThresholdPercent",
    "cpuEvictThresholdPercent",
    "cpuEvictLowerPercent",
)
# Field → lowest, highest.
_RANGES: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(_PERCENTS, (0, 100)),
    "memoryAllocatableEvictThresholdPercent": (0, None),
    "memoryAllocatableEvictLowerPercent": (0, None),
    "cpuAllocatableEvictThresholdPercent": (0, None),
    "cpuAllocatableEvictLowerPercent": (0, None),
    "cpuEvictTimeWindowSeconds": (1, None),
    "allocatableEvictPriorityThreshold": (0, 7999),
}
# The first must be greater than the second.
PAIRS = (
    ("memoryEvictThresholdPercent", "memoryEvictLowerPercent"),
    ("memoryAllocatableEvictThresholdPercent", "memoryAllocatableEvictLowerPercent"),
    ("cpuEvictBESatisfactionUpperPercent", "cpuEvictBESatisfactionLowerPercent"),
    ("cpuEvictThresholdPercent", "cpuEvictLowerPercent"),
    ("cpuAllocatableEvictThresholdPercent", "cpuAllocatableEvictLowerPercent"),
)
_POLICIES = {
    "cpuSuppressPolicy": ("cpuset", "cfsQuota"),
    "cpuEvictPolicy": ("evictByRealLimit", "evictByAllocatable"),
}


def broken_network_rules(strategy: ResourceQOSStrategy, bandwidth: str | int | None, path: str) -> Iterator[Broken]:
    """Yield what is wrong with the networkQOS of one strategy's LSR, LS and BE classes.

    A quantity has to be one; requests are all percents or all quantities; and those of the three classes together are
    no more than there is: 100 %, or `bandwidth` where that is known (absent and 0 are the network card's own). Percents
    out of their range are no values of the strategy at all. The webhook compares quantities with 100 and percents with
    the bandwidth too, so that it refuses every quantity: here each is compared with its own.
    """
    written = {
        f"{name}.networkQOS.{field}": value
        for name in _CLASSES
        if (of_class := getattr(strategy, name)) is not None and of_class.networkQOS is not None
        for field in _FIELDS
        if (value := getattr(of_class.networkQOS, field)) is not None
    }
    amounts: dict[str, Decimal] = {}
    for place, value in written.items():
        try:
            amounts[place] = parse_quantity(value, f"{path}.{place}")
        except ConfigError as error:
            yield error.path, error.value, error.rule
    requests = {place: value for place, value in written.items() if place.endswith(_REQUESTS)}
    if len({isinstance(value, int) for value in requests.values()}) > 1:
        rule = f"must all be percents or all be quantities: {', '.join(requests)}"
        yield path, ", ".join(str(value) for value in requests.values()), rule
        return
    for field in _REQUESTS:
        places = [place for place in requests if place.endswith(field) and place in amounts]
        total = sum((amounts[place] for place in places), Decimal(0))
        is_percent = any(isinstance(requests[place], int) for place in places)
        most = Decimal(_WHOLE_PERCENT) if is_percent else _known(bandwidth)
        if most is not None and total > most:
            text = f"{most} %" if is_percent else f"the totalNetworkBandwidth of {bandwidth}"
            yield path, " + ".join(str(requests[place]) for place in places), f"{field} must be {text} or less together"


def _known(bandwidth: str | int | None) -> Decimal | None:
    try:
        return parse_quantity(bandwidth or 0) or None
    except ConfigError:
        return None  # reported where it stands


def broken_threshold_rules(strategy: ResourceThresholdStrategy, path: str) -> Iterator[Broken]:
    """Yield what is wrong with one strategy; a pair of which one is absent is none."""
    for name, (lowest, highest) in _RANGES.items():
        value = getattr(strategy, name)
        if value is not None and (value < lowest or (highest is not None and value > highest)):
            rule = f"must be {lowest} or more" if highest is None else f"must be {lowest}…{highest}"
            yield f"{path}.{name}", value, rule
    for name, lower_name in PAIRS:
        value, lower = getattr(strategy, name), getattr(strategy, lower_name)
        if value is not None and lower is not None and value <= lower:
            yield f"{path}.{name}", value, f"must be greater than {lower_name} ({lower})"
    for name, known in _POLICIES.items():
        value = getattr(strategy, name)
        if value is not None and value not in known:
            yield f"{path}.{name}", value, f"must be one of {', '.join(known)}"
