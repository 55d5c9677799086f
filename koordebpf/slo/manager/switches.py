"""Which switches a text of slo-controller-config has off for a node, whatever else is wrong with it. Pure.

Switches are found by their paths in the key's type: what stands elsewhere is none, and nothing here raises. A text that
is unusable for a node never switches anything on, and what it has off stays off until a text is usable for the node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import msgspec.inspect

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import member
from koordebpf.slo.manager.colocation import ColocationStrategy
from koordebpf.slo.manager.render import STRATEGY_KEYS, Entry, entries_field
from koordebpf.slo.manager.shapes import COLOCATION_KEY
from koordebpf.slo.selector import selects

Path = tuple[str, ...]
States = Mapping[Path, bool | None]  # of the switches that are written: on, off; None: it cannot be read
_OFF: Final[Mapping[str, Any]] = {"enable": False, "policy": "none"}  # each switch, and its value that is off
_MOST_NAMED: Final = 3  # switches in a sentence
_UNREADABLE: Final = object()  # something stands where an object must be


class EntrySwitches(msgspec.Struct, frozen=True):
    """Those of an entry for some nodes; `selector` as it is written."""

    selector: Any
    is_selector_usable: bool
    is_usable: bool
    states: States

    def may_select(self, labels: Mapping[str, str]) -> bool:
        """Tell whether it is for a node; one that switches something off for nodes that cannot be read may be."""
        if self.is_selector_usable:
            return selects(self.selector, labels, "nodeSelector")
        if all(state is not False for state in self.states.values()):
            return False
        wanted = self.selector.get("matchLabels") if isinstance(self.selector, dict) else None
        if not isinstance(wanted, dict):
            return True
        return all(
            labels.get(key) == value if isinstance(value, str) else key in labels for key, value in wanted.items()
        )


class TextSwitches(msgspec.Struct, frozen=True):
    """Those of one text. `is_usable`: as a whole; its entries may not be."""

    key: str
    is_usable: bool
    cluster: States
    entries: tuple[EntrySwitches, ...] = ()

    @property
    def is_all_usable(self) -> bool:
        """Tell whether it is usable for every node."""
        return self.is_usable and all(entry.is_usable for entry in self.entries)

    def of_node(self, labels: Mapping[str, str]) -> tuple[bool, frozenset[Path]]:
        """Return whether the text is usable for a node, and what it has off: absent switches are off, too."""
        entry = next((each for each in self.entries if each.may_select(labels)), None)
        states = {**self.cluster, **(entry.states if entry else {})}
        off = frozenset(path for path in switch_paths(self.key) if states.get(path, False) is False)
        return self.is_usable and (entry is None or entry.is_usable), off


def text_switches(config: Mapping[str, Any], key: str, decoded: Sequence[Entry] | None) -> TextSwitches:
    """Return the switches of a text. `decoded`: its entries; None: it is unusable as a whole."""
    written = config.get(entries_field(key))
    cluster: Any = config.get("clusterStrategy") if key in STRATEGY_KEYS else config
    return TextSwitches(
        key,
        decoded is not None,
        states_of({} if cluster is None else cluster, key),
        tuple(
            EntrySwitches(
                each.get("nodeSelector") if isinstance(each, dict) else None,
                _is_selector_usable(each),
                decoded is None or not decoded[index].errors,
                states_of(each, key),
            )
            for index, each in enumerate(written if isinstance(written, list) else ())
        ),
    )


def with_text(history: Sequence[TextSwitches], newest: TextSwitches) -> tuple[TextSwitches, ...]:
    """Return the texts that count for some node, the newest last: none is older than one usable for every node."""
    if newest.is_all_usable:
        return (newest,)
    return (*(each for each in history if each != newest), newest)


def switched_off(history: Sequence[TextSwitches], labels: Mapping[str, str]) -> frozenset[Path]:
    """Return what stays off for a node for which the newest text is unusable; of another its value says it."""
    if not history or history[-1].is_all_usable:
        return frozenset()
    is_usable, off = True, frozenset[Path]()
    for text in history:
        is_usable, of_text = text.of_node(labels)
        off = of_text if is_usable else off | of_text
    return frozenset() if is_usable else off


def without(part: Mapping[str, Any], off: Iterable[Path]) -> dict[str, Any]:
    """Return a part of a spec with these switches off; one that is absent is off already."""
    result = dict(part)
    for path in on_in(part, off):
        at = result
        for name in path[:-1]:
            at[name] = dict(at[name])
            at = at[name]
        at[path[-1]] = _OFF[path[-1]]
    return result


def on_in(part: Any, paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return those of the switches that are on in a part of a spec."""
    return tuple(path for path in sorted(paths) if _at(part, path) not in (None, _UNREADABLE, _OFF[path[-1]]))


def named_switches(paths: Sequence[Path]) -> str:
    """Return their names for a sentence.

    >>> named_switches([("beClass", "cpuQOS", "enable"), ("enable",)])
    'beClass.cpuQOS.enable, enable'
    """
    more = len(paths) - _MOST_NAMED
    return ", ".join(map(".".join, paths[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


def states_of(written: Any, key: str) -> States:
    """Return the switches that are written in a strategy; all of one that is no object cannot be read."""
    found: dict[Path, bool | None] = {}
    for path, words in switch_paths(key).items():
        value = _at(written, path)
        if value is not None:
            found[path] = value != _OFF[path[-1]] if value in words and isinstance(value, bool | str) else None
    return found


@functools.cache
def switch_paths(key: str) -> Mapping[Path, tuple[bool | str, ...]]:
    """Return the switches that the key's type has, each with its values."""
    if key in STRATEGY_KEYS:
        return dict(_switches(msgspec.inspect.type_info(type(STRATEGY_KEYS[key].default))))
    return dict(_switches(msgspec.inspect.type_info(ColocationStrategy))) if key == COLOCATION_KEY else {}


def _switches(info: msgspec.inspect.Type, at: Path = ()) -> Iterator[tuple[Path, tuple[bool | str, ...]]]:
    match info:
        case msgspec.inspect.UnionType(types=types):
            for each in types:
                yield from _switches(each, at)
        case msgspec.inspect.StructType(fields=fields):
            for field in fields:
                yield from _switches(field.type, (*at, field.encode_name))
        case msgspec.inspect.BoolType() if at and at[-1] == "enable":
            yield at, (False, True)
        case msgspec.inspect.LiteralType(values=words) if at and at[-1] == "policy":
            yield at, tuple(map(str, words))


# None: absent.
def _at(value: Any, path: Path) -> Any:
    for name in path:
        if value is None:
            return None
        if not isinstance(value, dict):
            return _UNREADABLE
        value = value.get(name)
    return value


def _is_selector_usable(entry: Any) -> bool:
    try:
        selects(member(entry, "nodeSelector", ""), {}, "") if isinstance(entry, dict) else None
    except ConfigError:
        return False
    return isinstance(entry, dict)
