"""Namespaces as an operator selects them: by name, by pattern, or by their labels."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.selector import selects
from koordebpf.state.view import Labels

_NAME = re.compile(r"[a-z0-9*?-]{1,63}")
# k8s.io/apimachinery pkg/util/validation, IsQualifiedName and IsValidLabelValue.
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}")
_VALUE = re.compile(rf"({_WORD})?")


class LabelExpression(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class NamespaceSelector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """metav1.LabelSelector of the labels of a namespace; an empty one selects every namespace."""

    matchLabels: dict[str, str] = {}
    matchExpressions: tuple[LabelExpression, ...] = ()

    def __hash__(self) -> int:
        """Hash by value, as the others do; msgspec's own stumbles over the dict."""
        return hash((frozenset(self.matchLabels.items()), self.matchExpressions))

    @property
    def keys(self) -> frozenset[str]:
        """The labels that it looks at."""
        return frozenset([*self.matchLabels, *(each.key for each in self.matchExpressions)])


Namespaces = frozenset[str | NamespaceSelector]


def includes(namespaces: Namespaces, namespace: str, labels: Mapping[str, Labels]) -> bool | None:
    """Tell whether one of these is the namespace; None: it depends on labels that are not known.

    A name may have `*` for any text and `?` for one character. `labels` are those of each namespace that is known.

    Cost:    0.5 µs.
    """
    if "*" in namespaces or _pattern(namespaces).fullmatch(namespace) is not None:
        return True
    if not _selectors(namespaces):
        return False
    known = labels.get(namespace)
    return None if known is None else _selected(namespaces, known)


def label_keys(several: Iterable[Namespaces]) -> frozenset[str] | None:
    """Return the labels that these look at; None: they select by name alone."""
    selectors = [each for namespaces in several for each in _selectors(namespaces)]
    return frozenset(key for each in selectors for key in each.keys) if selectors else None


def check_namespaces(namespaces: Namespaces, path: str) -> None:
    """Let pass what the API server would take.

    Raises:  ConfigError: no such name, label or selector can be; names `path`, value and rule.
    """
    for each in namespaces:
        if isinstance(each, NamespaceSelector):
            _check_selector(each, path)
        elif not _NAME.fullmatch(each):
            rule = "must be a namespace, a pattern of one with * and ?, or a selector of labels"
            raise ConfigError(path, each, rule)


def as_written(namespaces: Namespaces) -> list[Any]:
    """Return them as the configuration has them, names first."""
    return sorted(map(_plain, namespaces), key=lambda each: (isinstance(each, dict), str(each)))


def _check_selector(selector: NamespaceSelector, path: str) -> None:
    for each in selector.matchExpressions:
        if bool(each.values) != (each.operator in ("In", "NotIn")):
            rule = "must have values" if not each.values else "must have no values"
            raise ConfigError(f"{path}.matchExpressions", each.key, f"{rule} with operator {each.operator}")
    for key in selector.keys:
        if not _KEY.fullmatch(key):
            raise ConfigError(path, key, "must be the key of a label")
    for value in [
        *selector.matchLabels.values(),
        *(value for each in selector.matchExpressions for value in each.values),
    ]:
        if not _VALUE.fullmatch(value):
            raise ConfigError(path, value, "must be the value of a label")


@functools.lru_cache(64)
def _pattern(namespaces: Namespaces) -> re.Pattern[str]:
    names = sorted(each for each in namespaces if isinstance(each, str))
    as_text = (re.escape(name).replace(r"\*", ".*").replace(r"\?", ".") for name in names)
    return re.compile("|".join(as_text) or r"(?!)")


@functools.lru_cache(64)
def _selectors(namespaces: Namespaces) -> tuple[NamespaceSelector, ...]:
    return tuple(each for each in namespaces if isinstance(each, NamespaceSelector))


@functools.lru_cache(4096)
def _selected(namespaces: Namespaces, labels: Labels) -> bool:
    of = dict(labels)
    return any(selects(_plain(each), of, "") for each in _selectors(namespaces))


# With lists, not tuples.
def _plain(each: str | NamespaceSelector) -> Any:
    return msgspec.json.decode(msgspec.json.encode(each))
