"""The configuration file: text in, settings or everything that is wrong out; and its schema and its full text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Any

import durationpy
import msgspec
import yaml

from koordebpf.configuration.schema import TYPED, Setting, settings
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.kube.sources.manifest import parse_documents
from koordebpf.quantity import MOST_AMOUNT, parse_amount
from koordebpf.slo.convert import converted
from koordebpf.slo.manager.shapes import no_such, unknown_fields
from koordebpf.units import NS_PER_S

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
API_VERSION = "koordebpf.io/v1alpha1"
KIND = "AgentConfiguration"
_HEAD = {"apiVersion": API_VERSION, "kind": KIND}
# Kubernetes' form, metav1.Duration.
_DURATION = r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$"
_DURATION_RULE = "must be a duration such as 500ms, 4s or 1h30m"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?([eE][0-9]{1,2}|[kMGTPE]|[KMGTPE]i)?$"
_QUANTITY_RULE = "must be a quantity of bytes such as 500Mi, 2Gi or 1e9"
_LONGEST_S = 10 * 365 * 24 * 3600  # beyond it 64 bits of nanoseconds come to their end
_WIDTH = 100
_DOCUMENT_END = "...\n"  # PyYAML's, after a bare scalar
_PER_S = {"_ns": NS_PER_S, "_s": 1}


# Where in the text of a YAML or JSON file something stands that turned out to be wrong.


def position(text: bytes, path: str) -> tuple[int, int] | None:
    """Return line and column, both from 1, of the field at a path such as `eviction.ladder[0].rung`.

    Of a path that leads further than the text does it is the last field that is there; None: not even the first is.

    Cost:    that of reading the YAML once more; only for who reports an error.

    >>> position(b"a: 1\nb:\n  - c: 2\n", "b[0].c")
    (3, 5)
    """
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    found: yaml.Node | None = None
    for name, index in _STEP.findall(path):
        if isinstance(node, yaml.MappingNode) and name:
            found, node = next(((key, value) for key, value in node.value if key.value == name), (found, None))
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            found = node = node.value[int(index)]
        else:
            node = None
        if node is None:
            break
    return None if found is None else (found.start_mark.line + 1, found.start_mark.column + 1)


class ConfigProblems(ConfigError):
    """Everything that is wrong with one file; its text has a line for each."""

    def __init__(self, problems: tuple[ConfigError, ...]) -> None:
        first = problems[0]
        super().__init__(first.path, first.value, first.rule)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def read_config(path: str, text: bytes) -> dict[str, Any]:
    """Return what the file sets, by field of AgentConfig, for `agent_config`. What it does not name is not in it.

    What it contradicts is not looked for: an option of the command line may still go before it.

    Raises:  ConfigProblems: every unknown field, wrong type and value out of range, each with its path in the file, the
             value and the rule. ConfigError: neither YAML nor JSON.
    """
    documents = [each for each in parse_documents(path, text) if each is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ConfigError(path, f"{len(documents)} documents", f"must hold one {KIND}")
    (document,) = documents
    problems = [
        ConfigError(f"{path}: {name}", document.get(name), f"must be {wanted}")
        for name, wanted in _HEAD.items()
        if document.get(name) != wanted
    ]
    given: dict[str, Any] = {}
    body = {name: value for name, value in document.items() if name not in _HEAD}
    for found in _read(body, _tree(), path, ""):
        if isinstance(found, ConfigError):
            problems.append(found)
        else:
            setting, value = found
            if value is not None or setting.default is not None:  # else null is what it would be without
                _put(given, setting.field, value)
    if problems:
        raise ConfigProblems(tuple(placed(each, path, text) for each in problems))
    return given


def placed(problem: ConfigError, path: str, text: bytes) -> ConfigError:
    """Return the error of PATH: FIELD as one of PATH:LINE:COLUMN: FIELD; what was typed as an option has no lines."""
    before, has_field, field = problem.path.partition(": ")
    if path.startswith("--") or not has_field or before != path:
        return problem
    if (place := position(text, field)) is None:
        return problem
    return ConfigError(f"{path}:{place[0]}:{place[1]}: {field}", problem.value, problem.rule)


def places(given: Mapping[str, Any]) -> set[str]:
    """Return the paths in the file of what is given by field."""
    return {setting.path for setting in settings() if _has(given, setting.field)}


def config_text(config: AgentConfig) -> str:
    """Return the file that says all of this configuration, each setting under its reason."""
    lines = [f"{name}: {value}" for name, value in _HEAD.items()]
    open_path: list[str] = []
    shared = _shared_reasons()
    for setting in settings():
        *sections, name = setting.path.split(".")
        same = next((n for n, (a, b) in enumerate(zip(open_path, sections, strict=False)) if a != b), None)
        kept = min(len(open_path), len(sections)) if same is None else same
        if not sections or kept < len(sections):
            lines.append("")
        for depth in range(kept, len(sections)):
            lines += _comment(shared.get(tuple(sections[: depth + 1]), ""), "  " * depth)
            lines.append(f"{'  ' * depth}{sections[depth]}:")
        open_path = sections
        indent = "  " * len(sections)
        if tuple(sections) not in shared:
            lines += _comment(setting.why, indent)
        value = file_value(setting, value_at(config, setting.field))
        shown = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**31)
        lines.append(f"{indent}{name}: {shown.removesuffix(_DOCUMENT_END).rstrip()}")
    return "\n".join(lines) + "\n"


# Sections all of whose settings have one reason, which stands above the section.
def _shared_reasons() -> dict[tuple[str, ...], str]:
    reasons: dict[tuple[str, ...], list[str]] = {}
    for setting in settings():
        *sections, _ = setting.path.split(".")
        for depth in range(1, len(sections) + 1):
            reasons.setdefault(tuple(sections[:depth]), []).append(setting.why)
    return {path: whys[0] for path, whys in reasons.items() if len(whys) > 1 and len(set(whys)) == 1}


def _comment(text: str, indent: str) -> list[str]:
    marks = f"{indent}# "
    return textwrap.wrap(text, _WIDTH, initial_indent=marks, subsequent_indent=marks, break_on_hyphens=False)


def config_schema() -> dict[str, Any]:
    """Return the file's JSON Schema; descriptions carry the reason of each default."""
    root = _section() | {"type": "object", "required": list(_HEAD)}
    definitions: dict[str, Any] = {}
    root["properties"] |= {name: {"const": value} for name, value in _HEAD.items()}
    for setting in settings():
        *sections, name = setting.path.split(".")
        below = root["properties"]
        for section in sections:
            below = below.setdefault(section, _section())["properties"]
        leaf = _leaf(setting)
        definitions |= leaf.pop("$defs", {})
        below[name] = leaf
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{KIND} of {API_VERSION}",
        "description": "What one koordebpf agent runs with. Enforcement is not in it: it has to be typed.",
        **root,
        "$defs": definitions,
    }


def file_value(setting: Setting, value: Any) -> Any:
    """Return a field's value in the form of the file."""
    if value is None:
        return None
    if setting.form == "duration":
        seconds = value / _per_s(setting)
        return durationpy.to_str(timedelta(seconds=seconds)) if seconds else "0s"
    if setting.form == "quantity":
        for suffix, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
            if value and value % size == 0:
                return f"{value // size}{suffix}"
        return str(value)
    if isinstance(value, frozenset):
        return sorted((file_value(setting, each) for each in value), key=str)
    if isinstance(value, tuple):
        return [file_value(setting, each) for each in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return msgspec.json.decode(msgspec.json.encode(value))
    return str(value) if isinstance(value, Path) else value


def _tree() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for setting in settings():
        _put(tree, tuple(setting.path.split(".")), setting)
    return tree


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *sections, name = path
    reduce(lambda below, section: below.setdefault(section, {}), sections, tree)[name] = value


def _read(
    written: Mapping[Any, Any], tree: Mapping[str, Any], path: str, section: str
) -> Iterator[ConfigError | tuple[Setting, Any]]:
    for name, value in written.items():
        here = f"{section}{name}"
        place = f"{path}: {here}"
        known = tree.get(name)
        if here == TYPED:
            yield ConfigError(place, value, "must not be in a file: type koordebpf run --enforce")
        elif known is None:
            yield ConfigError(place, value, no_such(str(name), tree))
        elif isinstance(known, Setting):
            try:
                yield known, _value(known, value, place)
            except ConfigError as error:
                yield error
        elif isinstance(value, dict):
            yield from _read(value, known, path, f"{here}.")
        elif value is not None:  # a section with nothing in it
            yield ConfigError(place, value, "must be an object")


def _value(setting: Setting, written: Any, path: str) -> Any:
    if written is None and setting.is_nullable:
        return None
    if setting.form == "plain":
        for unknown in unknown_fields(written, setting.file_type, path):
            near = f"; did you mean {unknown.near}?" if unknown.near else ""
            raise ConfigError(unknown.path, NOT_GIVEN, f"no such field{near}")
        try:
            plain = converted(written, setting.file_type, path)
        except ConfigError as error:
            raise _described(setting, error) from None
        return msgspec.convert(plain, setting.type, dec_hook=lambda of, text: of(text))
    if setting.form == "duration":
        seconds = _seconds(written, path)
        number: Any = seconds if setting.field[-1].endswith("_s") else round(seconds * NS_PER_S)
    else:
        is_text = isinstance(written, str) and re.fullmatch(_QUANTITY, written) is not None
        if not is_text and (isinstance(written, bool) or not isinstance(written, int)):
            raise ConfigError(path, written, _QUANTITY_RULE)
        amount = parse_amount(written, path)
        if not amount.is_int64():
            raise ConfigError(path, written, f"must be {MOST_AMOUNT} or less")
        number = amount.value()
    try:
        return msgspec.convert(number, setting.type)
    except msgspec.ValidationError:
        raise ConfigError(path, written, _range_rule(setting)) from None


# With what the type says of itself, in place of a regular expression.
def _described(setting: Setting, error: ConfigError) -> ConfigError:
    metas = [each for each in getattr(setting.type, "__metadata__", ()) if isinstance(each, msgspec.Meta)]
    said = next((each.description for each in metas if each.description), None)
    return error if said is None else ConfigError(error.path, error.value, f"must be {said}")


def _range_rule(setting: Setting) -> str:
    meta = next(each for each in setting.type.__metadata__ if isinstance(each, msgspec.Meta))
    bounds = ((meta.ge, "{} or more"), (meta.gt, "more than {}"), (meta.le, "{} or less"), (meta.lt, "less than {}"))
    said = [text.format(file_value(setting, bound)) for bound, text in bounds if bound is not None]
    return f"must be {' and '.join(said)}"


def _leaf(setting: Setting) -> dict[str, Any]:
    if setting.form == "duration":
        leaf: dict[str, Any] = {"type": "string", "pattern": _DURATION}
    elif setting.form == "quantity":
        leaf = {"anyOf": [{"type": "string", "pattern": _QUANTITY}, {"type": "integer", "minimum": 0}]}
    else:
        leaf = msgspec.json.schema(setting.file_type)
    if setting.is_nullable:
        leaf = {"anyOf": [leaf, {"type": "null"}]}
    return {**leaf, "description": setting.why, "default": file_value(setting, setting.default)}


def duration_ns(written: str, path: str) -> int:
    """Return a duration that a person wrote, in nanoseconds.

    Raises:  ConfigError: it is none, or longer than 10 years.
    """
    return round(_seconds(written, path) * NS_PER_S)


def _seconds(written: object, path: str) -> float:
    if not isinstance(written, str) or not re.fullmatch(_DURATION, written):
        raise ConfigError(path, written, _DURATION_RULE)
    try:
        seconds = float(durationpy.from_str(written).total_seconds())
    except durationpy.DurationError:  # not even a timedelta holds it
        seconds = float("inf")
    if seconds > _LONGEST_S:
        raise ConfigError(path, written, "must be 10 years or less")
    return seconds


def _section() -> dict[str, Any]:
    return {"type": ["object", "null"], "additionalProperties": False, "properties": {}}


def _per_s(setting: Setting) -> int:
    return next(each for suffix, each in _PER_S.items() if setting.field[-1].endswith(suffix))


def value_at(config: AgentConfig, field: tuple[str, ...]) -> Any:
    """Return what a setting is; `field` as `Setting.field`."""
    return reduce(lambda of, name: of[name] if isinstance(of, Mapping) else getattr(of, name), field, config)


def _has(given: Mapping[str, Any], field: tuple[str, ...]) -> bool:
    first, *rest = field
    return first in given and (not rest or _has(given[first], tuple(rest)))
