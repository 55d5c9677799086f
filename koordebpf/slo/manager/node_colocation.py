"""The colocation strategy of one node: defaults, cluster, the first of nodeConfigs, the node's annotation, its labels.

What is illegal on a Node changes nothing and is named: others' objects never stop the controller.

Source: koordinator pkg/util/sloconfig/{colocation_config,node_colocation}.go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import converted, decode_object, laid_over
from koordebpf.slo.manager.colocation import ColocationStrategy, NotNegative, Percent, Positive
from koordebpf.slo.manager.effective import EffectiveKey, effective_key, selected
from koordebpf.slo.manager.render import Decoded, strategy_entries
from koordebpf.slo.manager.shapes import COLOCATION_KEY, named

STRATEGY_ANNOTATION: Final = "node.koordinator.sh/colocation-strategy"
# Label of a Node with a fraction → the field that takes it as a percentage.
RATIO_LABELS: Final[Mapping[str, str]] = {
    "node.koordinator.sh/cpu-reclaim-ratio": "cpuReclaimThresholdPercent",
    "node.koordinator.sh/memory-reclaim-ratio": "memoryReclaimThresholdPercent",
    "node.koordinator.sh/mid-static-cpu-reserved-ratio": "midStaticCPUReservedPercent",
    "node.koordinator.sh/mid-static-memory-reserved-ratio": "midStaticMemoryReservedPercent",
}
_MAX_RATIO: Final = 1e6  # above it is no share of a node
CPU_POLICIES: Final = ("usage", "maxUsageRequest")
MEMORY_POLICIES: Final = ("usage", "request", "maxUsageRequest")
MemoryPolicy = Literal["usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"]


class MetricAggregatePolicy(msgspec.Struct, frozen=True):
    """`durations` are metav1.Duration, as written."""

    durations: tuple[str, ...] = ("5m", "10m", "30m")


class NodeColocation(msgspec.Struct, frozen=True):
    """The strategy of one node, every field with its value. Names are those of `ColocationStrategy`.

    Two have no default: an absent batch threshold is no limit, and an absent midReclaimMode is not `static`.
    """

    enable: bool = False
    metricAggregateDurationSeconds: Positive = 300
    metricReportIntervalSeconds: Positive = 60
    metricAggregatePolicy: MetricAggregatePolicy = MetricAggregatePolicy()
    metricMemoryCollectPolicy: MemoryPolicy = "usageWithoutPageCache"
    cpuReclaimThresholdPercent: NotNegative = 60
    cpuCalculatePolicy: str = "usage"
    memoryReclaimThresholdPercent: NotNegative = 65
    memoryCalculatePolicy: str = "usage"
    degradeTimeMinutes: Positive = 15
    updateTimeThresholdSeconds: Positive = 300
    resourceDiffThreshold: float = 0.1
    midCPUThresholdPercent: Percent = 100
    midMemoryThresholdPercent: Percent = 100
    midUnallocatedPercent: Percent = 0
    midReclaimMode: str | None = None
    midStaticCPUReservedPercent: NotNegative = 0
    midStaticMemoryReservedPercent: NotNegative = 0
    batchCPUThresholdPercent: NotNegative | None = None
    batchMemoryThresholdPercent: NotNegative | None = None


DEFAULT_COLOCATION: Final = NodeColocation()


class Resolved(msgspec.Struct, frozen=True):
    """The strategy of one node, and what was left out of it, in sentences.

    `origins`: field → where its value comes from, of those that are no default. `is_held`: nothing good is known of
    the node, which keeps what it has.
    """

    strategy: NodeColocation
    problems: tuple[str, ...] = ()
    origins: Mapping[str, str] = {}
    is_held: bool = False


def effective_colocation(text: str | None, last: EffectiveKey | None = None) -> EffectiveKey:
    """Return the key after its text became `text`; None, a key that is missing, leaves the defaults, which are off."""
    if text is None:
        return EffectiveKey(COLOCATION_KEY, "", DEFAULT_COLOCATION)
    return effective_key(COLOCATION_KEY, text, last, _decoded)


def node_colocation(
    config: EffectiveKey, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Resolved:
    """Return the strategy of a node with these labels and annotations."""
    found = selected(config, labels)
    is_off = ("enable",) in found.off
    strategy = DEFAULT_COLOCATION if found.is_held else found.value
    if is_off:
        strategy = msgspec.structs.replace(strategy, enable=False)
    fate = "colocation is off for the Node" if is_off else "the Node keeps what it has"
    # The key's own errors are reported once, not for each Node.
    problems = [f"{each}; {fate}" for each in found.errors if each not in config.errors] if found.is_held else []
    origins = _origins(config, found.value)
    is_held = found.is_held and not is_off
    if annotations and STRATEGY_ANNOTATION in annotations:
        own = _annotated(strategy, annotations[STRATEGY_ANNOTATION], is_off, is_held)
        strategy, is_held = own.strategy, own.is_held
        problems += own.problems
        origins |= own.origins
    for label, field in RATIO_LABELS.items():
        if (value := labels.get(label)) is None:
            continue
        if (percent := _percent(value)) is None:
            problems.append(f"metadata.labels[{label}]: {value!r}: must be a fraction, 0 or more; it is left out")
            continue
        strategy = msgspec.structs.replace(strategy, **{field: percent})
        origins[field] = f"metadata.labels[{label}]"
    problems += _policy_problems(strategy)
    return Resolved(strategy, tuple(problems), origins, is_held)


# With the Node's own annotation. One of which `enable` cannot be read leaves the Node as it was, and never turns it on.
def _annotated(strategy: NodeColocation, text: str, is_off: bool, is_held: bool) -> Resolved:
    path, own = f"metadata.annotations[{STRATEGY_ANNOTATION}]", None
    try:
        own = named(decode_object(text, path), ColocationStrategy)
        laid = _laid_over(strategy, own, path)
    except ConfigError as error:
        enable = own.get("enable") if own is not None else "unknown"
        if enable is False:
            fate, is_off, is_held = "the annotation is left out, but for its enable: false", True, False
        elif enable is None or enable is True or is_off:
            fate = "the annotation is left out"
        else:
            fate, is_off, is_held = "the Node keeps what it has", True, True
        strategy = msgspec.structs.replace(strategy, enable=strategy.enable and not is_off)
        return Resolved(strategy, (f"{error}; {fate}",), {}, is_held)
    return Resolved(laid, (), dict.fromkeys(_written(own), path), is_held and own.get("enable") is not False)


def _decoded(config: Mapping[str, Any], path: str) -> Decoded:
    cluster = _laid_over(DEFAULT_COLOCATION, config, path)

    def own(entry: Mapping[str, Any], at: str) -> NodeColocation:
        return _laid_over(cluster, entry, at)

    return cluster, strategy_entries(config, "nodeConfigs", path, own)


def _origins(config: EffectiveKey, value: NodeColocation | None) -> dict[str, str]:
    if value is None:
        return {}
    cluster = config.cluster
    origins = {
        name: f"{COLOCATION_KEY}.{name}"
        for name in NodeColocation.__struct_fields__
        if getattr(cluster, name) != getattr(DEFAULT_COLOCATION, name)
    }
    entry = next((each for each in config.entries if each.value is value), None)
    if entry is not None:
        origins |= dict.fromkeys(_written(entry.written), f"{COLOCATION_KEY}.nodeConfigs")
    return origins


# As Koordinator, which has no other policy than these: any other word is the default.
def _policy_problems(strategy: NodeColocation) -> list[str]:
    known = {"cpuCalculatePolicy": CPU_POLICIES, "memoryCalculatePolicy": MEMORY_POLICIES}
    return [
        f"{field}: {getattr(strategy, field)!r}: must be one of {', '.join(words)}; usage counts"
        for field, words in known.items()
        if getattr(strategy, field) not in words
    ]


def _laid_over(base: NodeColocation, written: Mapping[str, Any], path: str) -> NodeColocation:
    # First by the webhook's own ranges, so that an error says the same wherever a value stands.
    converted(written, ColocationStrategy, path)
    own = {name: written[name] for name in _written(written)}
    return converted(laid_over(msgspec.to_builtins(base), own), NodeColocation, path)


def _written(written: Mapping[str, Any]) -> list[str]:
    return [name for name in NodeColocation.__struct_fields__ if written.get(name) is not None]


# Cut, not rounded, as Koordinator: 0.29 is 28 %.
def _percent(value: str) -> int | None:
    try:
        ratio = float(value)
    except ValueError:
        return None
    return int(ratio * 100) if math.isfinite(ratio) and 0 <= ratio <= _MAX_RATIO else None
