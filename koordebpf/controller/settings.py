"""What of slo-controller-config is in force. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.manager.render import SPEC_FIELDS, render_spec
from koordebpf.slo.manager.shapes import decode_config
from koordebpf.slo.manager.webhook import EMPTY_SELECTOR, Problem, check_configmap, entries_field


class Settings(msgspec.Struct, frozen=True):
    """The keys in force, and what is wrong with the newest ConfigMap.

    Attributes:
        data: key → the newest good text.
        held: keys that are unusable and of which no good text is known: NodeSLOs keep what they have of them.
        stale: keys that are unusable; of those in `data` an older text is in force.
        problems: all that the webhook would say, in the order of the keys.
    """

    data: dict[str, str] = {}
    held: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()


def settings_of(
    data: Mapping[str, str], last: Settings | None, nodes: Mapping[str, Mapping[str, str]] | None = None
) -> Settings:
    """Return the settings after the ConfigMap became `data`; `nodes` (name → labels) must not be selected twice.

    Each key stands for itself, as in Koordinator: one that is unusable stays as it was, and the others are taken over.
    So does each entry for some nodes: one that is unusable stays as the last good text has it, found by its name or its
    selector; where that has none it is left out, and its nodes get what they would get without it.
    Unusable is what cannot be parsed and what holds a value outside its range: Koordinator's manager hands the latter
    on and the agents skip the feature, which a typing error would switch off. A selector that is empty, or overlaps
    another, is reported and in force: the first that matches counts.
    """
    good: dict[str, str] = {}
    stale: set[str] = set()
    problems: list[Problem] = []
    for key, text in data.items():
        found = check_configmap({key: text}, nodes)
        problems += found
        if key not in SPEC_FIELDS:
            continue
        unusable = [problem for problem in found if _is_unusable(problem)]
        entries = {_entry_of(problem.path, key) for problem in unusable}
        if None not in entries and (repaired := _with_good_entries(key, text, entries, last)) is not None:
            good[key] = repaired
            continue
        stale.add(key)
        if last is not None and key in last.data:
            good[key] = last.data[key]
    return Settings(good, frozenset(stale - good.keys()), frozenset(stale), tuple(problems))


# The text with these entries as the last good text has them, or without; None: it is unusable all the same.
def _with_good_entries(key: str, text: str, entries: Collection[int | None], last: Settings | None) -> str | None:
    repaired = text
    if entries:
        config = decode_config(text, key)
        field = entries_field(key)
        known = _good_entries(key, last)
        kept = [known.get(_id(entry)) if index in entries else entry for index, entry in enumerate(config[field])]
        repaired = msgspec.json.encode({**config, field: [entry for entry in kept if entry is not None]}).decode()
    try:
        render_spec({key: repaired}, {})
    except ConfigError:
        return None
    return repaired


def _good_entries(key: str, last: Settings | None) -> dict[bytes, Any]:
    if last is None or key not in last.data:
        return {}
    return {_id(entry): entry for entry in decode_config(last.data[key], key).get(entries_field(key)) or []}


# What an entry is known by from one text to the next.
def _id(entry: Any) -> bytes:
    of = entry if isinstance(entry, dict) else {}
    return msgspec.json.encode(of.get("name") or of.get("nodeSelector"), order="sorted")


def _entry_of(path: str, key: str) -> int | None:
    found = re.match(rf"{re.escape(f'{key}.{entries_field(key)}')}\[(\d+)\]", path)
    return int(found[1]) if found else None


def _is_unusable(problem: Problem) -> bool:
    # A selector that selects nothing or too much is in force; one that is none is the entry's own problem.
    is_about_nodes = problem.path.endswith(".nodeSelector") and problem.rule == EMPTY_SELECTOR
    return problem.reason in ("ParseConfigFail", "ConfigParamInvalid") and not is_about_nodes
