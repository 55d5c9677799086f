"""What Koordinator's webhook refuses in a ConfigMap `slo-controller-config`, found before it is applied.

Source: koordinator pkg/webhook/cm/plugins/sloconfig.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.slo.convert import entries_of, member
from koordebpf.slo.manager.colocation import check_colocation
from koordebpf.slo.manager.render import SPEC_FIELDS, STRATEGY_KEYS, decoded, entries_field, strategies_of
from koordebpf.slo.manager.rules import PAIRS, broken_network_rules, broken_threshold_rules
from koordebpf.slo.manager.shapes import (
    COLOCATION_KEY,
    HOST_APPLICATION_KEY,
    QOS_KEY,
    SYSTEM_KEY,
    THRESHOLD_KEY,
    decode_config,
    unknown_in_config,
)
from koordebpf.slo.selector import selects
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

# What they say concerns koord-manager alone; of the last two the webhook too asks only that they are JSON objects.
OTHER_KEYS = (COLOCATION_KEY, "cpu-normalization-config", "resource-amplification-config")
_KNOWN_KEYS = (*STRATEGY_KEYS, HOST_APPLICATION_KEY, *OTHER_KEYS)
_MOST_LABEL_SETS = 1000  # virtual nodes tried for each key; a selector of 4 expressions with 5 values has 625

EMPTY_SELECTOR = "must not be empty"


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a ConfigMap. `reason` is the webhook's own word for it."""

    reason: (
        str  # ParseConfigFail, ConfigParamInvalid, NodeStrategiesOverlap, ExistNodeConfict [as Koordinator spells it]
    )
    path: str
    value: Any
    rule: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}" if self.value is None else f"{self.path}: {self.value!r}: {self.rule}"


def check_configmap(
    data: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]] | None = None, *, strict: bool = False
) -> tuple[Problem, ...]:
    """Return all that is wrong with the ConfigMap's data.

    Args:
        data: key → JSON text.
        nodes: name → labels of the nodes there are, which must not be selected twice.
        strict: refuse a threshold without its lower mark too, as the webhook does although koordlet accepts it.
    """
    problems: list[Problem] = []
    for key, text in data.items():
        if key not in _KNOWN_KEYS:
            problems.append(Problem("ConfigParamInvalid", key, "…", f"must be one of {', '.join(_KNOWN_KEYS)}"))
            continue
        try:
            config = decode_config(text, key)
            entries = decoded(config, key)[1] if key in SPEC_FIELDS else ()
            if key == COLOCATION_KEY:
                check_colocation(config, key)
        except ConfigError as error:
            is_json = error.rule.startswith("must be JSON")
            word = "ParseConfigFail" if is_json else "ConfigParamInvalid"
            value = None if error.value is NOT_GIVEN else error.value
            problems.append(Problem(word, error.path, value, error.rule))
            continue
        broken = [error for entry in entries for error in entry.errors]
        problems += [Problem("ConfigParamInvalid", each.path, each.value, each.rule) for each in broken]
        if strict:
            problems += [
                Problem("ConfigParamInvalid", each.path, "…", str(each).partition(": ")[2])
                for each in unknown_in_config({key: text})
            ]
        if key == THRESHOLD_KEY:
            problems += _threshold_problems(config, key, strict=strict)
        if key == QOS_KEY:
            problems += _network_problems(config, data.get(SYSTEM_KEY))
        problems += _selector_problems(config, key, nodes or {})
    return tuple(problems)


def strategy_problems(strategy: ResourceThresholdStrategy, path: str) -> Iterator[Problem]:
    """Yield what the webhook says of one merged strategy: ranges, pairs, words."""
    for at, value, rule in broken_threshold_rules(strategy, path):
        yield Problem("ConfigParamInvalid", at, value, rule)


def _lone_problems(written: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for pair in PAIRS:
        there = [name for name in pair if written.get(name) is not None]
        if len(there) == 1:
            missing = pair[1 - pair.index(there[0])]
            rule = f"must not stand without {missing}: the webhook refuses it"
            yield Problem("ConfigParamInvalid", f"{path}.{there[0]}", written[there[0]], rule)


def _threshold_problems(config: Mapping[str, Any], key: str, *, strict: bool) -> Iterator[Problem]:
    cluster, entries = strategies_of(config, key)
    written = [member(config, "clusterStrategy", key) or {}, *entries_of(config, "nodeStrategies", key)]
    made = [(f"{key}.clusterStrategy", cluster), *((entry.path, entry.value) for entry in entries)]
    for own, (path, merged) in zip(written, made, strict=True):
        if merged is None:
            continue  # left out
        yield from strategy_problems(merged, path)
        if strict:
            yield from _lone_problems(own, path)


def _network_problems(config: Mapping[str, Any], system_text: str | None) -> Iterator[Problem]:
    try:
        systems = _all_strategies(decode_config(system_text or "{}", SYSTEM_KEY), SYSTEM_KEY)
    except ConfigError:
        systems = []  # reported under its own key
    for path, strategy, selector in _all_strategies(config, QOS_KEY):
        # As the webhook takes it: of the system strategy for the very same nodes, else of the cluster's.
        alike = [each for each in systems if each[2] == selector] or systems[:1]
        bandwidth = alike[0][1].totalNetworkBandwidth if alike else None
        for at, value, rule in broken_network_rules(strategy, bandwidth, path):
            yield Problem("ConfigParamInvalid", at, value, rule)


def _all_strategies(config: Mapping[str, Any], key: str) -> list[tuple[str, Any, Mapping[str, Any] | None]]:
    cluster, entries = strategies_of(config, key)
    usable = [(entry.path, entry.value, entry.selector) for entry in entries if not entry.errors]
    return [(f"{key}.clusterStrategy", cluster, None), *usable]


def _selector_problems(
    config: Mapping[str, Any], key: str, nodes: Mapping[str, Mapping[str, str]]
) -> Iterator[Problem]:
    field = entries_field(key)
    try:
        entries = entries_of(config, field, key)
        selectors = [_selector_of(entry, f"{key}.{field}[{index}]") for index, entry in enumerate(entries)]
    except ConfigError as error:
        yield Problem("ConfigParamInvalid", error.path, error.value, error.rule)
        return
    paths = [f"{key}.{field}[{index}].nodeSelector" for index in range(len(entries))]
    for path, selector in zip(paths, selectors, strict=True):
        if selector is _UNUSABLE:
            continue  # named already
        if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
            yield Problem("ConfigParamInvalid", path, selector, EMPTY_SELECTOR)
    seen: set[tuple[int, ...]] = set()
    for wanted in itertools.islice(_virtual_label_sets(selectors), _MOST_LABEL_SETS):
        if (twice := _selected_by(selectors, wanted, paths)) and twice not in seen:
            seen.add(twice)
            shown = ", ".join(f"{name}={value}" for name, value in sorted(wanted.items()))
            names = " and ".join(_name_of(entries[index], paths[index]) for index in twice)
            yield Problem("NodeStrategiesOverlap", f"{key}.{field}", shown, f"must not be selected by both {names}")
    for name, labels in nodes.items():
        if twice := _selected_by(selectors, labels, paths):
            names = " and ".join(_name_of(entries[index], paths[index]) for index in twice)
            yield Problem("ExistNodeConfict", f"{key}.{field}", name, f"this node is selected by both {names}")


_UNUSABLE: Mapping[str, Any] = {}


def _selector_of(entry: Any, path: str) -> Mapping[str, Any] | None:
    try:
        selector = member(entry, "nodeSelector", path) if isinstance(entry, dict) else _UNUSABLE
        selects(selector, {}, path)
    except ConfigError:
        return _UNUSABLE
    return selector


def _selected_by(
    selectors: Iterable[Mapping[str, Any] | None], labels: Mapping[str, str], paths: list[str]
) -> tuple[int, ...]:
    # () where at most one selects it: that is no conflict.
    found = tuple(
        index
        for index, (selector, path) in enumerate(zip(selectors, paths, strict=True))
        if selector and selects(selector, labels, path)
    )
    return found if len(found) > 1 else ()


def _virtual_label_sets(selectors: Iterable[Mapping[str, Any] | None]) -> Iterator[dict[str, str]]:
    # Nodes that each selector asks for: its matchLabels, with every combination of the values of its In expressions.
    for selector in selectors:
        if not selector:
            continue
        labels = dict(selector.get("matchLabels") or {})
        choices = [
            [(expression["key"], value) for value in expression.get("values") or []]
            for expression in selector.get("matchExpressions") or []
            if expression.get("operator") == "In"
        ]
        for combination in itertools.product(*choices):
            yield {**labels, **dict(combination)}


def _name_of(entry: Mapping[str, Any], path: str) -> str:
    name = entry.get("name")
    return str(name) if name else path.removesuffix(".nodeSelector")
