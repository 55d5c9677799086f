"""What slo-controller-config means for a node: the one way from the ConfigMap to a spec. Pure.

Agents, the controller, `slo render` and `plan` all go through here. An entry that is unusable stays as it was last
good; else its nodes keep what they have; else they are off. What such a text has off is off, whatever else is wrong
with it, until a usable one comes: an error never turns a node on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.quantity import quantity_bytes
from koordebpf.slo.convert import as_json
from koordebpf.slo.manager.render import (
    SPEC_FIELDS,
    STRATEGY_KEYS,
    Decoded,
    Entry,
    broken_rules,
    decoded,
    default_of,
    entries_field,
)
from koordebpf.slo.manager.shapes import HOST_APPLICATION_KEY, SYSTEM_KEY, decode_config
from koordebpf.slo.manager.switches import (
    EntrySwitches,
    Path,
    TextSwitches,
    named_switches,
    on_in,
    states_of,
    switched_off,
    text_switches,
    with_text,
    without,
)
from koordebpf.slo.selector import selects

BANDWIDTH_ANNOTATION: Final = "node.koordinator.sh/network-bandwidth"


class EffectiveKey(msgspec.Struct, frozen=True):
    """One key of the ConfigMap.

    Attributes:
        text: what is effective, with last good entries in place of unusable ones; None: no good text is known.
        cluster: the value of nodes that no entry selects.
        entries: in their order; those with errors have no good one: their nodes keep what they have.
        errors: why the key as a whole is unusable; `text` is the last good one then.
        is_unparsed: they are of JSON or types, not of a range.
        switches: of the texts since the last one that is usable for every node, this included; the newest last.
        messages: what became of each unusable entry, in sentences.
    """

    key: str
    text: str | None = None
    cluster: Any = None
    entries: tuple[Entry, ...] = ()
    errors: tuple[ConfigError, ...] = ()
    is_unparsed: bool = False
    switches: tuple[TextSwitches, ...] = ()
    messages: tuple[str, ...] = ()

    @property
    def is_held(self) -> bool:
        """Tell whether no good text is known: every node keeps what it has."""
        return self.text is None


class Selected(msgspec.Struct, frozen=True):
    """What a key says of one node.

    Attributes:
        value: None where the node keeps what it has.
        errors: of its own entry, or of the whole key.
        off: the switches that are off, whatever the value has.
    """

    value: Any = None
    is_held: bool = False
    errors: tuple[ConfigError, ...] = ()
    off: frozenset[Path] = frozenset()


def effective_key(
    key: str, text: str, last: EffectiveKey | None = None, decode: Callable[[Mapping[str, Any], str], Decoded] = decoded
) -> EffectiveKey:
    """Return the key after its text became `text`.

    Unusable is what cannot be parsed, and what holds a value outside its range or a pair that contradicts itself:
    Koordinator's manager hands the latter on and the agents skip the feature, which a typing error would switch off. A
    pair of which one is inherited makes nothing unusable.
    """
    config: dict[str, Any] | None = None
    known, is_unparsed = last or EffectiveKey(key), False
    try:
        config = decode_config(text, key)
        cluster, entries = decode(config, key)
        errors = broken_rules(_cluster_of(config, key), key, f"{key}.clusterStrategy")
    except ConfigError as error:
        errors, is_unparsed = (error,), True
    if config is None or errors:
        switches = known.switches if config is None else with_text(known.switches, text_switches(config, key, None))
        whole = msgspec.structs.replace(known, errors=errors, is_unparsed=is_unparsed, switches=switches, messages=())
        return msgspec.structs.replace(whole, messages=_key_messages(whole))
    inherited = _inherited_problems(entries, key)
    switches = with_text(known.switches, text_switches(config, key, entries))
    if not any(entry.errors for entry in entries):
        return EffectiveKey(key, text, cluster, entries, switches=switches, messages=inherited)
    repaired = _with_good_entries(config, entries, known)
    unusable = entries
    if repaired != config:
        text = msgspec.json.encode(repaired).decode()
        cluster, entries = decode(repaired, key)
    messages = _entry_messages(unusable, entries, switches)
    return EffectiveKey(key, text, cluster, entries, switches=switches, messages=(*messages, *inherited))


def selected(of: EffectiveKey, labels: Mapping[str, str]) -> Selected:
    """Return what a key says of a node with these labels: the first entry that selects it counts, else the cluster."""
    off = switched_off(of.switches, labels)
    if of.is_held:
        return Selected(None, True, of.errors, off)
    for entry in of.entries:
        if _is_for(entry, labels, of.key):
            return Selected(entry.value, bool(entry.errors), (*of.errors, *entry.errors), off)
    return Selected(of.cluster, False, of.errors, off)


def effective_part(
    of: EffectiveKey | None, key: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None, has: Any = None
) -> Any:
    """Return the part of a spec that a key of `SPEC_FIELDS` makes, as it stands in the object; None: there is none.

    `of` None: the ConfigMap has no such key. `has` is what the node's object has there, which stays where nothing good
    is known; None: nothing.
    """
    found = selected(of, labels) if of is not None else Selected(default_of(key))
    if found.is_held and isinstance(has, dict):
        return without(has, found.off)
    if found.is_held and has is not None and not found.off:
        return has
    part = as_json(default_of(key) if found.is_held else found.value)
    if key == HOST_APPLICATION_KEY:
        return part or None
    if key == SYSTEM_KEY and (bandwidth := (annotations or {}).get(BANDWIDTH_ANNOTATION)) is not None:
        part = part if bandwidth_problem(annotations) else {**part, "totalNetworkBandwidth": bandwidth}
    return without(part, found.off)


def bandwidth_problem(annotations: Mapping[str, str] | None) -> ConfigError | None:
    """Return what is wrong with the node's own bandwidth."""
    if (bandwidth := (annotations or {}).get(BANDWIDTH_ANNOTATION)) is None:
        return None
    try:
        quantity_bytes(bandwidth, f"metadata.annotations[{BANDWIDTH_ANNOTATION}]")
    except ConfigError as error:
        return error
    return None


def effective_spec(
    keys: Mapping[str, EffectiveKey],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    has: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the NodeSLO spec of a node with these labels and annotations, as it stands in the object.

    For each key: defaults, then clusterStrategy, then the first of nodeStrategies whose selector matches. A key that is
    missing leaves the defaults. `has` is the spec that the node's object has.
    """
    parts = {
        field: effective_part(keys.get(key), key, labels, annotations, (has or {}).get(field))
        for key, field in SPEC_FIELDS.items()
    }
    return {field: part for field, part in parts.items() if part is not None}


def render_spec(
    data: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    has: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return `effective_spec` of a ConfigMap of which no earlier text is known.

    Raises: ConfigError: a key as a whole is unusable, and the controller would leave what there is.
    """
    keys = effective_keys(data)
    if errors := [each for of in keys.values() for each in of.errors]:
        raise errors[0]
    return effective_spec(keys, labels, annotations, has)


def effective_keys(data: Mapping[str, str], last: Mapping[str, EffectiveKey] | None = None) -> dict[str, EffectiveKey]:
    """Return every key of `SPEC_FIELDS` that the ConfigMap has. Each stands for itself, as in Koordinator."""
    return {key: effective_key(key, data[key], (last or {}).get(key)) for key in SPEC_FIELDS if key in data}


# The last good of each unusable entry in its place, for the nodes that the newest selects where that can be read.
def _with_good_entries(config: Mapping[str, Any], entries: Sequence[Entry], last: EffectiveKey) -> dict[str, Any]:
    known = [entry.written for entry in last.entries if not entry.errors]
    kept = []
    for entry in entries:
        good = _last_good(entry.written, known) if entry.errors else None
        of_nodes = {"nodeSelector": entry.selector} if entry.selector is not None else {}
        kept.append(entry.written if good is None else {**good, **of_nodes})
    return {**config, entries_field(last.key): kept}


# What becomes of each unusable entry, by what there is in its place.
def _entry_messages(
    unusable: Sequence[Entry], effective: Sequence[Entry], switches: Sequence[TextSwitches]
) -> tuple[str, ...]:
    messages = []
    for entry, now in zip(unusable, effective, strict=True):
        if not entry.errors:
            continue
        off = switched_off(switches, _sample_labels(entry))
        if now.errors:
            are = f"{off_sentence(sorted(off))}, and new ones are off"
            messages.append(f"{entry} is unusable: its nodes keep what they have{are}")
        else:
            here = on_in(as_json(now.value), off) if entry.is_selector_usable else sorted(off)
            messages.append(f"{entry} is unusable: its last good value stays in force{off_sentence(here)}")
    return tuple(messages)


# What a text that is unusable as a whole has off of the last good value, or of what nodes may have.
def _key_messages(of: EffectiveKey) -> tuple[str, ...]:
    if of.is_held:
        off = tuple(sorted(switched_off(of.switches, {})))
        return (f"{of.key} is unusable: its nodes keep what they have{off_sentence(off)}",) if off else ()
    places = [(f"{of.key}", of.cluster, {}), *((str(each), each.value, _sample_labels(each)) for each in of.entries)]
    offs = [
        (place, on_in(as_json(value), switched_off(of.switches, labels)))
        for place, value, labels in places
        if value is not None
    ]
    return tuple(f"{place}: its last good value stays in force{off_sentence(off)}" for place, off in offs if off)


def off_sentence(off: Sequence[Path]) -> str:
    """Return what follows on a sentence of what stays where these switches are off all the same; empty: none is."""
    return f", but {named_switches(off)} {'is' if len(off) == 1 else 'are'} off" if off else ""


# Of a node that the entry selects, as far as its labels say.
def _sample_labels(entry: Entry) -> dict[str, str]:
    selector = entry.written.get("nodeSelector") if isinstance(entry.written, dict) else None
    wanted = selector.get("matchLabels") if isinstance(selector, dict) else None
    return {key: str(value) for key, value in wanted.items()} if isinstance(wanted, dict) else {}


def _inherited_problems(entries: Sequence[Entry], key: str) -> tuple[str, ...]:
    return tuple(
        f"{entry}: {error.path.removeprefix(entry.path).lstrip('.') or 'together'} {error.rule}, of which it inherits"
        " one: it is in force, and agents skip what the two are for"
        for entry in entries
        if not entry.errors and key in STRATEGY_KEYS
        for error in broken_rules(as_json(entry.value), key, entry.path)
    )


# By name and selector, else by one of them that no other has.
def _last_good(entry: Any, known: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    if not isinstance(entry, dict):
        return None
    marks = {mark: entry.get(mark) for mark in ("name", "nodeSelector") if entry.get(mark)}
    for wanted in (marks, *({mark: value} for mark, value in marks.items())):
        alike = [each for each in known if all(each.get(mark) == value for mark, value in wanted.items())]
        if wanted and len(alike) == 1:
            return alike[0]
    return None


def _is_for(entry: Entry, labels: Mapping[str, str], key: str) -> bool:
    if entry.is_selector_usable:
        return selects(entry.selector, labels, f"{entry.path}.nodeSelector")
    written = entry.written.get("nodeSelector") if isinstance(entry.written, dict) else None
    switches = EntrySwitches(written, entry.is_selector_usable, False, states_of(entry.written, key))
    return switches.may_select(labels)


# Elsewhere than in the keys of strategies the cluster's is the object itself.
def _cluster_of(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    if key not in STRATEGY_KEYS:
        return {name: value for name, value in config.items() if name != entries_field(key)}
    cluster = config.get("clusterStrategy")
    return cluster if isinstance(cluster, dict) else {}
